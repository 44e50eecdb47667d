"""Muon beside its definition, on real models, and in runs that stop and go on."""

import pytest
import torch

import vitrail
from tests.train.support import differences, make_folder, small_options
from vitrail.errors import VitrailError
from vitrail.models import create_model
from vitrail.train import loop
from vitrail.train.muon import Muon, orthogonal
from vitrail.train.optimizer import hidden, make_optimizer


@pytest.mark.parametrize("shape", [(3, 32, 32), (2, 16, 48), (2, 48, 16)])
def test_singular_values_come_near_one_and_directions_stay(shape):
    matrices = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    found = orthogonal(matrices)
    values = torch.linalg.svdvals(found)
    assert values.min() > 0.3 and values.max() < 1.3  # the least of a square one is still on its way
    u, _, v = torch.linalg.svd(matrices, full_matrices=False)
    turned = u.mT @ found @ v.mT
    assert (turned - torch.diag_embed(turned.diagonal(dim1=1, dim2=2))).abs().max() < 1e-4


def test_steps_are_those_of_the_definition():
    """One matrix at a time, by the singular value decomposition: equal but for how far the quintic brings it."""
    torch.manual_seed(0)
    qkv, bias = torch.nn.Parameter(torch.randn(24, 8)), torch.nn.Parameter(torch.randn(24))
    plain, moment, lr, decay = qkv.detach().clone(), torch.zeros(24, 8), 0.01, 0.1
    groups = [{"params": [qkv], "parts": [3], "weight_decay": decay}, {"params": [bias], "parts": None}]
    muon, adam = Muon(groups, lr=lr), torch.optim.AdamW([other := torch.nn.Parameter(bias.detach().clone())], lr=lr)
    for _ in range(3):
        qkv.grad, gradient = torch.randn(24, 8), torch.randn(24)
        bias.grad, other.grad = gradient, gradient.clone()
        moment = 0.95 * moment + 0.05 * qkv.grad
        ahead = 0.05 * qkv.grad + 0.95 * moment
        plain *= 1 - lr * decay
        for rows in (slice(0, 8), slice(8, 16), slice(16, 24)):
            plain[rows] -= lr * 0.2 * 8**0.5 * orthogonal(ahead[rows][None])[0]
        muon.step()
        adam.step()
        assert qkv.grad is None
    torch.testing.assert_close(qkv.detach(), plain)
    torch.testing.assert_close(bias.detach(), other.detach())


@pytest.mark.parametrize("name", ["vit_mini4", "hybrid_mini4:stem=res2", "swin_t", "cpvt_ti16"])
def test_it_takes_the_matrices_between_the_first_layer_and_the_last(name):
    model = create_model(name, num_classes=10)
    inside = {n for n, p in model.named_parameters() if hidden(n, p)}
    first = "stages.0.0" if name == "swin_t" else "blocks.0"
    assert {f"{first}.attention.qkv.weight", f"{first}.mlp.fc2.weight"} <= inside
    assert not any(n.startswith(("head", "patch", "position", "stem.conv.")) or "bias" in n for n in inside)
    optimizer = make_optimizer(model, "muon", 1e-3, 0.05, 1.0, (0.9, 0.999))
    taken = sum(len(group["params"]) for group in optimizer.param_groups if group["parts"])
    assert taken == len(inside)
    assert sum(len(group["params"]) for group in optimizer.param_groups) == len([*model.parameters()])


def test_a_network_without_blocks_is_refused():
    with pytest.raises(VitrailError, match=r"^--optimizer muon is for the matrices in a transformer's blocks"):
        make_optimizer(create_model("tv:resnet18", num_classes=3), "muon", 1e-3, 0.05, 1.0, (0.9, 0.999))


def test_a_run_that_was_stopped_goes_on_to_the_bit_and_learns(tmp_path, monkeypatch):
    data = make_folder(tmp_path / "data", count=48)
    options = small_options(optimizer="muon", epochs=2, batch_size=8)
    vitrail.train(data, **options, out=tmp_path / "whole")
    step, done = loop.Trainer._step, []

    def stopping(trainer, *args):
        done.append(trainer)
        trainer.leave.asked = len(done) == 7
        return step(trainer, *args)

    with monkeypatch.context() as patched, pytest.raises(loop.Stopped):
        patched.setattr(loop.Trainer, "_step", stopping)
        vitrail.train(data, **options, out=tmp_path / "stopped")
    vitrail.train(out=tmp_path / "stopped", resume=True)
    assert differences(tmp_path / "whole", tmp_path / "stopped") == []
