"""Healthy models stay quiet: no fault and no warning, whatever their family and however little they have learned."""

import copy
import re

import pytest
import torch

import vitrail
from tests.doctor.small import SHAPE, batch, check, codes, examine, make, pixels, teach, trained
from tests.training.support import make_folder, small_options
from tests.weights.test_hub import snapshot
from vitrail.doctor import diagnose, patient
from vitrail.doctor.examine import CHECKS
from vitrail.models import build
from vitrail.models.tuning import tune
from vitrail.tasks.backbones import Start
from vitrail.training.run_folder import Record, described

MAE = {"width": 48, "depth": 2, "heads": 3, "patch_size": 8, "image_size": 32, "decoder_width": 32, "decoder_depth": 1}


def make_mae():
    torch.manual_seed(0)
    return vitrail.create_model("mae_b16", **MAE, decoder_heads=2)


def test_a_trained_model_is_healthy_and_every_check_says_with_what_figure():
    found = examine(trained())
    assert found.healthy and not found.faults
    assert [finding.check for finding in found.findings] == [
        "patches", "weights", "frozen", "positions", "attention", "activations", "gradients", "preprocessing",
        "learning", "labels",
    ]  # fmt: skip
    figures = {finding.check: finding.figures for finding in found.findings}
    assert figures["patches"]["tokens"] == 17
    assert figures["attention"]["rows"] < 1e-5
    assert figures["preprocessing"]["t"] < -3  # the other order of channels is worse
    assert figures["labels"]["z"] > 10 and figures["labels"]["neighbours"] > 0.9


@pytest.mark.parametrize("steps", [1, 20])
def test_a_model_of_a_few_steps_is_healthy(steps):
    assert codes(examine(teach(make(), steps))) == set()


@pytest.mark.parametrize("name", ["vit_ti16", "deit_ti16_distilled", "deit3_s16", "swin_t", "swinv2_t", "cpvt_ti16"])
def test_a_fresh_model_is_called_untrained_and_not_faulty(name):
    found = examine(make(name))
    assert codes(found) == set()
    assert "untrained" in next(finding.seen for finding in found.findings if finding.check == "weights")


@pytest.mark.parametrize("name", ["swin_t"])
def test_a_swin_that_has_learned_is_healthy(name):
    assert codes(examine(teach(make(name), 20))) == set()


@pytest.mark.parametrize("steps", [0, 10])
def test_a_masked_autoencoder_is_healthy(steps):
    model = make_mae()
    assert codes(examine(teach(model, steps) if steps else model, batch()[0])) == set()


def test_an_autoencoder_is_not_blamed_for_labels_that_its_features_do_not_tell_apart():
    x, labels = batch()
    (found,) = check("labels", teach(make_mae(), 1), (x, labels[torch.randperm(len(labels))]))
    assert found.severity == "skipped" and "need not tell classes apart" in found.seen
    (found,) = check("learning", teach(make_mae(), 1), x)
    assert re.search(r"of a model that knows nothing it is (0\.9\d|1\.00)$", found.seen)


def test_a_model_of_features_with_registers_is_healthy():
    torch.manual_seed(0)
    model = vitrail.create_model("dinov2_s14_reg4", **{**SHAPE, "num_classes": 0})
    assert codes(examine(model)) == set()


@pytest.mark.parametrize(
    ("family", "kind"), [("vit", "prompt"), ("vit", "lora"), ("vit", "adapter"), ("vit", "bias"), ("swin", "prompt")]
)
def test_a_model_that_was_just_made_ready_for_cheap_tuning_is_healthy(family, kind):
    model = trained() if family == "vit" else teach(make("swin_t"), 20)
    found = examine(tune(model, kind))
    assert codes(found) == set()
    attention = next(finding for finding in found.findings if finding.check == "attention")
    assert ("sum to at most 1, prompts taking the rest" in attention.seen) == (kind == "prompt")
    assert attention.figures["rows"] < 1e-5


def test_lora_that_has_moved_and_still_gets_no_gradient_is_found():
    model = tune(trained(), "lora")
    for name, parameter in model.named_parameters():
        if "lora_b" in name:
            parameter.data.normal_(std=0.01)
    assert codes(examine(model)) == set()
    model.blocks[1].attention.qkv.scale = 0.0
    (found,) = [finding for finding in check("activations", model) if finding.severity == "warn"]
    assert found.code == "dead_parameters" and "lora" in found.seen and found.figures["tensors"] == 2


def test_without_data_made_up_pictures_serve():
    found = diagnose(trained())
    assert codes(found) == set()
    assert found.pictures.startswith("16 made-up pictures")


def test_a_run_is_examined_with_its_own_data_and_learning_rate_and_a_block_that_did_not_move_is_found(
    tmp_path, monkeypatch
):
    data = make_folder(tmp_path / "data", 96, 3, 16)
    run = vitrail.train(data, out=tmp_path / "run", epochs=12, **small_options())
    built = []
    monkeypatch.setattr(patient, "build", lambda settings: built.append(build(settings)) or built[-1])
    found = diagnose(run, device="cpu")
    assert len(built) == 1  # what it started from, once for all checks
    assert not any(p.grad is not None for p in built[0].parameters())  # the trial had a copy
    assert codes(found) == set()
    checks = {finding.check: finding for finding in found.findings}
    assert checks["learning"].figures["lr"] == 1e-3
    assert checks["history"].figures["epochs"] == 12
    assert checks["frozen"].figures["least"] > 1e-3  # every block has moved
    assert "held out" in found.pictures

    path = run.folder / "model.safetensors"
    predictor, start = vitrail.load(path, device="cpu"), patient._run_folder(run.folder).start
    predictor.model.blocks[1].load_state_dict(start.blocks[1].state_dict())
    predictor.save(path)
    found = diagnose(run, device="cpu")
    assert codes(found) == {"frozen"}
    assert "block 2 of" in found.faults[0].seen


@pytest.mark.parametrize(("options", "why"), [
    ({"tune": "head", "epochs": 1}, "the run tuned the head alone (--tune head)"),
    ({"tune": "prompt", "epochs": 1}, "the run tuned what it had added to them (--tune prompt)"),
    ({"epochs": 0}, "the run kept the linear classifier on frozen features"),
])  # fmt: skip
def test_why_no_block_moved_is_told_and_one_epoch_has_no_history(tmp_path, options, why):
    data = make_folder(tmp_path / "data", 48, 3, 12)
    small = small_options()
    start = vitrail.train(data, out=tmp_path / "start", epochs=1, **small)
    options = {**{name: value for name, value in small.items() if name != "model"}, **options}
    run = vitrail.train(data, out=tmp_path / "run", **(options | {"weights": start}))
    said = {finding.check: finding.seen for finding in diagnose(run, device="cpu").findings}
    assert said["frozen"] == f"no block moved in training: {why}"
    assert said.get("history", "").startswith("no epochs") == (options["epochs"] == 0)


def run_of(model, name, folder, weights="auto"):
    """The folder of a run that has this model, and began with weights of that name."""
    vitrail.save_weights(model, folder / "model.safetensors", name=name)
    start = Start(model, model.preprocessing, name, pretrained=True, reasons=[])
    recipe = {"weights": weights, "tune": "full"}
    Record("", {}, recipe, {}, described(start, model), {}).write(folder)
    return folder


def frozen(run):
    examined, _ = patient.admit(run, device="cpu")
    (found,) = CHECKS["frozen"](examined)
    return found


def test_a_run_on_the_model_that_ships_inside_is_compared_with_it(tmp_path):
    model = vitrail.load("vitrail_tiny", device="cpu").model
    for number, block in enumerate(model.blocks):
        if number != 2:
            block.mlp.fc1.weight.data *= 1.1
    found = frozen(run_of(model, "vitrail_tiny", tmp_path))
    assert found.severity == "fault"
    assert found.seen.startswith("block 3 of 7 did not move in training, others by up to ")


@pytest.mark.parametrize("weights", ["auto", "hf://timm/deit_tiny_patch16_224.fb_in1k"])
def test_a_run_on_public_weights_is_compared_with_the_hubs_cache_or_says_whose_are_not_there(
    weights, tmp_path, monkeypatch
):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub._snapshot_download.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    model = vitrail.create_model("deit_ti16")
    run = run_of(model, "deit_ti16", tmp_path / "run", weights)
    named = "deit_ti16" if weights == "auto" else weights
    assert frozen(run).seen == f"what the run started from ({named}) is not at hand"

    model.blocks[4].mlp.fc1.weight.data *= 1.1
    cached = snapshot(tmp_path / "hub", "timm/deit_tiny_patch16_224.fb_in1k")
    vitrail.save_weights(model, cached / "model.safetensors", dialect="timm")
    (cached / "config.json").write_text('{"architecture": "deit_tiny_patch16_224"}')
    found = frozen(run)
    assert found.severity == "fault" and found.figures["frozen"] == 11
    assert found.seen.startswith("blocks 1–4, 6–12 of 12 did not move in training")


def test_models_with_deliberately_frozen_parts_are_told_from_faulty_ones():
    model = trained()
    model.patch.requires_grad_(False)
    model.blocks[0].requires_grad_(False)
    found = examine(model)
    assert not found.faults
    assert [finding.code for finding in found.warnings] == ["frozen"]


def test_the_model_stays_as_it_was():
    model = trained().train()
    before = copy.deepcopy(model.state_dict())
    examine(model)
    assert model.training
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_grey_pictures_have_no_order_of_channels_to_get_wrong():
    pictures, labels = pixels()
    grey = pictures.mean(dim=1, keepdim=True).expand(-1, 3, -1, -1)
    found = examine(trained(), (grey * 4 - 2, labels))  # not what it was trained with, but not for that reason
    assert "channel_order" not in codes(found)
