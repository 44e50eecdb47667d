"""The losses of a student that learns from labels and from a teacher, by hand and in the loop."""

import math

import pytest
import torch
import torch.nn.functional as F

from tests.training.support import make_images, make_trainer
from vitrail.models import create_model
from vitrail.tasks.classify.distillation import BothHeads, Distil
from vitrail.tasks.classify.objective import Classify

CLASSES = ["class 0", "class 1", "class 2"]


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


def test_class_weights_and_validation_concern_the_labels_alone():
    weights = torch.tensor([2.0, 0.5, 0.5])
    task, plain = (kind(CLASSES, class_weights=weights) for kind in (Distil, Classify))
    logits, told = outputs(LOGITS, TOLD)
    targets = torch.eye(3)[:2]
    assert torch.equal(task.loss(logits, targets), plain.loss(logits, targets))
    assert task.score(logits, targets) == plain.score(logits, targets)
    unweighted = Distil(CLASSES)
    assert torch.equal(task.from_teacher(logits, told), unweighted.from_teacher(logits, told))


# In the loop.


def test_both_see_the_same_mixed_pixels_and_both_heads_are_trained():
    shown = []

    def answer(pixels: torch.Tensor) -> torch.Tensor:
        shown.append(pixels.clone())
        return torch.zeros(len(pixels), 4)

    model = create_model("vit_nano2", depth=2, num_classes=4, distillation_token=True)
    objective = Distil([f"class {index}" for index in range(4)], teacher=answer)
    trainer = make_trainer(
        model, images=make_images(16), objective=objective, batch_size=8, mixup=0.8, cutmix=1.0, micro_batch=4
    )
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
    both = Distil(CLASSES).module(model)
    assert isinstance(both, BothHeads) and {*both.parameters()} == {*model.parameters()}
    x = torch.randn(2, 3, 8, 8)
    heads = both(x)
    assert torch.equal(model(x), (heads[0] + heads[1]) / 2) and not torch.equal(*heads)
    plain = create_model("vit_nano2", num_classes=3)
    assert Distil(CLASSES).module(plain) is plain and Classify(CLASSES).module(model) is model
