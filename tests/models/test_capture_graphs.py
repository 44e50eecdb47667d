"""`capture` where PyTorch follows the computation: gradients, checkpointing, torch.compile."""

import itertools

import pytest
import torch

from tests.models.restatements import image, randomised
from tests.models.unfused import MODELS, VIT, as_tuple, close, joined, model_of, run, unfused
from vitrail.errors import VitrailError
from vitrail.models import VisionTransformer, capture
from vitrail.models.tuning import tune


@pytest.mark.parametrize(
    "name", ["learned", "relative", "rotary", "distilled", "mae", "swin_v1_timm", "swin_v2_torchvision_masked"]
)
def test_gradients_are_those_of_autograd_through_the_unfused_maps(name):
    model, x = randomised(MODELS[name]()), image(2, 3, 18, 29)
    reference, expected = unfused(model)
    plain = as_tuple(run(reference, x))[0]
    for window in itertools.chain(*expected):
        window.retain_grad()
    plain.square().sum().backward()
    with capture(model, gradients=True) as maps:
        out = as_tuple(run(model, x))[0]
    out.square().sum().backward()  # the capture may have ended
    for layer, windows in enumerate(expected):
        true = joined([window.grad for window in windows], maps[layer])
        scale = true.abs().max()
        assert scale > 1e-6 and maps.gradients[layer].shape == true.shape
        close(maps.gradients[layer] / scale, true / scale)


def test_gradients_follow_heads_and_reductions():
    model, x = model_of("relative"), image(2, 3, 12, 12, dtype=torch.float32)
    with (
        capture(model, gradients=True) as maps,
        capture(model, heads=[1], gradients=True) as second,
        capture(model, reduce="cls_row", gradients=True) as rows,
        capture(model, reduce="mean_heads", gradients=True, to="cpu") as mean,
        capture(model, reduce=lambda map, gradient: (map * gradient).clamp(min=0).mean(1), gradients=True) as relevance,
    ):
        out = model(x)[:, 3].sum()
        assert len(relevance) == 0
        out.backward()
    for layer, gradient in maps.gradients.items():
        close(second.gradients[layer], gradient[:, [1]])
        close(rows.gradients[layer], gradient[:, :, 0])
        close(mean.gradients[layer], gradient.mean(1))
        close(relevance[layer], (maps[layer] * gradient).clamp(min=0).mean(1))
    assert sorted(maps.gradients) == sorted(relevance) == [0, 1, 2] and maps.gradients[-1] is maps.gradients[2]


def test_gradients_reach_the_maps_of_a_frozen_model():
    model, x = model_of("learned"), image(1, 3, 12, 12, dtype=torch.float32)
    with capture(model, gradients=True) as expected:
        model(x).sum().backward()
    before = model.requires_grad_(False)(x)
    with capture(model, gradients=True) as maps:
        out = model(x)
        out.sum().backward()
    assert torch.equal(out, before) and not model(x).requires_grad
    for layer in range(3):
        close(maps.gradients[layer], expected.gradients[layer])


def test_gradients_that_can_not_be_had_are_refused():
    model, x = model_of("learned"), image(1, 3, 12, 12, dtype=torch.float32)
    with capture(model) as maps:
        model(x).sum().backward()
    with pytest.raises(VitrailError, match="capture with gradients=True, then call backward"):
        maps.gradients[0]
    for mode in (torch.no_grad(), torch.inference_mode()):
        with pytest.raises(VitrailError, match="outside of no_grad"), mode, capture(model, gradients=True):
            model(x)
    model = randomised(VisionTransformer(**VIT, attention_dropout=0.1)).float().train()
    with pytest.raises(VitrailError, match="Attention dropout makes the gradient"), capture(model, gradients=True):
        model(x)


@pytest.mark.parametrize("name", ["relative", "mae", "swin_v1_timm"])
def test_checkpointed_blocks_give_the_same_maps_and_gradients(name):
    model, x = model_of(name).train(), image(2, 3, 24, 24, dtype=torch.float32)
    weight = (model.encoder if name == "mae" else model).patch.weight
    results = []
    for checkpointing in (False, True):
        model.zero_grad()
        model.gradient_checkpointing = checkpointing
        with capture(model, gradients=True) as maps:
            loss = as_tuple(run(model, x))[0].square().sum()
        loss.backward()  # runs the blocks again, after the capture has ended
        results.append((dict(maps), dict(maps.gradients), weight.grad.clone()))
    (maps, gradients, expected), (again, gradients_again, found) = results
    assert torch.allclose(found, expected, rtol=1e-4, atol=1e-6)
    for layer in maps:
        assert torch.equal(again[layer], maps[layer])
        assert torch.allclose(gradients_again[layer], gradients[layer], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["relative", "mae", "swin_v1_timm"])
def test_a_compiled_model_is_captured_without_a_graph_break_or_a_new_graph_each_time(name):
    torch._dynamo.reset()
    model, graphs = model_of(name), []
    compiled = torch.compile(model, fullgraph=True, backend=lambda graph, _: graphs.append(1) or graph.forward)
    token = (1, 2) if "swin" in name else "class"
    with torch.no_grad():
        for seed in range(3):
            x = image(2, 3, 18, 29, seed=seed, dtype=torch.float32)
            run(compiled, x)
            with capture(compiled) as maps:
                found = run(compiled, x)
            with capture(model) as expected:
                assert torch.equal(as_tuple(found)[0], as_tuple(run(model, x))[0])
            assert sorted(maps) == sorted(expected)
            for layer in expected:
                close(maps[layer], expected[layer], atol=1e-6)
                close(maps.row(layer, token), expected.row(layer, token), atol=1e-6)
    assert len(graphs) == 2


def test_inductor_keeps_the_maps_and_the_reductions():
    torch._dynamo.reset()
    model, x = randomised(VisionTransformer(**VIT | {"depth": 1})).float(), image(2, 3, 12, 12, dtype=torch.float32)
    compiled = torch.compile(model, fullgraph=True)
    with torch.no_grad(), capture(model) as maps, capture(model, reduce="cls_row") as rows:
        found = compiled(x)
    with torch.no_grad(), capture(model) as expected:
        close(found, model(x))
    close(maps[0], expected[0])
    close(rows[0], expected[0][:, :, 0])


def test_gradients_of_a_compiled_model_are_the_same_unless_its_graph_must_be_whole():
    torch._dynamo.reset()
    model, x = randomised(VisionTransformer(**VIT | {"depth": 1})).float(), image(2, 3, 12, 12, dtype=torch.float32)
    with capture(model, gradients=True) as expected:
        model(x).sum().backward()
    compiled = torch.compile(model, backend="aot_eager")
    with capture(compiled, gradients=True) as maps:
        compiled(x).sum().backward()
    close(maps.gradients[0], expected.gradients[0])
    torch._dynamo.reset()
    whole = torch.compile(model, backend="aot_eager", fullgraph=True)
    with pytest.raises(Exception, match="leave out fullgraph=True"), capture(whole, gradients=True):
        whole(x)


def test_a_compiled_model_with_prompts_is_captured_without_them():
    torch._dynamo.reset()
    model, x = tune(model_of("learned"), "prompt", tokens=4), image(1, 3, 12, 12, dtype=torch.float32)
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    with torch.no_grad():
        with capture(compiled) as maps:
            compiled(x)
        with capture(model) as expected:
            model(x)
    grid = expected[0].shape[-1]
    assert sorted(maps) == [0, 1, 2] and grid == 1 + maps.layouts[0].grid[0] * maps.layouts[0].grid[1]
    assert all(torch.equal(maps[layer], expected[layer]) for layer in maps)
