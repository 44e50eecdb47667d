"""Patches and their neighbours: the module against sums by hand, its kernels against the module."""

import pytest
import torch

from tests.models.kernels import errors_of
from tests.models.restatements import image
from vitrail.models import create_model
from vitrail.models.neighbours import Neighbours

SHAPES = [(2, 0, 8, 8, 20), (2, 1, 5, 7, 80), (1, 2, 3, 1, 33)]  # B, tokens in front, h, w, D


def test_each_patch_gets_the_weighted_sum_of_those_around_it():
    torch.manual_seed(0)
    layer, (h, w), prefix = Neighbours(5).double(), (3, 4), 2
    x = torch.randn(2, prefix + h * w, 5, dtype=torch.float64)
    grid = x[:, prefix:].reshape(2, h, w, 5)
    made = x.clone()
    for row in range(h):
        for column in range(w):
            total = layer.bias.detach().expand(2, 5).clone()
            for dy in (-1, 0, 1):
                for dx in (-1, 0, 1):
                    if 0 <= row + dy < h and 0 <= column + dx < w:
                        total += grid[:, row + dy, column + dx] * layer.weight.detach()[:, 0, dy + 1, dx + 1]
            made[:, prefix + row * w + column] += total
    torch.testing.assert_close(layer(x, (h, w)), made, rtol=0, atol=1e-12)


PROGRAM = """
import json, sys, torch
from vitrail.models.neighbours import Neighbours, mix_neighbours, mix_neighbours_backward

device, errors = sys.argv[1], []
for b, prefix, h, w, d in json.loads(sys.argv[2]):
    torch.manual_seed(d)
    layer = Neighbours(d).double()
    torch.nn.init.normal_(layer.weight)
    x = torch.randn(b, prefix + h * w, d, dtype=torch.float64).requires_grad_()
    wanted = layer(x, (h, w))
    above = torch.randn_like(wanted).transpose(0, 1).contiguous().transpose(0, 1)  # not as x lies
    slopes = torch.autograd.grad(wanted, [x, layer.weight, layer.bias], above)
    given = [t.detach().float().to(device).requires_grad_() for t in (x, layer.weight, layer.bias)]
    out = mix_neighbours(*given, h, w)
    found = torch.autograd.grad(out, given, above.float().to(device))
    pairs = [(out, wanted), *zip(found, slopes)]
    if b == 1:  # as one is, so are all, and it takes the longest
        with_grad = (above.float().to(device), *(t.detach() for t in given[:2]), h, w)
        torch.library.opcheck(mix_neighbours, (*given, h, w), test_utils=("test_schema", "test_faketensor"))
        torch.library.opcheck(mix_neighbours_backward, with_grad, test_utils=("test_schema", "test_faketensor"))
    errors.append([(a.double().cpu() - c).abs().max().item() / c.abs().max().item() for a, c in pairs])
print(json.dumps(errors))
"""


def test_the_kernels_and_their_gradients_are_those_of_the_module():
    pytest.importorskip("triton", reason="Triton comes with PyTorch for NVIDIA GPUs, and is not installed here")
    for shape, errors in zip(SHAPES, errors_of(PROGRAM, SHAPES), strict=True):
        assert max(errors) < 1e-5, (shape, errors)


def test_a_model_of_any_grid_sees_beyond_a_patch_without_attention():
    """One block whose attention and MLP say nothing: what is left of a patch's influence is its neighbours."""
    model = create_model("vit_nano4:local=True,depth=1,image_size=32", num_classes=3).eval()
    for part in (model.blocks[0].attention.proj, model.blocks[0].mlp.fc2):
        torch.nn.init.zeros_(part.weight)
    torch.nn.init.ones_(model.blocks[0].local.weight)
    x = image(1, 3, 32, 40, dtype=torch.float32)
    other = x.clone()
    other[..., 12:16, 16:20] += 1  # the patch in row 3, column 4 of 8×10
    with torch.no_grad():
        tokens = [model.features(each)["map/0"] for each in (x, other)]
    changed = (tokens[0] - tokens[1]).abs().amax(dim=1)[0] > 1e-6
    rows, columns = changed.nonzero().unbind(1)
    assert {*rows.tolist()} == {2, 3, 4} and {*columns.tolist()} == {3, 4, 5}
