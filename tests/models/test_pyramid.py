"""Maps at four strides from every backbone, and an adapter that leaves the ViT as it was."""

import pytest
import torch

from vitrail import VitrailError, create_model
from vitrail.models.dense.adapter import ViTAdapter
from vitrail.models.dense.backbone import make_pyramid
from vitrail.models.dense.pyramid import STRIDES, resample, to_stride

SMALL = {"depth": 4, "width": 48, "heads": 3, "num_classes": 0}
SIZES = [(64, 96), (70, 50), (33, 100)]


def build(kind: str, **changes):
    torch.manual_seed(0)
    if kind == "own":
        model = create_model("swin_t", num_classes=0, width=24, depths=(1, 1, 1, 1), heads=(1, 2, 2, 2))
    else:
        model = create_model("vit_ti16", **{**SMALL, **changes})
    return make_pyramid(model, kind, channels=32).eval()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("own", {}), ("simple", {}), ("adapter", {}), ("adapter", {"patch_size": 14}), ("simple", {"patch_size": 8}),
        ("adapter", {"position": "rotary", "registers": 2}), ("adapter", {"class_token": False, "pool": "mean"}),
        ("adapter", {"position": "conditional"}), ("adapter", {"depth": 2}),
    ],
)  # fmt: skip
def test_every_backbone_gives_the_same_four_maps_at_any_size(kind, changes, size):
    backbone = build(kind, **changes)
    with torch.no_grad():
        maps = backbone.pyramid(torch.randn(2, 3, *size))
    assert {stride: tuple(m.shape) for stride, m in maps.items()} == {
        s: (2, 32, -(-size[0] // s), -(-size[1] // s)) for s in STRIDES
    }
    assert all(m.isfinite().all() and m.std() > 0 for m in maps.values())


@pytest.mark.parametrize("changes", [{}, {"registers": 2, "position": "relative"}, {"patch_size": 14}])
def test_a_fresh_adapter_leaves_the_tokens_of_the_vit_as_they_were(changes):
    backbone = build("adapter", **changes)
    x, seen = torch.randn(1, 3, 70, 96), []
    with torch.no_grad():
        before = backbone.model.features(x)["tokens"]
        hook = backbone.model.norm.register_forward_hook(lambda module, inputs, output: seen.append(output))
        backbone.pyramid(x)
        hook.remove()
    assert torch.equal(seen[0], before)


@pytest.mark.parametrize("depth", [1, 2, 3, 4])
def test_every_part_of_an_adapter_takes_part_however_few_the_blocks(depth):
    backbone = build("adapter", depth=depth)
    assert (len(backbone.injectors), len(backbone.extractors)) == (depth, depth + 2)
    sum(each.sum() for each in backbone.pyramid(torch.randn(1, 3, 64, 64)).values()).backward()
    without = [name for name, p in backbone.named_parameters() if p.grad is None]
    assert without == ["model.norm.weight", "model.norm.bias"]  # of the plain ViT, which nobody asks here


def test_an_open_gate_changes_them():
    backbone, x, seen = build("adapter"), torch.randn(1, 3, 64, 64), []
    torch.nn.init.constant_(backbone.injectors[0].gate, 0.5)
    with torch.no_grad():
        before = backbone.model.features(x)["tokens"]
        backbone.model.norm.register_forward_hook(lambda module, inputs, output: seen.append(output))
        backbone.pyramid(x)
    assert (seen[0] - before).abs().max() > 1e-3


@pytest.mark.parametrize("stride", [4, 16])
def test_maps_lie_where_the_picture_does_though_patches_hang_over_its_edge(stride):
    """Of patches of 14 on 70×50 pixels, a map that says where its cells lie still says so in cells of the stride."""
    cells = 4 * 16 // stride, 14 * stride / 16  # across, and how many pixels each covers
    across = ((torch.arange(cells[0]) + 0.5) * cells[1]).expand(1, 1, 5 * 16 // stride, -1)
    found = to_stride(across, (70, 50), stride, (14, 14))[0, 0, 0]
    wanted = (torch.arange(-(-50 // stride)) + 0.5) * stride
    inside = (wanted > cells[1] / 2) & (wanted < 56 - cells[1] / 2)  # at the rim, the outermost cell
    assert inside.sum() > 2 and (found - wanted)[inside].abs().max() < 1e-4


def test_half_precision_keeps_the_places_of_a_map():
    """In bfloat16 a place on a map of 200 columns is off by half of one."""
    across = torch.arange(200.0).bfloat16().view(1, 1, 1, 200)
    found = resample(across, (1, 200), (1, 196), (1, 196))
    assert found.dtype == torch.bfloat16 and torch.equal(found[0, 0, 0], across[0, 0, 0, :196])


def test_gradients_reach_every_part():
    backbone = build("adapter").train()
    for injector in backbone.injectors:
        torch.nn.init.constant_(injector.gate, 0.1)
    maps = backbone.pyramid(torch.randn(2, 3, 64, 64))
    sum(m.square().mean() for m in maps.values()).backward()
    idle = {n for n, p in backbone.named_parameters() if p.grad is None or not p.grad.abs().max()}
    # The ViT's last norm is not on the way; at first no query chooses where to look, so its norm has nothing to learn.
    queries = {n for n in idle if n.startswith(("injectors", "extractors")) and ".norm." in n}
    assert idle - queries <= {"model.norm.weight", "model.norm.bias"} and len(queries) == 2 * (4 + 6)


def test_detail_finer_than_a_patch_reaches_the_finest_map():
    """A bright pixel moved by 8, within one patch of 16: what it changes in the finest map moves by two cells of 4."""
    backbone = build("adapter")
    middles = []
    with torch.no_grad():
        empty = backbone.pyramid(torch.zeros(1, 3, 64, 64))[4]
        for x in (34, 42):
            image = torch.zeros(1, 3, 64, 64)
            image[:, :, 37, x] = 30.0
            change = (backbone.pyramid(image)[4] - empty).square().sum(dim=(0, 1, 2)) ** 2  # 16, per column
            middles.append((change * torch.arange(16)).sum() / change.sum())
    assert 1 < middles[1] - middles[0] < 3


def test_the_adapter_compiles_whole():
    backbone = build("adapter", depth=2)
    x = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        compiled = torch.compile(backbone, fullgraph=True, backend="aot_eager")(x)
        plain = backbone(x)
    assert max((compiled[s] - plain[s]).abs().max().item() for s in STRIDES) < 1e-5


def test_the_adapter_is_exported_for_any_batch():
    backbone, size = build("adapter", depth=2), (70, 50)  # which neither patches nor strides divide
    with torch.no_grad():
        program = torch.export.export(
            backbone, (torch.randn(2, 3, *size),), dynamic_shapes={"x": {0: torch.export.Dim("batch")}}
        )
        x = torch.randn(3, 3, *size)
        found, plain = program.module()(x), backbone(x)
    assert max((found[s] - plain[s]).abs().max().item() for s in STRIDES) < 1e-5


@pytest.mark.data
def test_public_weights_go_into_the_backbone_untouched(real_data):
    from vitrail import load_weights

    model = create_model("deit_ti16")
    load_weights(model, real_data / "deit_tiny_in1k" / "model.safetensors")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    backbone = ViTAdapter(model)
    own = {name.removeprefix("model."): v for name, v in backbone.state_dict().items() if name.startswith("model.")}
    assert own.keys() == before.keys() and all(torch.equal(own[name], before[name]) for name in own)


def test_a_kind_that_a_backbone_has_not_is_refused():
    with pytest.raises(VitrailError, match="use adapter or simple"):
        make_pyramid(create_model("vit_ti16", **SMALL), "own")
    with pytest.raises(VitrailError, match="use own"):
        make_pyramid(create_model("swin_t", depths=(1, 1, 1, 1), width=24, heads=(1, 1, 1, 1)), "adapter")
