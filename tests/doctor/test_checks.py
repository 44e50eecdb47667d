"""The arithmetic of single checks, against closed forms."""

import json
import math
import re
import warnings
from dataclasses import replace

import pytest
import torch
from PIL import Image

import vitrail
from tests.doctor.small import LABELS, PRE, SHAPE, batch, check, examine, make, teach, trained, write_pictures
from vitrail.cli import main
from vitrail.data.samples import Item, Sample
from vitrail.doctor import Diagnosis, diagnose
from vitrail.doctor.attention import look
from vitrail.doctor.findings import blocks, fault, numbers, ok
from vitrail.doctor.inputs import _t
from vitrail.doctor.labels import neighbour_agreement
from vitrail.doctor.pictures import choose
from vitrail.doctor.positions import neighbour_similarity
from vitrail.errors import VitrailError
from vitrail.models.dense.segmenter import Segmenter


def test_numbers_are_written_as_ranges():
    assert numbers([3, 1, 2, 7]) == "1–3, 7"
    assert blocks([5]) == "block 6" and blocks([0, 1]) == "blocks 1–2"  # people count from 1


# -- labels ------------------------------------------------------------------------------------------------------------


def test_neighbours_agree_in_tight_clusters_and_not_when_labels_are_shuffled():
    labels = torch.arange(64) % 8
    features = torch.eye(8)[labels] * 10 + torch.randn(64, 8) * 0.1
    targets = torch.eye(8)[labels]
    share, chance, z = neighbour_agreement(features, targets)
    assert share == 1.0
    assert chance == pytest.approx(7 / 63, abs=0.01)  # of 63 others 7 have the same label
    assert z > 20
    shuffled = [neighbour_agreement(features, targets[torch.randperm(64)])[2] for _ in range(30)]
    assert max(shuffled) < 3.5 and abs(sum(shuffled) / 30) < 0.6


def test_several_labels_agree_by_the_share_they_have_in_common():
    features = torch.tensor([[1.0, 0.0], [1.0, 0.1], [-1.0, 0.0], [-1.0, 0.1], [0.0, -3.0], [0.1, -3.0]])
    targets = torch.tensor([[1, 1, 0], [1, 0, 0]] * 3)  # half of the labels of two unlike pictures are shared
    share, chance, _ = neighbour_agreement(features, targets)
    assert share == pytest.approx(0.5 * 3 / 5 + 1.0 * 2 / 5)  # five neighbours are all the others
    assert chance == pytest.approx(share)


def test_labels_of_a_model_that_is_not_sure_of_anything_are_no_more_than_a_warning():
    x, labels = batch()
    (found,) = check("labels", teach(make(), 1), (x, labels[torch.randperm(len(labels))]))
    assert found.severity == "warn" and found.code == "shuffled_labels"


# -- preprocessing -----------------------------------------------------------------------------------------------------


def test_t_is_the_paired_one():
    assert _t(torch.tensor([1.0, 2.0, 3.0, 2.0])) == pytest.approx(2 / (math.sqrt(2 / 3) / 2))
    assert _t(torch.zeros(8)) == 0.0
    assert _t(torch.ones(1)) == 0.0  # of a single one nothing is known


def test_pictures_that_were_normalised_twice_are_found():
    x, labels = batch()
    mean, std = (torch.tensor(values).view(1, 3, 1, 1) for values in (PRE.mean, PRE.std))
    twice = (((x - mean) / std) - mean) / std
    assert [finding.code for finding in check("preprocessing", trained(), (twice, labels))] == ["normalisation"]


def test_a_model_that_sees_no_difference_for_its_faults_is_not_asked_about_channels():
    model = trained()
    model.position.table.data.zero_()
    model.patch.weight.data.zero_()
    found = {finding.check: finding for finding in examine(model).findings}
    assert found["positions"].severity == "fault"
    assert found["preprocessing"].severity == "skipped" and "(t = 0.0)" in found["preprocessing"].seen
    model = trained()
    model.position.table.data.zero_()  # this one still understands colours, and so can be asked
    (finding,) = [finding for finding in examine(model).findings if finding.check == "preprocessing"]
    assert finding.severity == "ok" and finding.figures["t"] < -3


# -- structure ---------------------------------------------------------------------------------------------------------


def test_neighbours_of_positions_on_a_line():
    """Cosines that fall by 0.1 per step."""
    places = torch.arange(12).view(3, 4)
    apart = (places[..., None, None] // 4 - places // 4).abs() + (places[..., None, None] % 4 - places % 4).abs()
    assert neighbour_similarity(1 - 0.1 * apart) == pytest.approx(0.9)


def test_a_size_far_from_that_of_training_is_a_warning():
    (found,) = check("patches", trained(), torch.randn(2, 3, 96, 96))
    assert found.code == "far_size" and found.figures["factor"] == 3
    (found,) = check("patches", trained(), torch.randn(2, 3, 36, 32))
    assert found.severity == "ok" and found.figures["tokens"] == 5 * 4 + 1 and "padded" in found.seen


def test_weights_that_are_no_numbers_are_found():
    model = trained()
    model.blocks[2].mlp.fc1.weight.data[0, 0] = math.nan
    found = examine(model)
    assert {finding.code for finding in found.faults} == {"not_finite"}
    seen = {finding.check: finding for finding in found.findings}
    assert seen["attention"].severity == "fault" and "no number in block 4 of 4" in seen["attention"].seen
    assert seen["preprocessing"].severity == "skipped" and "answers that are no numbers" in seen["preprocessing"].seen
    assert "from block 3 on" in next(f.seen for f in found.faults if f.check == "activations")


def test_a_model_without_a_single_number_still_has_a_page():
    model = trained()
    model.patch.weight.data.fill_(math.nan)
    found = examine(model)
    seen = {finding.check: finding for finding in found.findings}
    assert "no number in blocks 1–4 of 4" in seen["attention"].seen and "entropy" not in found.charts
    assert "no number in blocks 1–4 of 4" in found.html()


def test_a_block_that_adds_nothing_is_found():
    model = trained()
    for layer in (model.blocks[1].attention.proj, model.blocks[1].mlp.fc2):
        layer.weight.data.zero_()
        layer.bias.data.zero_()
    found = check("activations", model)
    assert found[0].code == "idle_block" and "block 2 of 4 adds nothing" in found[0].seen


def test_a_table_that_was_never_loaded_into_a_long_trained_model_is_a_warning():
    """What the eye sees at once in the similarity grid: no rows and columns."""
    model = teach(make(image_size=64), 1)
    assert [finding.severity for finding in check("positions", model, torch.randn(2, 3, 64, 64))] == ["ok"]
    for name, parameter in model.named_parameters():
        if "norm" in name:
            parameter.data *= 1.2  # as after long training
    assert [finding.code for finding in check("positions", model, torch.randn(2, 3, 64, 64))] == ["positions_random"]


def test_a_head_that_was_never_trained_is_a_warning():
    model = trained()
    torch.nn.init.trunc_normal_(model.head.output.weight, std=0.02)
    model.head.output.bias.data.zero_()
    assert [(finding.severity, finding.code) for finding in check("weights", model)] == [("warn", "head_new")]


@pytest.mark.parametrize("deviation", [0.02, 192**-0.5])  # the second beside sines and cosines: 3×8×8 numbers a patch
def test_patches_that_were_never_trained_are_a_fault(deviation):
    model = trained()
    assert model.patch.weight[0].numel() == 192
    torch.nn.init.trunc_normal_(model.patch.weight, std=deviation)
    model.patch.bias.data.zero_()
    (found,) = check("weights", model)
    assert found.code == "half_loaded" and "the patch embedding" in found.seen


def test_trained_patches_may_be_as_large_as_they_began():
    model = trained()
    for name, parameter in model.named_parameters():
        if "norm" in name:
            parameter.data *= 1.2  # as after long training
    torch.nn.init.trunc_normal_(model.patch.weight, std=192**-0.5)
    assert model.patch.bias.any() and [finding.severity for finding in check("weights", model)] == ["ok"]


# -- attention ---------------------------------------------------------------------------------------------------------


def test_what_heads_add_is_their_part_of_the_projection():
    model, x = trained(), batch()[0][:2]
    layers, gives = look(model, x)
    block = model.blocks[0]
    with torch.no_grad():
        whole = block.attention(block.norm1(model.embed(x)[0])) - block.attention.proj.bias
        block.attention.proj.weight.data[:, 16:] = 0
        first = block.attention(block.norm1(model.embed(x)[0])) - block.attention.proj.bias
    assert gives[0][0].item() == pytest.approx(first.square().mean().sqrt().item(), rel=1e-4)
    assert len(layers) == 4 and [len(heads.apart) for heads in layers] == [3] * 4
    assert whole.shape == first.shape
    assert layers[0].tokens[0].item() == pytest.approx(math.log(17))


def test_attention_onto_one_token_is_a_warning():
    """Every query is the same, and the keys differ in one direction, along which one token is far ahead."""
    model = trained()
    attention = model.blocks[1].attention
    weight, bias = attention.qkv.weight.data.view(3, 3, 16, 48), attention.qkv.bias.data.view(3, 3, 16)
    weight[0, 0], bias[0, 0] = 0, 1e4
    found = check("attention", model)
    assert [(finding.code, "block.head 2.1" in finding.seen) for finding in found] == [("collapsed_head", True)]


def test_one_picture_alone_is_enough_to_tell_heads_apart():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = examine(trained(), batch()[0][:1])
    assert found.healthy and found.pictures == "1 picture, given as a tensor"
    seen = {finding.check: finding.seen for finding in found.findings}
    assert seen["attention"].startswith("12 heads, rows sum to 1")
    assert seen["learning"].startswith("1 picture with made-up labels is learned by heart")


# -- learning ----------------------------------------------------------------------------------------------------------


def test_steps_are_counted_from_the_loss_before_the_first():
    """The chart has step 0 as well; a trial that gives up has made all of its steps, and looked after the last."""
    found = examine(trained())
    (learnt,) = [finding for finding in found.findings if finding.check == "learning"]
    steps = learnt.figures["steps"]
    assert 0 < steps == len(found.charts["learning"]) - 1
    assert f" in {steps} step" in learnt.seen
    model = trained()
    model.head.output.weight.data.zero_()
    model.requires_grad_(False).head.output.weight.requires_grad_(True)
    model.blocks[-1].register_forward_hook(lambda *_: torch.zeros(8, 17, 48))  # the head sees nothing
    (given_up,) = check("learning", model)
    assert given_up.severity == "skipped" and "in 120 steps), and need not" in given_up.seen


# -- gradients ---------------------------------------------------------------------------------------------------------


def test_activations_that_explode_are_found():
    model = trained()
    model.blocks[2].mlp.fc2.weight.data *= 1e5
    found = check("activations", model)
    assert found[0].code == "exploding" and found[0].figures["most"] > 1e3 * found[0].figures["least"]


def test_gradients_that_vanish_are_found():
    """Post-norm blocks whose branches are far larger than what they are added to: little of the gradient gets past."""
    model = teach(make(norm_first=False), 5)
    for block in model.blocks[1:]:
        block.attention.proj.bias.data.normal_(std=100.0)
    found = check("activations", model)
    assert [finding.code for finding in found if finding.severity == "fault"] == ["vanishing"]


def test_parameters_that_nothing_depends_on_are_found():
    model = trained()
    model.unused = torch.nn.Linear(4, 4)
    found = check("activations", model)
    assert found[-1].code == "dead_parameters" and "unused.weight" in found[-1].seen


# -- pictures ----------------------------------------------------------------------------------------------------------


def samples(counts: list[int]) -> list[Sample]:
    return [Sample(f"{c}/{i}", Item([], 0), (c,)) for c, count in enumerate(counts) for i in range(count)]


def test_a_few_classes_with_enough_pictures_each_are_chosen():
    chosen = choose(samples([50] * 100), 64)
    assert len({sample.name for sample in chosen}) == 64
    assert sorted({s.labels[0] for s in chosen}) == [0, 12, 24, 36, 48, 60, 72, 84]


def test_classes_of_one_picture_are_all_used():
    assert len({s.labels for s in choose(samples([1] * 1000), 64)}) == 64
    assert len(choose(samples([3, 2]), 64)) == 5
    assert [len([s for s in choose(samples([100, 100]), 64) if s.labels == (c,)]) for c in (0, 1)] == [32, 32]


# -- what fails --------------------------------------------------------------------------------------------------------


def failing(error):
    def fail(*_):
        raise error

    model = trained()
    model.blocks[1].attention.register_forward_pre_hook(fail)
    found = examine(model)
    return next(finding for finding in found.findings if finding.check == "attention"), found


def test_a_model_that_fails_is_a_fault_that_names_the_kind_of_error():
    found, _ = failing(KeyError("table"))
    assert found.severity == "fault" and found.code == "failed"
    assert found.seen == "the model fails with KeyError: 'table'"


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
        RuntimeError("[enforce fail at alloc_cpu.cpp:119] DefaultCPUAllocator: can't allocate memory"),
        MemoryError(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_too_little_memory_is_no_fault_of_the_model(error):
    found, all_of_it = failing(error)
    assert found.severity == "warn" and found.code == "out_of_memory"
    assert f"out of memory ({type(error).__name__}" in found.seen and "64 pictures of 32×32" in found.cause
    assert "--images" in found.fix and not all_of_it.faults


def test_models_of_other_tasks_are_refused_by_name():
    with pytest.raises(VitrailError, match=r"Segmenter shows .* studio look into ViT, Swin and MAE"):
        examine(Segmenter(make(), 3, "linear"))


def test_the_verdict_and_the_lines_are_said_in_one_way():
    findings = [
        replace(ok("all in place"), check="file"),
        replace(fault("x", "none", "shuffled", "sort"), check="labels"),
    ]
    found = Diagnosis("a", "2 pictures", findings)
    assert found.verdict == "1 fault. Examined with 2 pictures."
    assert (
        str(found) == "ok      file           all in place.\nfault   labels         none. Likely: shuffled. Fix: sort."
    )
    assert f"<p>{found.verdict}</p>" in found.html()
    assert Diagnosis("a", "", found.findings[:1]).verdict == "Nothing wrong was found."


# -- the command -------------------------------------------------------------------------------------------------------


def test_the_command_prints_a_line_per_check_and_ends_with_0_or_1(tmp_path, capsys):
    path = vitrail.save_weights(trained(), tmp_path / "model.safetensors", labels=LABELS, preprocessing=PRE)
    data = write_pictures(tmp_path / "data")
    arguments = ["doctor", str(path), str(data), "--device", "cpu", "--json", str(tmp_path / "found.json")]
    with pytest.raises(SystemExit) as end:
        main([*arguments, "--out", str(tmp_path / "page")])
    said = capsys.readouterr().out
    assert end.value.code == 0
    assert [line.split()[0] for line in said.splitlines()[:11]] == ["ok"] * 11
    assert "Nothing wrong was found. Examined with 64 pictures of" in said
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["faults"] == 0 and len(found["findings"]) == 11
    page = (tmp_path / "page" / "doctor.html").read_text(encoding="utf-8")
    assert page.count("data-chart") - page.count("[data-chart]") == 4 and page.count("<img") == 1
    assert not re.search(r"(src|href|url\()[^>]{0,3}https?:", page)

    model = trained()
    model.position.table.data.zero_()
    vitrail.save_weights(model, path, labels=LABELS, preprocessing=PRE)
    with pytest.raises(SystemExit) as end:
        main(arguments)
    said = capsys.readouterr().out
    assert end.value.code == 1
    line = next(line for line in said.splitlines() if line.startswith("fault"))
    assert "all 16 position vectors are zero" in line and "Likely: " in line and "Fix: " in line
    assert "1 fault. Examined with" in said
    assert [
        f["code"] for f in json.loads((tmp_path / "found.json").read_text())["findings"] if f["severity"] == "fault"
    ] == ["positions_zero"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["nothing.safetensors"], "There is no file nothing.safetensors"),
        (["model.safetensors", "nowhere"], "There is no nowhere"),
        (["model.safetensors", "--images", "1"], "--images must be at least 2"),
        (["model.safetensors", "--lr", "0"], "--lr must be above 0"),
        (["empty.safetensors"], "is empty (0 bytes)"),
    ],
)
def test_what_can_not_be_examined_is_one_sentence(arguments, sentence, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    vitrail.save_weights(vitrail.create_model("vit_ti16", **{**SHAPE, "depth": 1}), "model.safetensors")
    (tmp_path / "empty.safetensors").write_bytes(b"")
    with pytest.raises(SystemExit) as end:
        main(["doctor", *arguments])
    assert end.value.code == 2
    assert sentence in capsys.readouterr().err


def test_a_folder_of_pictures_without_classes_will_do(tmp_path):
    for number in range(20):
        Image.new("RGB", (40, 30), (12 * number, 90, 200)).save(tmp_path / f"{number}.png")
    (tmp_path / "@eaDir").mkdir()
    Image.new("RGB", (40, 30)).save(tmp_path / "@eaDir" / "0.png")  # a disk station's
    found = diagnose(trained(), tmp_path)
    assert found.pictures == f"20 pictures of {tmp_path}"
    assert next(f for f in found.findings if f.check == "labels").severity == "skipped"


def test_labels_that_the_model_does_not_know_are_still_compared_with_neighbours(tmp_path):
    (found,) = check("labels", trained(), write_pictures(tmp_path / "data"))
    assert found.severity == "ok" and "accuracy" not in found.figures and found.figures["z"] > 3


def test_a_batch_of_another_shape_is_refused():
    with pytest.raises(VitrailError, match="Expected a label for each of 64 pictures, got 3"):
        examine(trained(), (batch()[0], [0, 1, 2]))
    with pytest.raises(VitrailError, match=r"Expected a batch of images \[B, C, H, W\]"):
        examine(trained(), batch()[0][0])
