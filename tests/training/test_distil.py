"""A student learns from labels and from a teacher: the losses, what the teacher sees, and the run around it."""

import json
import math
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import vitrail
from tests.odd_files import photograph
from tests.training.support import (
    QUIET,
    SMALL,
    Command,
    differences,
    make_folder,
    make_images,
    make_trainer,
    rows,
    small_options,
)
from tests.training.test_distributed import together
from vitrail import VitrailError
from vitrail.data.preprocess import fit_image, prepare, to_tensor
from vitrail.distributed import Processes
from vitrail.models import Preprocessing, create_model
from vitrail.models.dense.segmenter import Segmenter
from vitrail.tasks.classify.distillation import BothHeads, Distil
from vitrail.tasks.classify.objective import Classify
from vitrail.tasks.classify.teacher import MEASURED, Teacher, against_chance, digest, how_good, load_teacher
from vitrail.weights import model_from, read_checkpoint, save_weights

CLASSES = ["class 0", "class 1", "class 2"]


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return make_folder(tmp_path_factory.mktemp("pictures"), count=60)


@pytest.fixture(scope="module")
def teacher(data, tmp_path_factory) -> Path:
    return vitrail.train(data, **small_options(epochs=4, out=tmp_path_factory.mktemp("runs") / "teacher")).folder


# The losses, by hand.


def softmax(values: list[float], temperature: float = 1.0) -> list[float]:
    powers = [math.exp(value / temperature) for value in values]
    return [power / sum(powers) for power in powers]


def cross_entropy(target: list[float], logits: list[float]) -> float:
    return -sum(t * math.log(p) for t, p in zip(target, softmax(logits), strict=True))


LOGITS, DISTILLED, TOLD, TARGET = [1.0, -0.5, 0.2], [0.3, 0.1, -1.0], [0.5, 2.0, -1.0], [0.9, 0.05, 0.05]


def outputs(*parts: list[float]) -> tuple[torch.Tensor, ...]:
    return tuple(torch.tensor([part, part[::-1]]) for part in parts)


@pytest.mark.parametrize("alpha", [0.5, 0.2])
def test_hard_is_the_mean_of_the_labels_and_the_answer_of_the_teacher(alpha):
    task = Distil(CLASSES, teacher=None, hard=True, alpha=alpha)
    loss = task.loss(outputs(LOGITS, DISTILLED, TOLD), torch.tensor([TARGET, TARGET[::-1]]))
    expected = (1 - alpha) * cross_entropy(TARGET, LOGITS) + alpha * cross_entropy([0, 1, 0], DISTILLED)
    assert loss.tolist() == pytest.approx([expected] * 2, abs=1e-6)


def test_soft_is_the_divergence_at_a_temperature_times_its_square():
    task = Distil(CLASSES, teacher=None, hard=False, alpha=0.1, temperature=3.0)
    loss = task.loss(outputs(LOGITS, DISTILLED, TOLD), torch.tensor([TARGET, TARGET[::-1]]))
    t, s = softmax(TOLD, 3), softmax(DISTILLED, 3)
    divergence = sum(p * math.log(p / q) for p, q in zip(t, s, strict=True))
    expected = 0.9 * cross_entropy(TARGET, LOGITS) + 0.1 * 9 * divergence
    assert loss.tolist() == pytest.approx([expected] * 2, abs=1e-6)
    assert task.from_teacher(*outputs(TOLD, TOLD)).tolist() == pytest.approx([0, 0], abs=1e-6)


def test_several_labels_are_as_many_coins():
    coins = [1 / (1 + math.exp(-v / 2)) for v in DISTILLED], [1 / (1 + math.exp(-v / 2)) for v in TOLD]
    divergence = sum(p * math.log(p / q) + (1 - p) * math.log((1 - p) / (1 - q)) for q, p in zip(*coins, strict=True))
    soft = Distil(CLASSES, multi_label=True, hard=False, temperature=2.0)
    assert soft.from_teacher(*outputs(DISTILLED, TOLD)).tolist() == pytest.approx([4 * divergence] * 2, abs=1e-6)
    hard = Distil(CLASSES, multi_label=True)
    answer = torch.tensor([[1.0, 1, 0], [0, 1, 1]])
    expected = F.binary_cross_entropy_with_logits(outputs(DISTILLED)[0], answer, reduction="none").sum(dim=1)
    assert torch.allclose(hard.from_teacher(*outputs(DISTILLED, TOLD)), expected)


def test_validation_and_class_weights_are_the_labels_affair():
    weights = torch.tensor([2.0, 0.5, 0.5])
    task, plain = (kind(CLASSES, class_weights=weights) for kind in (Distil, Classify))
    logits, told = outputs(LOGITS, TOLD)
    targets = torch.eye(3)[:2]
    assert torch.equal(task.loss(logits, targets), plain.loss(logits, targets))
    assert task.score(logits, targets) == plain.score(logits, targets)
    unweighted = Distil(CLASSES)
    assert torch.equal(task.from_teacher(logits, told), unweighted.from_teacher(logits, told))


# What the teacher sees and says.


def taught(pre: Preprocessing, student: Preprocessing, order: list[int] | None = None) -> Teacher:
    net = create_model("vit_nano2", num_classes=3, drop_path=0.5)
    return Teacher("somewhere", "vit_nano2", net, pre, student, order, "")


def test_the_teacher_sees_what_its_own_preprocessing_gives():
    student = Preprocessing(size=(8, 8), mean=(0.5, 0.4, 0.3), std=(0.2, 0.25, 0.3), crop=1.0)
    pre = Preprocessing(size=(8, 8), crop=1.0)
    pictures = [photograph(number, 12, 15) for number in range(4)]
    seen = taught(pre, student).seen(prepare(pictures, student))
    assert torch.allclose(seen, prepare(pictures, pre), atol=1e-6)
    x = prepare(pictures, student)
    assert taught(student, student).seen(x) is x


@pytest.mark.parametrize("interpolation", ["bicubic", "bilinear"])
@pytest.mark.parametrize("size", [(20, 20), (6, 9)])
def test_a_teacher_of_another_size_sees_the_same_picture_resized(size, interpolation):
    student = Preprocessing(size=(12, 12), mean=(0.5,) * 3, std=(0.5,) * 3, crop=1.0)
    pre = Preprocessing(size=size, interpolation=interpolation, fit="stretch")
    picture = fit_image(photograph(3, 30, 40), student)
    seen = taught(pre, student).seen(to_tensor(picture, student)[None])
    expected = to_tensor(fit_image(picture, pre), pre)
    assert seen.shape == (1, 3, *size)
    assert (seen[0] - expected).abs().max() < 1.01 / 255 / 0.224  # Pillow rounds to whole pixel values


def test_the_teacher_never_drops_learns_or_keeps_a_graph():
    pre = Preprocessing(size=(8, 8), crop=1.0)
    teacher, x = taught(pre, pre), torch.randn(4, 3, 8, 8)
    first = teacher(x)
    assert torch.equal(first, teacher(x)) and not first.requires_grad
    assert not any(p.requires_grad for p in teacher.net.parameters())
    turned = taught(pre, pre, order=[2, 0, 1])
    turned.net.load_state_dict(teacher.net.state_dict())
    assert torch.equal(turned(x), first[:, [2, 0, 1]])


def test_classes_in_another_order_are_put_into_the_order_of_the_data(teacher, tmp_path):
    checkpoint = read_checkpoint(teacher)
    pre = checkpoint.preprocessing
    straight = load_teacher(str(teacher), CLASSES, False, pre, torch.device("cpu"))
    turned = load_teacher(str(teacher), CLASSES[::-1], False, pre, torch.device("cpu"))
    x = torch.randn(5, 3, 8, 8)
    assert straight.order is None and turned.order == [2, 1, 0]
    assert torch.equal(turned(x), straight(x).flip(1))
    assert straight.figures["top1"] == checkpoint.about["metrics"]["top1"] and straight.figures["n"] == 12
    bare = save_weights(create_model("vit_nano2", num_classes=3), tmp_path / "bare.safetensors")
    unnamed = load_teacher(str(bare), CLASSES, False, pre, torch.device("cpu"))
    assert "its classes have no names" in unnamed.words() and "accuracy" in straight.words()


# In the loop.


def test_both_see_the_same_mixed_pixels_and_both_heads_are_trained():
    shown = []

    def answer(pixels: torch.Tensor) -> torch.Tensor:
        shown.append(pixels.clone())
        return torch.zeros(len(pixels), 4)

    model = create_model("vit_nano2", depth=2, num_classes=4, distillation_token=True)
    trainer = make_trainer(model, images=make_images(16), batch_size=8, mixup=0.8, cutmix=1.0, micro_batch=4)
    trainer.task = Distil(trainer.task.classes, teacher=answer)
    trainer.net = trainer.task.trained(model)
    given = []
    trainer.net.register_forward_pre_hook(lambda _, inputs: given.append(inputs[0].clone()))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    trainer.run()
    assert len(shown) == len(given) == 4
    assert all(torch.equal(a, b) for a, b in zip(shown, given, strict=True))
    changed = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert {"head.output.weight", "head_distillation.output.weight", "distillation_token"} <= changed


def test_what_is_trained_has_the_weights_of_the_model_and_gives_both_heads():
    model = create_model("vit_nano2", num_classes=3, distillation_token=True).eval()
    both = Distil(CLASSES).trained(model)
    assert isinstance(both, BothHeads) and {*both.parameters()} == {*model.parameters()}
    x = torch.randn(2, 3, 8, 8)
    heads = both(x)
    assert torch.equal(model(x), (heads[0] + heads[1]) / 2) and not torch.equal(*heads)
    plain = create_model("vit_nano2", num_classes=3)
    assert Distil(CLASSES).trained(plain) is plain and Classify(CLASSES).trained(model) is model


def test_compiled_it_gives_the_same_losses():
    model = create_model("vit_nano2", depth=1, num_classes=3, distillation_token=True)
    pre = Preprocessing(size=(8, 8), crop=1.0)
    teacher = taught(Preprocessing(size=(10, 10), **{"mean": (0.5,) * 3, "std": (0.5,) * 3}), pre)
    task = Distil(CLASSES, teacher=teacher, hard=False, temperature=3.0)
    x, targets = torch.randn(4, 3, 8, 8), torch.eye(3)[[0, 1, 2, 0]]
    expected = task.loss(task.outputs(task.trained(model), x), targets)
    teacher.net.compile(backend="aot_eager")
    compiled = torch.compile(task.trained(model), backend="aot_eager")
    loss = task.loss(task.outputs(compiled, x), targets)
    assert torch.allclose(loss, expected, atol=1e-6)
    loss.sum().backward()
    assert all(p.grad is not None for p in model.parameters())


# How good it is.


def test_a_teacher_is_told_from_chance():
    truth = torch.arange(200) % 4
    answers = torch.where(torch.arange(200) % 3 > 0, truth, (truth + 1) % 4)
    score, chance, clearly = against_chance(torch.eye(4)[answers], torch.eye(4)[truth], False)
    assert (score, clearly) == (0.665, True) and chance == pytest.approx(0.25, abs=0.02)
    shifted = torch.eye(4)[(truth + 1) % 4]  # a good one, of classes in another order
    assert against_chance(shifted, torch.eye(4)[truth], False)[::2] == (0.0, False)
    common = torch.eye(4)[(torch.arange(200) > 180).long()]  # nine of ten are right when only one class is ever said
    score, chance, clearly = against_chance(torch.eye(4)[[0] * 200], common, False)
    assert score == pytest.approx(0.905) and chance == pytest.approx(0.905) and not clearly


def test_a_teacher_of_several_labels_is_told_from_chance():
    draws = torch.Generator().manual_seed(0)
    targets = (torch.rand(300, 6, generator=draws) < 0.2).float()
    noise = torch.randn(300, 6, generator=draws)
    score, chance, clearly = against_chance(noise, targets, True)
    assert not clearly and score == pytest.approx(chance, abs=0.05) and chance == pytest.approx(0.2, abs=0.05)
    score, _, clearly = against_chance(noise + targets, targets, True)
    assert clearly and score > 0.3


def test_a_teacher_is_measured_on_some_images_and_draws_nothing():
    pre = Preprocessing(size=(8, 8), crop=1.0)
    images = make_images(30, classes=3)
    images.numbers = np.resize(images.numbers, 3 * MEASURED // 2)
    numbers, weighed, teacher = images.numbers, np.ones(len(images.numbers)), taught(pre, pre)
    images.weights, state = weighed, torch.get_rng_state()
    lines = how_good(teacher, Classify(CLASSES), images, Processes(), torch.float32)
    assert "on 2,000 validation images." in lines[0]
    assert images.numbers is numbers and images.weights is weighed
    assert torch.equal(torch.get_rng_state(), state) and not teacher.net.training


def test_of_images_whose_classes_come_in_turn_some_of_each_class_are_looked_at():
    """Every third of these would be of the one class that this teacher ever says."""
    pre, images = Preprocessing(size=(8, 8), crop=1.0), make_images(30, classes=3)
    images.numbers, teacher = np.resize(images.numbers, 3 * MEASURED), taught(pre, pre)
    torch.nn.init.zeros_(teacher.net.head.output.weight)
    said, warning = how_good(teacher, Classify(CLASSES), images, Processes(), torch.float32)
    assert 0.3 < float(said.removeprefix("Teacher: accuracy ").partition("%")[0]) / 100 < 0.37
    assert "not clearly better than chance" in warning


HEADER = {"recipe": {"seed": 0, "val": 0.2, "refit": "off"}, "data": "pets", "finished": True}


@pytest.mark.parametrize(
    ("about", "own_val", "may"),
    [
        (HEADER, False, False),
        (HEADER | {"recipe": {"seed": 1, "val": 0.2, "refit": "off"}}, False, True),
        (HEADER | {"recipe": {"seed": 0, "val": 0.1, "refit": "off"}}, False, True),
        (HEADER | {"recipe": {"seed": 1, "val": 0.1, "refit": "off"}}, True, False),  # both validate on val/
        (HEADER | {"recipe": {"seed": 0, "val": 0.2, "refit": "on"}}, False, True),
        (HEADER | {"data": "birds"}, False, True),
        (HEADER | {"data": "birds"}, True, True),
        ({}, False, False),
        ({"record": "of another program"}, False, False),
    ],
)
def test_a_teacher_may_know_what_its_own_run_did_not_hold_out(about, own_val, may):
    pre = Preprocessing(size=(8, 8), crop=1.0)
    teacher = taught(pre, pre)
    teacher.about = about
    assert teacher.may_know(HEADER, own_val) is may


def retold(teacher: Path, path: Path, **about) -> Path:
    """The same teacher, whose header says something else."""
    checkpoint = read_checkpoint(teacher)
    return save_weights(model_from(checkpoint), path, labels=CLASSES, about=checkpoint.about | about)


def test_of_images_that_a_teacher_may_have_learned_from_its_own_figure_counts(data, teacher, tmp_path, capsys):
    options = small_options(epochs=1, seed=1)  # divides the images otherwise than the teacher's run
    good = vitrail.load(teacher, device="cpu").about["metrics"]["top1"]
    vitrail.train(data, **options, out=tmp_path / "run", teacher=teacher)
    said = capsys.readouterr().out
    assert f"Teacher: accuracy {good:.1%} on its own 12 validation images; " in said and "Warning" not in said
    assert "% on 12 validation images here, from which it may have learned.\n" in said
    bad = retold(teacher, tmp_path / "bad.safetensors", metrics={"top1": 0.34, "n": 600})
    vitrail.train(data, **options, out=tmp_path / "warned", teacher=bad)
    said = capsys.readouterr().out
    assert "Teacher: accuracy 34.0% on its own 600 validation images; " in said
    assert "  Warning: 34.0% is not clearly better than chance (3" in said
    unsaid = retold(teacher, tmp_path / "unsaid.safetensors", metrics={"epoch": 4})
    vitrail.train(data, **options, out=tmp_path / "flattered", teacher=unsaid)
    said = capsys.readouterr().out
    assert "% on 12 validation images, which may flatter it: it may have learned from them.\n" in said


def test_a_run_says_how_good_its_teacher_is(data, teacher, tmp_path, capsys):
    options = small_options(epochs=1)
    good = vitrail.load(teacher, device="cpu").about["metrics"]["top1"]
    vitrail.train(data, **options, out=tmp_path / "run", teacher=teacher)
    said = capsys.readouterr().out
    assert f"Teacher: accuracy {good:.1%} on 12 validation images.\n" in said and "Warning" not in said
    model = create_model("vit_nano2", num_classes=3)
    torch.nn.init.zeros_(model.head.output.weight)  # one answer to all
    stubborn = save_weights(model, tmp_path / "stubborn.safetensors", labels=CLASSES)
    vitrail.train(data, **options, out=tmp_path / "other", teacher=stubborn)
    said = capsys.readouterr().out
    assert "Teacher: accuracy 33.3% on 12 validation images.\n" in said
    assert "  Warning: that is not clearly better than chance (33.3%), so there is little to learn from it: " in said
    vitrail.train(data, **options, out=tmp_path / "blind", teacher=stubborn, val=0)
    assert "Teacher:" not in capsys.readouterr().out


# Runs.


def test_a_run_says_how_it_learns_and_records_from_whom(data, teacher, tmp_path, capsys):
    run = vitrail.train(data, **small_options(epochs=1, out=tmp_path / "run", teacher=teacher))
    said = capsys.readouterr().out
    assert "vit_nano2 from scratch: --weights none. It gets a distillation token, to learn from the teacher" in said
    row = next(line for line in said.splitlines() if line.startswith("  teacher "))
    assert str(teacher) in row and "vit_nano2 at 8×8; accuracy" in row and "on its own 12 validation images" in row
    assert "hard  better than soft in DeiT's paper, by a distillation token; the mean of its head and the" in said
    predictor = vitrail.load(run, device="cpu")
    assert predictor.model.settings.distillation_token
    record = json.loads((run.folder / "run.json").read_text())
    weights = digest(read_checkpoint(teacher).state)
    assert record["teacher"]["weights"] == weights and record["teacher"]["source"] == str(teacher)
    assert (record["recipe"]["distill"], record["recipe"]["alpha"], record["recipe"]["temperature"]) == (
        "hard",
        0.5,
        None,
    )
    about = predictor.about["teacher"]
    assert about["source"] == "teacher" and about["weights"] == weights and about["figures"]["n"] == 12
    assert predictor.about["recipe"]["teacher"] == "teacher"  # a name, not a place on this machine


def test_where_the_blocks_are_frozen_a_token_would_learn_nothing(data, teacher, tmp_path, capsys):
    options = {name: value for name, value in small_options().items() if name != "model"} | {"weights": teacher}
    vitrail.train(data, **options, tune="head", epochs=1, out=tmp_path / "run", teacher=teacher)
    assert "on its logits: a distillation token would have to learn, and with --tune head" in capsys.readouterr().out


def test_a_student_without_a_class_token_learns_with_its_logits(data, teacher, tmp_path, capsys):
    options = small_options(model="tv:shufflenet_v2_x0_5", image_size=8, batch_size=24)
    run = vitrail.train(data, **options, epochs=1, out=tmp_path / "run", teacher=teacher, distill="soft", temperature=2)
    said = capsys.readouterr().out
    assert "soft  as asked, on its logits: it reads no class token, beside which a distillation token would" in said
    recipe = json.loads((run.folder / "run.json").read_text())["recipe"]
    assert (recipe["alpha"], recipe["temperature"]) == (0.1, 2)


def test_weights_keep_what_they_have_and_get_a_token(data, teacher, tmp_path):
    """Also the second time, on all images."""
    options = small_options(model=None, weights=teacher, epochs=1, refit="on", drop_path=0.0)
    run = vitrail.train(data, **options, out=tmp_path / "run", teacher=teacher)
    settings = vitrail.load(run, device="cpu").model.settings
    assert settings.distillation_token and settings.depth == 4
    assert [row["epoch"] for row in rows(run.folder)] == [0, 1]


def test_distillation_beats_none_at_equal_steps(tmp_path):
    """The student has a few pictures, every second with a wrong label; the teacher had more, and better."""
    clean = make_folder(tmp_path / "clean", count=160, classes=4, start=1000)
    options = small_options(augment="light", val=0.2, batch_size=16)
    teacher = vitrail.train(clean, **options, epochs=6, out=tmp_path / "teacher")
    chance = np.random.default_rng(0)
    for number in range(64):
        index = number % 4
        label = index if chance.uniform() < 0.4 else int(chance.integers(4))
        path = tmp_path / "noisy" / "train" / f"class {label}" / f"{number:03d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        photograph(number, 12, 15, hue=index / 4).save(path)
    make_folder(tmp_path / "noisy" / "val", count=120, classes=4, start=2000)
    options |= {"epochs": 6, "val": None}
    score = {}
    for how in ("none", "hard", "soft"):
        more = {} if how == "none" else {"teacher": teacher, "distill": how}
        more |= {"alpha": 0.5} if how == "soft" else {}
        score[how] = vitrail.train(tmp_path / "noisy", **options, **more, out=tmp_path / how).metrics["top1"]
    assert teacher.metrics["top1"] > 0.95
    assert score["none"] < 0.85 and min(score["hard"], score["soft"]) > 0.95, score


RANDOM = ["--drop-path", "0.3", "--augment", "strong", "--mixup", "0.4", "--cutmix", "1", "--ema", "0.9"]
OPTIONS = [*SMALL, "--epochs", "2", "--batch-size", "8", *RANDOM]


def test_a_run_that_is_killed_and_resumed_elsewhere_ends_with_the_same_bits(data, teacher, tmp_path):
    shutil.copytree(teacher, tmp_path / "teacher")
    whole, folder, log = tmp_path / "whole", tmp_path / "run", tmp_path / "log"
    command = Command("train", data, *OPTIONS, "--teacher", "teacher", "--out", whole, log=log)
    assert command.wait() == 0, command.said
    at = ("vitrail.training.trainer.Trainer._step", 4, signal.SIGTERM)
    command = Command("train", data, *OPTIONS, "--teacher", "teacher", "--out", folder, log=log, at=at)
    assert command.wait() == 130, command.said
    state = torch.load(folder / "last.pt", weights_only=True)
    assert (state["epoch"], state["step"]) == (0, 5)
    again = Command("train", "--out", folder, "--resume", log=log, cwd=data)  # where there is no folder "teacher"
    assert again.wait() == 0, again.said
    assert differences(whole, folder) == []


def test_a_teacher_may_move_but_not_change(data, teacher, tmp_path):
    shutil.copytree(teacher, tmp_path / "teacher")
    folder, log = tmp_path / "run", tmp_path / "log"
    at = ("vitrail.training.trainer.Trainer._step", 9, signal.SIGTERM)
    command = Command("train", data, *OPTIONS, "--teacher", "teacher", "--out", folder, log=log, at=at)
    assert command.wait() == 130, command.said
    (tmp_path / "teacher").rename(tmp_path / "moved")
    gone = r"^The teacher of this run is no longer at .*/teacher: say where it is with --teacher\.$"
    with pytest.raises(VitrailError, match=gone):
        vitrail.train(out=folder, resume=True)
    other = save_weights(create_model("vit_nano2", num_classes=3), tmp_path / "other.safetensors", labels=CLASSES)
    with pytest.raises(VitrailError, match=r"has other weights than when the run began: start a new run\.$"):
        vitrail.train(out=folder, resume=True, teacher=other)
    vitrail.train(out=folder, resume=True, teacher=tmp_path / "moved")
    assert [row["epoch"] for row in rows(folder)] == [1, 2]


def test_two_processes_learn_from_a_teacher_what_one_does(data, teacher, tmp_path):
    options = [*SMALL, "--epochs", "2", "--batch-size", "9", *QUIET, "--teacher", teacher]
    together(1, "train", data, *options, "--out", tmp_path / "one", log=tmp_path / "log")
    together(2, "train", data, *options, "--out", tmp_path / "two", log=tmp_path / "log")
    for a, b in zip(rows(tmp_path / "one"), rows(tmp_path / "two"), strict=True):
        assert b["train_loss"] == pytest.approx(a["train_loss"], abs=1e-6)
        assert b["val_loss"] == pytest.approx(a["val_loss"], abs=1e-6)


# Refusals.


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            {"teacher": "nowhere"},
            "--teacher: There is no file or folder nowhere; give a checkpoint, a folder, or hf://org/name.",
        ),
        ({"distill": "hard"}, "--distill goes with --teacher, and there is none."),
        ({"alpha": 0.3}, "--alpha goes with --teacher, and there is none."),
        ({"teacher": "x", "temperature": 2.0}, "--temperature goes with --distill soft: a hard answer has none."),
        ({"teacher": "x", "distill": "soft", "temperature": 0}, "--temperature must be at least 0.01, got 0."),
        ({"teacher": "x", "alpha": 1.5}, "--alpha must be from 0 to 1, got 1.5."),
        ({"teacher": "x", "distill": "warm"}, "--distill warm is not known: use hard, soft."),
        (
            {"model": "swin_t_distilled"},
            "swin_t has no place for a distillation token, which stands beside a class token that is read: leave "
            "_distilled out, and with --teacher its logits are distilled.",
        ),
    ],
)
def test_options_that_can_not_be_meant(data, tmp_path, options, sentence):
    with pytest.raises(VitrailError) as caught:
        vitrail.train(data, **{**small_options(epochs=1, out=tmp_path / "run"), **options})
    assert str(caught.value).startswith(sentence)
    assert not (tmp_path / "run").exists()


def test_a_teacher_that_can_not_teach_this_is_one_sentence(data, teacher, tmp_path):
    options = small_options(epochs=1, out=tmp_path / "run")

    def refused(**more) -> str:
        with pytest.raises(VitrailError) as caught:
            vitrail.train(data, **{**options, **more})
        assert not (tmp_path / "run").exists()
        return str(caught.value)

    labels = ["class 0", "class 1", "zebra"]
    other = save_weights(create_model("vit_nano2", num_classes=3), tmp_path / "other.safetensors", labels=labels)
    assert refused(teacher=other) == (
        f"The teacher {other} knows other classes than the data: it does not know class 2 and the data has no zebra; "
        "train one on this data first."
    )
    more = save_weights(create_model("vit_nano2", num_classes=5), tmp_path / "more.safetensors")
    assert refused(teacher=more) == (
        f"The teacher {more} knows 5 classes and the data has 3; train one on this data first."
    )
    features = save_weights(create_model("vit_nano2", num_classes=0), tmp_path / "features.safetensors")
    assert refused(teacher=features).startswith(f"The teacher {features} has no classes, only features: train one")
    several = save_weights(
        create_model("vit_nano2", num_classes=3), tmp_path / "several.safetensors", labels=CLASSES,
        about={"multi_label": True},
    )  # fmt: skip
    assert (
        refused(teacher=several) == f"The teacher {several} gives several labels per image and the data has one label."
    )
    grey = save_weights(create_model("vit_nano2", num_classes=3, channels=1), tmp_path / "grey.safetensors")
    assert "sees pictures of 1 channels and the student of 3" in refused(teacher=grey)
    dense = Segmenter(create_model("vit_nano2"), 3, "linear")
    segmenter = save_weights(dense, tmp_path / "segmenter.safetensors", labels=CLASSES)
    assert (
        refused(teacher=segmenter) == f"The teacher {segmenter} is a segmenter or a detector: a classifier is needed."
    )
    sentence = refused(teacher=teacher, tune="probe", weights=teacher, model=None)
    assert sentence == "--tune probe solves for a head from the labels alone: leave --teacher out."
