"""Parts that learn inside a frozen model: where they start, what they leave alone, and that they can be taken away."""

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from vitrail.errors import VitrailError
from vitrail.models import build, capture, catalog, create_model
from vitrail.models.attention import TokenLayout
from vitrail.models.dense.detector import Detector
from vitrail.models.dense.segmenter import Segmenter
from vitrail.models.tuning import PARTS, Lora, freeze, is_part, learns, merge, tune, untune
from vitrail.weights.load import without_memory

SMALL = {
    "vit": ("vit_nano4", {"num_classes": 5}),
    "distilled": ("deit_ti16_distilled", {"depth": 2, "num_classes": 5, "image_size": 64}),
    "relative": ("vit_nano4", {"num_classes": 5, "position": "relative"}),
    "rotary": ("vit_nano4", {"num_classes": 5, "position": "rotary", "registers": 2}),
    "conditional": ("vit_nano4", {"num_classes": 5, "position": "conditional"}),
    "swiglu": ("vit_nano4", {"num_classes": 5, "activation": "swiglu", "layer_scale": 0.1, "qkv_bias": "qv"}),
    "post-norm": ("vit_nano4", {"num_classes": 5, "norm_first": False, "qk_norm": True}),
    "swin": ("swin_t", {"depths": (2, 2), "heads": (2, 4), "width": 16, "image_size": 56, "num_classes": 5}),
    "swinv2": ("swinv2_t", {"depths": (2, 2), "heads": (2, 4), "width": 16, "image_size": 64, "num_classes": 5}),
}
OPTIONS = {
    "adapter": [{}, {"place": "parallel", "width": 3}],
    "lora": [{}, {"rank": 3, "targets": ("qkv", "proj", "mlp"), "scale": 2.0}],
    "prompt": [{}, {"tokens": 3}],
    "bias": [{}],
    "head": [{}],
}
CASES = [(name, kind, options) for name in SMALL for kind, several in OPTIONS.items() for options in several]


def small(name: str) -> nn.Module:
    """With weights of some size: with those of a fresh start, hardly anything would show."""
    torch.manual_seed(3)
    entry, changes = SMALL[name]
    model = create_model(entry, **changes).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    return model


def pictures(model: nn.Module) -> torch.Tensor:
    h, w = model.settings.image_size
    return torch.randn(2, 3, h, w + 8)


@torch.no_grad()  # with gradients, a CPU takes another kernel for a table of biases that learns
def features(model: nn.Module, x: torch.Tensor) -> dict[str, torch.Tensor]:
    return model.features(x)


def stir(model: nn.Module) -> None:
    """What learns is changed, as by training."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter) * 0.1)


@pytest.mark.parametrize(("name", "kind", "options"), CASES)
def test_it_starts_from_the_base_to_the_bit_and_only_what_may_learn_changes(name, kind, options):
    model = small(name)
    x, before = pictures(model), {n: t.clone() for n, t in model.state_dict().items()}
    base = features(model, x)
    tune(model, kind, **options)
    if kind != "prompt":
        for key, value in features(model, x).items():
            assert torch.equal(value, base[key]), key
    assert all(torch.equal(value, before[n]) for n, value in model.state_dict().items() if n in before)

    model.train()
    chosen = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(chosen, lr=0.05, weight_decay=0.1)
    for _ in range(3):
        nn.functional.cross_entropy(model(x), torch.tensor([0, 3])).backward()
        optimizer.step()
        optimizer.zero_grad()
    changed = {n for n, value in model.state_dict().items() if n not in before or not torch.equal(value, before[n])}
    assert changed and all(learns(n, kind) for n in changed)
    assert torch.equal(features(model.eval(), x)["pooled"], base["pooled"]) == (kind == "head")

    untune(model)
    model.load_state_dict({n: before[n] for n in changed if n in before}, strict=False)
    assert list(model.state_dict()) == list(before)
    for key, value in features(model, x).items():
        assert torch.equal(value, base[key]), key


@pytest.mark.parametrize("name", SMALL)
def test_lora_merged_equals_lora_beside_the_weights(name):
    model = small(name)
    names = list(model.state_dict())
    tune(model, "lora", rank=4, targets=("qkv", "proj", "mlp"), scale=0.5)
    stir(model)
    x = pictures(model)
    apart = model(x)
    merge(model)
    assert not any(isinstance(m, Lora) for m in model.modules())
    assert list(model.state_dict()) == names and model.settings.tuning is None
    assert (model(x) - apart).abs().max() < 1e-5 * max(1.0, apart.abs().max().item())


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("kind", PARTS)
def test_the_settings_rebuild_the_tuned_model(name, kind):
    model = tune(small(name), kind)
    stir(model)
    again = build(model.settings).eval()
    again.load_state_dict(model.state_dict())
    x = pictures(model)
    with torch.no_grad():
        assert torch.equal(again(x), model(x))
        assert torch.equal(copy.deepcopy(model)(x), model(x))


def test_every_vit_and_swin_of_the_catalog_takes_every_kind():
    """On models without memory, with one block in each stage."""
    checked = 0
    for name, entry in catalog().items():
        if name.startswith("mae"):
            continue
        settings: Any = entry.settings
        short = {"depths": (1,) * len(settings.depths)} if hasattr(settings, "depths") else {"depth": 1}
        model = without_memory(replace(settings, **short))
        plain = sum(p.numel() for p in model.parameters())
        for kind in PARTS:
            added = sum(p.numel() for n, p in tune(model, kind).named_parameters() if is_part(n, kind))
            assert 0 < added < plain / 10, (name, kind)
            assert sum(p.numel() for p in untune(model).parameters()) == plain
        checked += 1
    assert checked > 50


def test_the_default_sizes_learn_less_than_a_twentieth_of_deit_tiny():
    expected = {"adapter": 150_144, "lora": 110_592, "prompt": 23_040, "bias": 25_728}
    model = create_model("deit_ti16", num_classes=37)
    total, head = sum(p.numel() for p in model.parameters()), 37 * 193
    for kind, count in expected.items():
        tuned = tune(copy.deepcopy(model), kind)
        learning = sum(p.numel() for p in tuned.parameters() if p.requires_grad)
        assert learning - head == count
        assert learning < total / 20


def test_frozen_layers_in_front_of_all_that_learns_keep_no_graph():
    """The bytes that wait for backward: a head alone needs its input, and adapters less than everything."""
    kept = {}
    for kind in ("full", "head", "adapter", "lora", "prompt", "bias"):
        model = small("vit").train()
        frozen = model.patch.weight
        tune(model, kind)
        held: dict[int, int] = {}

        def pack(t: torch.Tensor, held: dict[int, int] = held) -> torch.Tensor:
            held[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
            return t

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            loss = model(pictures(model)).square().mean()
        loss.backward()
        kept[kind] = sum(held.values())
        assert (frozen.grad is None) == (kind != "full")
    assert kept["head"] < 0.02 * kept["full"]
    assert all(kept[kind] < kept["full"] for kind in ("lora", "prompt", "bias"))


@pytest.mark.parametrize("name", ["vit", "relative", "rotary", "swin", "swinv2"])
def test_capture_of_a_prompted_model_shows_the_picture_and_leaves_the_prompts_out(name):
    model = tune(small(name), "prompt", tokens=4)
    stir(model)
    x = pictures(model)
    with capture(model) as maps:
        out = model(x)
    assert torch.equal(out, model(x))
    with capture(model, reduce="mean_heads") as mean:
        model(x)
    for layer in maps:
        attention = maps[layer]
        assert attention.shape[-1] == attention.shape[-2]
        assert 0.1 < attention.sum(-1).mean() < 0.95  # the rest went to the prompts
        assert (mean[layer] - attention.mean(-3)).abs().max() < 1e-6
    row = maps.row(0, (1, 1))
    assert row.shape[-2:] == maps.grid(0)
    plain = untune(model)
    with capture(plain) as others:
        plain(x)
    assert maps[0].shape == others[0].shape
    assert (others[0].sum(-1) - 1).abs().max() < 1e-5


def test_maps_and_their_gradients_beside_prompts_are_those_of_plain_attention():
    layer = tune(small("vit"), "prompt", tokens=4).requires_grad_(True).blocks[0].attention
    x, flow = torch.randn(2, 17, 64), torch.randn(2, 17, 64)
    with capture(layer, gradients=True) as maps:
        out = layer(x, layout=TokenLayout((4, 4), ("class",)))
    out.backward(flow)

    tokens = torch.cat([layer.prompts.expand(2, -1, -1), x], dim=1)
    q, k, v = layer.qkv(tokens).unflatten(-1, (3, 4, 16)).permute(2, 0, 3, 1, 4)
    attention = (q @ k.transpose(-2, -1) / 4).softmax(dim=-1)
    attention.retain_grad()
    expected = layer.proj((attention @ v).transpose(1, 2).flatten(2))[:, 4:]
    expected.backward(flow)
    assert (out - expected).abs().max() < 1e-5
    assert (maps[0] - attention[..., 4:, 4:]).abs().max() < 1e-6
    assert (maps.gradients[0] - attention.grad[..., 4:, 4:]).abs().max() < 1e-5


@pytest.mark.parametrize("kind", PARTS)
def test_tuned_models_compile_whole_and_export(kind):
    model = tune(small("vit"), kind)
    stir(model)
    x = pictures(model)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    assert (compiled(x) - model(x)).abs().max() < 1e-5
    exported = torch.export.export(model, (x,)).module()
    assert (exported(x) - model(x)).abs().max() < 1e-5


@pytest.mark.parametrize("kind", PARTS)
def test_half_precision_starts_from_the_base_too(kind):
    model = small("swin" if kind == "lora" else "vit")
    x = pictures(model)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        base = model(x)
        tune(model, kind)
        tuned = model(x)
    assert tuned.dtype == base.dtype
    assert torch.equal(tuned, base) or kind == "prompt"


def test_parts_have_names_of_their_own_and_freezing_follows_them():
    model = tune(small("swin"), "adapter")
    added = [n for n in model.state_dict() if is_part(n)]
    assert len(added) == 4 * 4 and all(".mlp.adapter." in n for n in added)
    freeze(model, "head")
    assert [n for n, p in model.named_parameters() if p.requires_grad] == ["head.output.weight", "head.output.bias"]
    freeze(model, "full")
    assert all(p.requires_grad for p in model.parameters())
    assert not any(learns(n, "bias") for n in model.state_dict() if "bias.table" in n)


def test_of_a_dense_model_all_around_its_backbone_is_the_head():
    for make in (lambda m: Segmenter(m, 3, width=16), lambda m: Detector(m, pyramid_channels=16, hidden=16)):
        model = tune(make(small("vit")), "head")
        free = {n for n, p in model.named_parameters() if p.requires_grad}
        assert free == {n for n, _ in model.named_parameters() if not n.startswith(model.settings.inside)} != set()


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (lambda m: tune(m, "adaptor"), "tune='adaptor' is not known; choose one of full, head, adapter, lora"),
        (lambda m: tune(m, "adapter", width=0), "width must be a whole number of at least 1, got 0"),
        (lambda m: tune(m, "lora", targets=("q",)), "LoRA goes on qkv, proj, mlp, one or several of them; got ['q']"),
        (lambda m: tune(m, "adapter", place="above"), "place='above' is not known"),
        (lambda m: tune(m, "bias", width=4), "tune='bias' adds nothing, so width can't be set"),
        (lambda m: tune(tune(m, "lora"), "prompt"), "LoRA of rank 8 on qkv, proj already and can't have 10 prompts"),
        (lambda _: tune(create_model("mae_b16", depth=1, decoder_depth=1), "lora"), "go into the blocks of a ViT or"),
        (lambda _: tune(create_model("mae_b16", depth=1, decoder_depth=1), "head"), "tune='head': it has no head."),
        (lambda m: tune(m, "lora", rnk=2), "'rnk' is not a setting of tune='lora'. Did you mean"),
    ],
)  # fmt: skip
def test_what_cannot_be_meant_is_refused_in_a_sentence(act, words):
    with pytest.raises(VitrailError) as refused:
        act(small("vit"))
    assert words in str(refused.value)
    assert str(refused.value).count("\n") == 0


def test_going_on_with_the_same_parts_keeps_them():
    model = tune(small("vit"), "lora")
    stir(model)
    before = {n: t.clone() for n, t in model.state_dict().items()}
    tune(model, "lora", width=99)  # a field of another kind
    assert all(torch.equal(t, before[n]) for n, t in model.state_dict().items())
