"""Muon beside its definition, on real models, and in runs that stop and go on."""

import weakref

import pytest
import torch

import vitrail
from tests.training.support import differences, make_folder, small_options, watch_steps
from vitrail.errors import VitrailError
from vitrail.models import create_model
from vitrail.models.tuning import tune
from vitrail.training import muon
from vitrail.training.muon import Muon, orthogonal
from vitrail.training.optimization import hidden, make_optimizer
from vitrail.training.signals import Stopped


@pytest.mark.parametrize("shape", [(3, 32, 32), (2, 16, 48), (2, 48, 16)])
def test_singular_values_come_near_one_and_directions_stay(shape):
    matrices = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    found = orthogonal(matrices)
    values = torch.linalg.svdvals(found)
    assert values.min() > 0.3 and values.max() < 1.3  # the least of a square one is still on its way
    u, _, v = torch.linalg.svd(matrices, full_matrices=False)
    turned = u.mT @ found @ v.mT
    assert (turned - torch.diag_embed(turned.diagonal(dim1=1, dim2=2))).abs().max() < 1e-4


def test_a_matrix_learns_as_with_pytorchs_muon_and_a_vector_as_with_adamw():
    """That of PyTorch orthogonalises in bf16."""
    torch.manual_seed(0)
    start, lr, decay = [torch.randn(24, 16), torch.randn(24)], 0.01, 0.1
    (matrix, vector), (plain, other) = ([torch.nn.Parameter(p.clone()) for p in start] for _ in range(2))
    groups = [{"params": [matrix], "parts": [1], "weight_decay": decay}, {"params": [vector], "parts": None}]
    optimizers = [
        Muon(groups, lr=lr, weight_decay=0.0),
        torch.optim.Muon([plain], lr=lr, weight_decay=decay, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW([other], lr=lr, weight_decay=0.0),
    ]
    for _ in range(5):
        for ours, theirs in ((matrix, plain), (vector, other)):
            ours.grad = torch.randn_like(ours)
            theirs.grad = ours.grad.clone()
        for optimizer in optimizers:
            optimizer.step()
    moved = (matrix - start[0]).detach().abs().mean()
    assert (matrix - plain).detach().abs().mean() < 0.03 * moved
    torch.testing.assert_close(vector.detach(), other.detach())


@pytest.mark.parametrize("as_tensors", [False, True])
def test_matrices_of_one_shape_learn_together_each_as_it_would_alone(as_tensors):
    """Lying or standing, a convolution or a part of three, each at the rate and decay of its own group."""
    torch.manual_seed(0)
    shapes = {"wide": (8, 24), "tall": (24, 8), "other": (8, 24), "stacked": (72, 8), "convolution": (8, 6, 2, 2)}
    together, alone = ({n: torch.nn.Parameter(torch.randn(s)) for n, s in shapes.items()} for _ in range(2))
    for name, parameter in alone.items():
        parameter.data.copy_(together[name].data)

    def group(parameters, names, lr, decay):
        parts = [3 if name == "stacked" else 1 for name in names]
        rate = torch.tensor(lr) if as_tensors else lr  # as where a step is recorded
        return {"params": [parameters[name] for name in names], "parts": parts, "lr": rate, "weight_decay": decay}

    plan = {0.01: ["wide", "tall"], 0.03: ["stacked", "other"], 0.002: ["convolution"]}
    one = Muon([group(together, names, lr, 10 * lr) for lr, names in plan.items()], lr=0.1)
    several = [Muon([group(alone, [name], lr, 10 * lr)], lr=0.1) for lr, names in plan.items() for name in names]
    for _ in range(3):
        for name, parameter in together.items():
            parameter.grad = torch.randn_like(parameter)
            alone[name].grad = parameter.grad.clone()
        one.step()
        for optimizer in several:
            optimizer.step()
    for name, parameter in together.items():
        torch.testing.assert_close(parameter, alone[name])


def test_the_gradients_are_gone_when_the_products_begin(monkeypatch):
    """A large model has no room for both."""
    parameters = [torch.nn.Parameter(torch.randn(8, 4 * times)) for times in (1, 1, 3)]
    optimizer = Muon([{"params": parameters, "parts": [1, 1, 1]}], lr=1e-3)
    alive, seen = [], []
    smoothed = optimizer._smoothed

    def watched(group):
        found = smoothed(group)
        alive.extend(weakref.ref(gradient) for _, gradient in found)
        return found

    def counted(matrices):
        seen.append(([*matrices.shape], sum(gradient() is not None for gradient in alive)))
        return orthogonal(matrices)

    monkeypatch.setattr(optimizer, "_smoothed", watched)
    monkeypatch.setattr(muon, "orthogonal", counted)
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    assert seen == [([2, 4, 8], 1), ([1, 8, 12], 0)]  # the small ones first, while the large one waits


def test_queries_keys_and_values_are_three_matrices():
    torch.manual_seed(0)
    whole = torch.nn.Parameter(torch.randn(24, 8))
    pieces = [torch.nn.Parameter(part.clone()) for part in whole.detach().chunk(3)]
    one = Muon([{"params": [whole], "parts": [3]}], lr=0.01)
    three = Muon([{"params": pieces, "parts": [1, 1, 1]}], lr=0.01)
    for _ in range(2):
        whole.grad = torch.randn(24, 8)
        for piece, gradient in zip(pieces, whole.grad.chunk(3), strict=True):
            piece.grad = gradient.clone()
        one.step()
        three.step()
    torch.testing.assert_close(whole.detach(), torch.cat(pieces).detach())


def test_of_lora_the_upper_matrix_alone_is_three():
    model = tune(create_model("vit_nano4", num_classes=3), "lora", rank=4)
    optimizer = make_optimizer(model, "muon", 1e-3, 0.05, 1.0, (0.9, 0.999))
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    parts = {names[id(p)].split(".", 2)[2]: n for g in optimizer.param_groups if g["parts"]
             for p, n in zip(g["params"], g["parts"], strict=True)}  # fmt: skip
    assert parts == {"attention.qkv.lora_a": 1, "attention.qkv.lora_b": 3,
                     "attention.proj.lora_a": 1, "attention.proj.lora_b": 1}  # fmt: skip


@pytest.mark.parametrize("name", ["vit_mini4", "hybrid_mini4", "swin_t", "cpvt_ti16"])
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


@pytest.mark.parametrize(
    "more", [{"model": "tv:resnet18", "image_size": 32}, {"tune": "head"}, {"tune": "head", "task": "segment"}]
)
def test_where_no_matrix_learns_it_is_refused_before_anything_is_read(more, tmp_path):
    data = make_folder(tmp_path / "data", count=12)
    with pytest.raises(VitrailError, match="--optimizer muon") as info:
        vitrail.train(data, **small_options(optimizer="muon", epochs=1, **more), out=tmp_path / "run")
    assert info.value.code == "muon_without_matrices"
    assert not (tmp_path / "run").exists()


def test_a_run_that_was_stopped_goes_on_to_the_bit_and_learns(tmp_path, monkeypatch):
    data = make_folder(tmp_path / "data", count=48)
    options = small_options(optimizer="muon", epochs=2, batch_size=8)
    vitrail.train(data, **options, out=tmp_path / "whole")
    with monkeypatch.context() as patched, pytest.raises(Stopped):
        watch_steps(patched, stop_in=[7])
        vitrail.train(data, **options, out=tmp_path / "stopped")
    vitrail.train(out=tmp_path / "stopped", resume=True, device="cpu")
    assert differences(tmp_path / "whole", tmp_path / "stopped") == []
