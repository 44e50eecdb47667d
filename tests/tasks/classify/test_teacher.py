"""A teacher: what it sees and answers, how good it is found to be, and what it may have learned from."""

import re

import numpy as np
import pytest
import torch

import vitrail
from tests.odd_files import photograph
from tests.training.support import make_folder, make_images, small_options
from vitrail.data.preprocess import fit_image, prepare, to_tensor
from vitrail.distributed import Processes
from vitrail.models import Preprocessing, create_model
from vitrail.tasks.classify.distillation import Distil
from vitrail.tasks.classify.objective import Classify
from vitrail.tasks.classify.teacher import MEASURED, Teacher, against_chance, how_good, load_teacher
from vitrail.weights import read_checkpoint, save_weights

CLASSES = ["class 0", "class 1", "class 2"]


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
    data = make_folder(tmp_path_factory.mktemp("images"), count=60)
    return vitrail.train(data, **small_options(epochs=4, out=tmp_path_factory.mktemp("runs") / "teacher")).folder


# What the teacher sees and says.


def taught(pre: Preprocessing, student: Preprocessing, order: list[int] | None = None) -> Teacher:
    net = create_model("vit_nano2", num_classes=3, drop_path=0.5)
    return Teacher("somewhere", "vit_nano2", net, pre, student, order, "")


def test_the_teacher_sees_what_its_own_preprocessing_gives():
    student = Preprocessing(size=(8, 8), mean=(0.5, 0.4, 0.3), std=(0.2, 0.25, 0.3), crop=1.0)
    pre = Preprocessing(size=(8, 8), crop=1.0)
    images = [photograph(number, 12, 15) for number in range(4)]
    seen = taught(pre, student).seen(prepare(images, student))
    assert torch.allclose(seen, prepare(images, pre), atol=1e-6)
    x = prepare(images, student)
    assert taught(student, student).seen(x) is x


@pytest.mark.parametrize("interpolation", ["bicubic", "bilinear"])
@pytest.mark.parametrize("size", [(20, 20), (6, 9)])
def test_a_teacher_of_another_size_sees_the_same_image_resized(size, interpolation):
    student = Preprocessing(size=(12, 12), mean=(0.5,) * 3, std=(0.5,) * 3, crop=1.0)
    pre = Preprocessing(size=size, interpolation=interpolation, fit="stretch")
    image = fit_image(photograph(3, 30, 40), student)
    seen = taught(pre, student).seen(to_tensor(image, student)[None])
    expected = to_tensor(fit_image(image, pre), pre)
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
    assert straight.named and not unnamed.named and len(unnamed.words()) > len(unnamed.name)
    assert "accuracy" in straight.words() and "accuracy" not in unnamed.words()


def test_compiled_it_gives_the_same_losses():
    model = create_model("vit_nano2", depth=1, num_classes=3, distillation_token=True)
    pre = Preprocessing(size=(8, 8), crop=1.0)
    teacher = taught(Preprocessing(size=(10, 10), **{"mean": (0.5,) * 3, "std": (0.5,) * 3}), pre)
    task = Distil(CLASSES, teacher=teacher, hard=False, temperature=3.0)
    x, targets = torch.randn(4, 3, 8, 8), torch.eye(3)[[0, 1, 2, 0]]
    expected = task.loss(task.outputs(task.module(model), x), targets)
    teacher.net.compile(backend="aot_eager")
    compiled = torch.compile(task.module(model), backend="aot_eager")
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
    assert f" {MEASURED:,} " in lines[0]
    assert images.numbers is numbers and images.weights is weighed
    assert torch.equal(torch.get_rng_state(), state) and not teacher.net.training


def test_of_images_whose_classes_come_in_turn_some_of_each_class_are_looked_at():
    """Every third of these would be of the one class that this teacher ever says."""
    pre, images = Preprocessing(size=(8, 8), crop=1.0), make_images(30, classes=3)
    images.numbers, teacher = np.resize(images.numbers, 3 * MEASURED), taught(pre, pre)
    torch.nn.init.zeros_(teacher.net.head.output.weight)
    said, warning = how_good(teacher, Classify(CLASSES), images, Processes(), torch.float32)
    (score,) = re.findall(r"([\d.]+)%", said)
    assert 30 < float(score) < 37 and warning


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
