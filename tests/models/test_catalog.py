"""Every entry of the catalog: its size, its names, its preprocessing; and each of them run, at reduced depth."""

import pytest
import timm
import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

from vitrail.errors import VitrailError
from vitrail.models import MAESettings, SwinSettings, ViTSettings, catalog, create_model, list_models, resolve
from vitrail.models.cost import cost
from vitrail.models.registry import model_settings

ENTRIES = list(catalog())
TIMM = set(timm.list_models())

# The counts that the papers' models are known by, at 1000 classes.
PUBLISHED = {
    "vit_b16": 86_567_656,
    "vit_l16": 304_326_632,
    "vit_h14": 632_045_800,
    "deit_ti16": 5_717_416,
    "deit_ti16_distilled": 5_910_800,
    "swin_t": 28_288_354,
    "swinv2_t": 28_347_154,
    "mae_b16": 111_655_680,  # without the fixed position tables, which are no parameters
}


def parameters(model):
    return sum(p.numel() for p in model.parameters())


def timms_name(entry):
    """The name under which timm has this very model, if it does; its kind of GELU has no parameters."""
    size = entry.settings.image_size[0]
    aliases = [alias for alias, implied in entry.aliases.items() if set(implied) <= {"activation"}]
    names = (f"{alias}{suffix}" for alias in aliases for suffix in ("", f"_{size}"))
    return next((name for name in names if name in TIMM), None)


@pytest.mark.parametrize("name", ENTRIES)
def test_parameter_count_is_the_published_one(name):
    entry, counts = catalog()[name], []
    with torch.device("meta"):
        model = create_model(name)
        if theirs := timms_name(entry):
            peer = timm.create_model(theirs, num_classes=entry.settings.num_classes)
            counts.append(parameters(peer))
            assert shape(entry.settings) == timms_shape(peer)
    if name in PUBLISHED:
        counts.append(PUBLISHED[name])
    if not counts:
        counts.append(by_parts(entry.settings))
    assert all(p.is_meta for p in model.parameters())
    assert {parameters(model)} == set(counts)


def shape(s):
    """What the number of parameters does not tell: heads, tokens, windows, epsilon."""
    if isinstance(s, SwinSettings):
        return (s.depths, s.heads, s.window, s.norm_eps)
    return (s.depth, s.heads, s.prefix_tokens, s.norm_eps)


def timms_shape(peer):
    if hasattr(peer, "layers"):
        first = [stage.blocks[0] for stage in peer.layers]
        depths, heads = (len(stage.blocks) for stage in peer.layers), (block.attn.num_heads for block in first)
        return (tuple(depths), tuple(heads), tuple(first[0].window_size), first[0].norm1.eps)
    return (len(peer.blocks), peer.blocks[0].attn.num_heads, peer.num_prefix_tokens, peer.blocks[0].norm1.eps)


def by_parts(s):
    """What timm does not have: patches, class token, blocks, last norm; then positions and head, or MAE's decoder."""
    inputs, stem = s.channels, 0
    if (
        getattr(s, "stem", None) is not None
    ):  # 3×3 convolutions without bias, a group norm each, four more at each stride
        for outputs in [64 * 2**i for i in range({"res2": 1, "res4": 2}[s.stem])]:
            inputs, stem = outputs, stem + 9 * inputs * outputs + 2 * outputs + 4 * (9 * outputs**2 + 2 * outputs)
    pixels = s.patch_size[0] * s.patch_size[1] * inputs

    def block(d, hidden):
        return 4 * d * d + 4 * d + 2 * d * hidden + hidden + d + 4 * d + (10 * d if s.local else 0)

    tokens = 1 if isinstance(s, MAESettings) else s.prefix_tokens
    total = stem + (pixels + 1) * s.width + tokens * s.width + s.depth * block(s.width, s.mlp_width) + 2 * s.width
    if isinstance(s, MAESettings):
        d = s.decoder_width
        return total + (s.width + 1) * d + d + s.decoder_depth * block(d, 4 * d) + 2 * d + (d + 1) * pixels
    # The table has a row for the class token; CPVT has a depth-wise 3×3 convolution instead.
    positions = 10 if s.position == "conditional" else s.grid[0] * s.grid[1] + tokens
    return total + positions * s.width + (s.width + 1) * s.num_classes


def reduced(name):
    """The entry at its full width, with two blocks (per stage)."""
    s = catalog()[name].settings
    changes = {"depths": (2,) * len(s.depths)} if isinstance(s, SwinSettings) else {"depth": 2}
    if isinstance(s, MAESettings):
        changes["decoder_depth"] = 1
    model = create_model(name, **changes).eval()
    with torch.no_grad():
        for p in model.parameters():
            if p.ndim == 1:  # layer scale and the last norms of Swin v2 start so low that the blocks would not count
                p.normal_(mean=0.5, std=0.1)
    return model


@pytest.mark.parametrize("name", ENTRIES)
def test_every_entry_runs_at_two_sizes_that_are_not_square(name):
    model = reduced(name)
    s = model.settings
    p, q = s.stride
    for height, width in ((2 * p, 3 * q), (3 * p - 1, q + 2)):
        x = torch.randn(2, s.channels, height, width)
        padded = F.pad(x, (0, -width % q, 0, -height % p))
        grid = (padded.shape[2] // p, padded.shape[3] // q)
        mae = isinstance(s, MAESettings)
        arguments = {"noise": torch.rand(2, grid[0] * grid[1])} if mae else {}
        with torch.no_grad():
            out = model(x, **arguments)
            features = (model.encoder if mae else model).features(x)
            by_hand = model(padded, **arguments) if padded.shape != x.shape else out
        *_, last = (value for key, value in features.items() if key.startswith("map/"))
        assert last.shape[2:] == grid == (model.encoder if mae else model).token_grid(height, width)
        out, by_hand = (out.prediction, by_hand.prediction) if mae else (out, by_hand)
        expected = (grid[0] * grid[1], 3 * p * q) if mae else (s.num_classes or last.shape[1],)
        assert out.shape == (2, *expected)
        assert out.isfinite().all() and (out[0] - out[1]).abs().max() > 1e-4
        if isinstance(s, ViTSettings) and s.stem is None:
            torch.testing.assert_close(out, by_hand)  # padding by the model is padding by hand


@pytest.mark.parametrize(
    ("spelling", "name", "implied"),
    [
        ("ViT-B/16", "vit_b16", {}),
        ("ViT-Ti/16", "vit_ti16", {}),
        ("B/16", "vit_b16", {}),
        ("vit_l16", "vit_l16", {}),
        ("ViT-g/14", "vit_g14", {}),
        ("DeiT-Ti", "deit_ti16", {}),
        ("R50+ViT-B/16", "r50_vit_b16", {}),
        ("R26+S/32", "r26_vit_s32", {}),
        ("Swin-T", "swin_t", {}),
        ("SwinV2-B", "swinv2_b", {}),
        # timm
        ("vit_base_patch16_224", "vit_b16", {"image_size": 224}),
        ("vit_base_patch16_384.augreg_in21k_ft_in1k", "vit_b16", {"image_size": 384}),
        ("timm/vit_tiny_patch16_224.augreg_in21k_ft_in1k", "vit_ti16", {"image_size": 224}),
        ("deit_tiny_distilled_patch16_224.fb_in1k", "deit_ti16_distilled", {"image_size": 224}),
        ("deit3_huge_patch14_224", "deit3_h14", {"image_size": 224}),
        ("vit_small_r26_s32_384", "r26_vit_s32", {"image_size": 384}),
        ("swin_base_patch4_window12_384", "swin_b", {"window": 12, "image_size": 384}),
        ("swinv2_tiny_window16_256", "swinv2_t", {"window": 16, "image_size": 256}),
        ("vit_giant_patch14_reg4_dinov2.lvd142m", "dinov2_g14_reg4", {}),
        ("vit_small_patch16_dinov3", "dinov3_s16", {"qkv_bias": False}),
        ("vit_base_patch32_clip_quickgelu_224.openai", "clip_b32", {"image_size": 224}),
        ("vit_so400m_patch14_siglip_384", "siglip_so400m14", {"image_size": 384, "activation": "gelu"}),
        # torchvision
        ("vit_b_16", "vit_b16", {}),
        ("vit_h_14", "vit_h14", {}),
        ("swin_s", "swin_s", {}),
        ("swin_v2_t", "swinv2_t", {}),
        # Hugging Face
        ("deit_b_16", "deit_b16", {}),  # a number may be that of the patch
        ("deit_tiny_16", "deit_ti16", {}),
        ("vit_mae_base_16", "mae_b16", {}),
        ("dinov2_base_14", "dinov2_b14", {}),
        ("swin_t_32", "swin_t", {"image_size": 32}),
        ("R50+ViT-B_16", "r50_vit_b16", {}),
        ("R26+ViT-S_32", "r26_vit_s32", {}),
        ("google/vit-base-patch16-224", "vit_b16", {"image_size": 224}),
        ("google/vit-base-patch16-224-in21k", "vit_b16", {"image_size": 224}),
        ("facebook/deit-base-distilled-patch16-384", "deit_b16_distilled", {"image_size": 384}),
        ("microsoft/swin-large-patch4-window12-384-in22k", "swin_l", {"window": 12, "image_size": 384}),
        ("microsoft/swinv2-tiny-patch4-window8-256", "swinv2_t", {"image_size": 256}),
        ("facebook/vit-mae-large", "mae_l16", {}),
        ("facebook/dinov2-base", "dinov2_b14", {}),
        ("facebook/dinov2-with-registers-small", "dinov2_s14_reg4", {}),
        ("facebook/dinov3-vith16plus-pretrain-lvd1689m", "dinov3_h16_plus", {}),
        ("openai/clip-vit-large-patch14-336", "clip_l14", {"image_size": 336}),
        ("google/siglip-base-patch16-224", "siglip_b16", {"image_size": 224}),
    ],
)
def test_names_of_every_ecosystem_lead_to_the_entry(spelling, name, implied):
    entry, changes = resolve(spelling)
    assert (entry.name, changes) == (name, implied)


@pytest.mark.parametrize("name", [name for name in ENTRIES if catalog()[name].hub])
def test_the_hub_id_of_an_entry_is_a_name_of_it(name):
    entry, changes = resolve(catalog()[name].hub)
    assert entry.name == name
    assert model_settings(entry.hub) == entry.settings, changes


def test_no_two_entries_answer_to_one_name():
    spellings = [s for entry in catalog().values() for s in (entry.name, *entry.aliases)]
    assert len(spellings) == len(set(spellings)) + sum(entry.name in entry.aliases for entry in catalog().values())


def test_what_a_name_implies_can_be_overruled():
    assert model_settings("vit_base_patch16_384").grid == (24, 24)
    assert model_settings("vit_base_patch16_384", image_size=(64, 32)).grid == (4, 2)
    assert model_settings("ViT-B/16", position="rotary", num_classes=7).num_classes == 7


def test_list_models_matches_patterns_and_keeps_the_order():
    assert list_models() == ENTRIES and len(ENTRIES) > 60
    assert list_models("swin_*") == ["swin_t", "swin_s", "swin_b", "swin_l"]
    assert list_models("deit_*distilled") == ["deit_ti16_distilled", "deit_s16_distilled", "deit_b16_distilled"]
    assert list_models("nothing*") == []


def test_the_missions_models_are_all_there():
    vits = {f"vit_{size}{patch}" for size in ("ti", "s", "b", "l", "h", "g") for patch in (8, 14, 16, 32)}
    others = "deit_ti16 deit_s16 deit_b16 deit3_s16 deit3_b16 deit3_l16 deit3_h14 r_vit_ti16 r26_vit_s32 r50_vit_b16"
    others += " r50_vit_l32 swin_t swin_s swin_b swin_l swinv2_t swinv2_s swinv2_b mae_b16 mae_l16 mae_h14"
    others += " cpvt_ti16 cpvt_s16 cpvt_b16 vit_mini4 vit_mini8"
    assert vits | set(others.split()) <= set(ENTRIES)
    mini = catalog()["vit_mini4"].settings
    assert (mini.image_size, mini.width, mini.depth, mini.heads, mini.mlp_ratio) == ((32, 32), 192, 9, 12, 2.0)


@pytest.mark.parametrize("name", [name for name in ENTRIES if (catalog()[name].hub or "").startswith("timm/")])
def test_preprocessing_and_licence_are_those_of_timms_weights(name):
    entry = catalog()[name]
    theirs = timm.get_pretrained_cfg(entry.hub.removeprefix("timm/"), allow_unregistered=False)
    assert theirs.hf_hub_id == entry.hub
    ours = entry.preprocessing
    assert ours.size == entry.settings.image_size == theirs.input_size[1:]
    assert (ours.mean, ours.std) == (theirs.mean, theirs.std)
    assert (ours.crop, ours.interpolation, ours.fit) == (theirs.crop_pct, theirs.interpolation, "crop")
    assert entry.licence == theirs.license
    assert theirs.num_classes in (entry.settings.num_classes, 0)  # 0: weights of pre-training, without a head


def test_multiply_adds_of_vit_b16_are_the_sum_over_its_matrices():
    n, d = 197, 768
    block = n * (3 * d * d + d * d + 2 * 4 * d * d) + 2 * n * n * d  # qkv, projection, MLP; QKᵀ and ·V
    assert cost("vit_b16").multiply_adds == 196 * (16 * 16 * 3) * d + 12 * block + d * 1000
    assert cost("vit_b16").parameters == 86_567_656
    assert [cost(name).tokens for name in ("vit_b16", "deit_b16_distilled", "swin_t", "vit_l32")] == [
        197,
        198,
        3136,
        50,
    ]


def test_an_unknown_model_suggests_the_nearest():
    with pytest.raises(VitrailError, match=r"There is no model named 'vit_b61'. Did you mean \"vit_b16\"\?"):
        create_model("vit_b61")
    with pytest.raises(VitrailError, match=r"Did you mean \"swin_tiny_patch4_window7\"\?"):
        create_model("swin_tiny_patch4_windw7_224")
    with pytest.raises(VitrailError, match=r"no model named 'resnet50'. Did you mean \"tv:resnet50\""):
        create_model("resnet50")


@pytest.mark.parametrize(
    ("name", "setting", "kind", "suggestion"),
    [
        ("vit_b16", "patchsize", "ViT", "patch_size"),
        ("swin_t", "windows", "Swin", "window"),
        ("mae_b16", "mask_ration", "MAE", "mask_ratio"),
    ],
)
def test_an_unknown_setting_suggests_the_nearest(name, setting, kind, suggestion):
    with pytest.raises(VitrailError) as error:
        create_model(name, **{setting: 4})
    assert str(error.value) == f'{setting!r} is not a setting of {kind} models. Did you mean "{suggestion}"?'


@pytest.mark.parametrize("name", ["swin_t", "mae_b16", "dinov2_s14_reg4"])
def test_cost_counted_from_one_block_of_a_stage_is_that_of_the_whole_model(name):
    with torch.device("meta"):
        model = create_model(name).eval()
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            model(torch.empty(1, 3, *model.settings.image_size))
    assert cost(name).parameters == sum(p.numel() for p in model.parameters())
    assert cost(name).multiply_adds == counter.get_total_flops() // 2


def test_any_setting_can_be_changed_by_name():
    name = "vit_mini4:position=rotary,pool=mean,depth=2,image_size=(32, 48),qkv_bias=False"
    settings = create_model(name, num_classes=3).settings
    assert (settings.position, settings.pool, settings.depth, settings.image_size) == ("rotary", "mean", 2, (32, 48))
    assert settings.qkv_bias is False and settings.width == 192 and settings.num_classes == 3
    assert create_model("ViT-B/16:depth=1,width=96,heads=3").settings.patch_size == (16, 16)
    for wrong, sentence in (
        ("vit_mini4:positon=rotary", 'Did you mean "position"?'),
        ("vit_mini4:position=rotory", "rotory"),
        ("vit_mini4:depth=2,rotary", "'rotary' in"),
        ("depth=2", "'depth=2' names no model"),
        ("vit_mimi4:depth=2", "There is no model named 'vit_mimi4'"),
    ):
        with pytest.raises(VitrailError) as error:
            create_model(wrong)
        assert sentence in str(error.value)
