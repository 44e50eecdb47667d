"""Deformable attention against a plain loop, against transformers, and its gradients."""

import math

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from vitrail import VitrailError
from vitrail.models.dense.deformable import DeformableAttention, centres, extents, sample_levels

GRIDS = [(5, 7), (3, 4), (1, 2)]


def inputs(dtype: torch.dtype, queries: int = 6, heads: int = 2, d: int = 3, points: int = 4) -> tuple:
    generator = torch.Generator().manual_seed(0)
    total = sum(h * w for h, w in GRIDS)
    value = torch.randn(2, total, heads, d, generator=generator, dtype=dtype)
    # Some places lie outside, where there is nothing.
    locations = torch.rand(2, queries, heads, len(GRIDS), points, 2, generator=generator, dtype=dtype) * 1.4 - 0.2
    weights = torch.rand(2, queries, heads, len(GRIDS) * points, generator=generator, dtype=dtype).softmax(-1)
    return value, locations, weights.view(2, queries, heads, len(GRIDS), points)


def by_loops(value: torch.Tensor, locations: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    b, _, heads, d = value.shape
    out = torch.zeros(b, locations.shape[1], heads, d, dtype=torch.float64)
    for i, q, head, level, point in torch.cartesian_prod(*(torch.arange(n) for n in weights.shape)).tolist():
        h, w = GRIDS[level]
        first = sum(a * c for a, c in GRIDS[:level])
        x, y = (locations[i, q, head, level, point] * torch.tensor([w, h])).tolist()
        x, y = x - 0.5, y - 0.5  # values lie in the middle of their cells
        for row in (math.floor(y), math.floor(y) + 1):
            for column in (math.floor(x), math.floor(x) + 1):
                if 0 <= row < h and 0 <= column < w:
                    share = (1 - abs(y - row)) * (1 - abs(x - column)) * weights[i, q, head, level, point]
                    out[i, q, head] += share * value[i, first + row * w + column, head]
    return out.flatten(2)


def test_it_equals_a_plain_loop():
    value, locations, weights = inputs(torch.float64)
    found = sample_levels(value, GRIDS, locations, weights)
    assert (found - by_loops(value, locations, weights)).abs().max() < 1e-8


def test_it_equals_transformers():
    from transformers.models.deformable_detr.modeling_deformable_detr import MultiScaleDeformableAttention

    value, locations, weights = inputs(torch.float32)
    theirs = MultiScaleDeformableAttention()(
        value, torch.tensor(GRIDS), GRIDS, torch.tensor([0, 35, 47]), locations, weights, 64
    )
    assert (sample_levels(value, GRIDS, locations, weights) - theirs).abs().max() < 1e-5


def test_its_gradients_are_right():
    value, locations, weights = (t.requires_grad_() for t in inputs(torch.float64, queries=2, d=2, points=2))
    assert torch.autograd.gradcheck(lambda v, l, w: sample_levels(v, GRIDS, l, w), (value, locations, weights))


def test_half_precision_keeps_its_places():
    """Values are rounded, places are not: in bfloat16 a place on a map of 200 columns is off by half of one."""
    grid = [(1, 200)]
    value = torch.arange(200.0).view(1, 200, 1, 1).bfloat16()
    x = (torch.tensor([150.0, 199.0]) + 0.5) / 200
    locations = torch.stack([x, torch.full((2,), 0.5)], dim=-1).view(1, 2, 1, 1, 1, 2)
    found = sample_levels(value, grid, locations, torch.ones(1, 2, 1, 1, 1))
    assert found.dtype == torch.bfloat16 and found.flatten().tolist() == [150.0, 199.0]


def test_at_first_heads_look_in_different_directions_and_points_count_alike():
    layer = DeformableAttention(32, heads=4, levels=2, points=3)
    offsets = layer.offsets.bias.view(4, 2, 3, 2)
    assert torch.allclose(offsets[0, 0], torch.tensor([[1.0, 0], [2, 0], [3, 0]]), atol=1e-6)
    assert torch.allclose(offsets[1, 1], torch.tensor([[0.0, 1], [0, 2], [0, 3]]), atol=1e-6)
    assert layer.weights(torch.rand(5, 32)).abs().max() == 0


def test_a_query_reads_a_linear_map_at_its_own_place():
    """Offsets in all directions alike cancel on a map that rises evenly, away from its edges."""
    layer = DeformableAttention(4, heads=4, levels=1, points=1)
    with torch.no_grad():
        for linear in (layer.value, layer.proj):
            linear.weight.copy_(torch.eye(4))
    rising = centres((20, 20), (1, 1), (20, 20), torch.device("cpu"))[:, :1].expand(-1, 4)[None]
    places = torch.tensor([[[0.5, 0.5]], [[0.3, 0.7]]])
    found = layer(torch.zeros(1, 2, 4), places, rising, [(20, 20)])[0]
    # Each head is one channel and looks its own way: 1/20 right, down, left, up.
    expected = torch.tensor([[0.5 + 0.05, 0.5, 0.5 - 0.05, 0.5], [0.3 + 0.05, 0.3, 0.3 - 0.05, 0.3]])
    assert (found - expected).abs().max() < 1e-5


def test_the_sizes_of_levels_are_filled_in_on_the_device_and_copied_from_nowhere():
    """A CUDA graph can't record a copy from the host."""
    done = []

    class Noted(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            done.append(func.overloadpacket.__name__)
            return func(*args, **(kwargs or {}))

    with Noted():
        found = extents(GRIDS, torch.device("cpu"))
    assert found.tolist() == [[w, h] for h, w in GRIDS] and found.dtype == torch.float32
    assert set(done) == {"full", "stack", "view"}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU: on a CPU there is nothing to wait for")
def test_nothing_waits_for_the_gpu():
    layer, grid = DeformableAttention(16, 2, levels=1).cuda(), (4, 6)
    features, places = torch.randn(1, 24, 16).cuda(), centres(grid, (1, 1), grid, torch.device("cuda"))[:, None]
    layer(features, places, features, [grid])  # the first use sets things up
    torch.cuda.set_sync_debug_mode("error")
    try:
        layer(features, places, features, [grid])
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_a_width_that_heads_do_not_divide_is_refused():
    with pytest.raises(VitrailError, match="A width of 10 can't be divided among 4 heads"):
        DeformableAttention(10, heads=4, levels=1)
