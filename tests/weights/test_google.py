"""Google's `.npz` files, against timm, which reads them too, and against plain NumPy."""

import numpy as np
import pytest
import timm
import torch
from timm.models.vision_transformer import VisionTransformer

import vitrail
from tests.parity.peers import assert_same, pictures
from tests.weights.small import output
from vitrail.weights import model_from, read_checkpoint

WIDTH, HEADS, HIDDEN = 64, 4, 128
SMALL = {"width": WIDTH, "depth": 2, "heads": HEADS, "mlp_ratio": 2.0}


def arrays(
    grid: int, patch: int, inputs: int = 3, classes: int = 10, pre_logits: bool = False
) -> dict[str, np.ndarray]:
    """Random weights under Google's names, in Flax's shapes."""
    random = np.random.default_rng(0)

    def normal(*shape: int) -> np.ndarray:
        return random.normal(0, 0.2, shape).astype(np.float32)

    d = WIDTH // HEADS
    out = {
        "cls": normal(1, 1, WIDTH),
        "embedding/kernel": normal(patch, patch, inputs, WIDTH) * 0.2,
        "embedding/bias": normal(WIDTH),
        "Transformer/posembed_input/pos_embedding": normal(1, 1 + grid * grid, WIDTH),
        "Transformer/encoder_norm/scale": 1 + normal(WIDTH),
        "Transformer/encoder_norm/bias": normal(WIDTH),
        "head/kernel": normal(WIDTH, classes),
        "head/bias": normal(classes),
    }
    if pre_logits:
        out |= {"pre_logits/kernel": normal(WIDTH, WIDTH), "pre_logits/bias": normal(WIDTH)}
    for i in range(2):
        block = f"Transformer/encoderblock_{i}"
        attention = f"{block}/MultiHeadDotProductAttention_1"
        for name in ("LayerNorm_0", "LayerNorm_2"):
            out |= {f"{block}/{name}/scale": 1 + normal(WIDTH), f"{block}/{name}/bias": normal(WIDTH)}
        for name in ("query", "key", "value"):
            out |= {f"{attention}/{name}/kernel": normal(WIDTH, HEADS, d), f"{attention}/{name}/bias": normal(HEADS, d)}
        out |= {f"{attention}/out/kernel": normal(HEADS, d, WIDTH), f"{attention}/out/bias": normal(WIDTH)}
        out |= {
            f"{block}/MlpBlock_3/Dense_0/kernel": normal(WIDTH, HIDDEN),
            f"{block}/MlpBlock_3/Dense_0/bias": normal(HIDDEN),
        }
        out |= {
            f"{block}/MlpBlock_3/Dense_1/kernel": normal(HIDDEN, WIDTH),
            f"{block}/MlpBlock_3/Dense_1/bias": normal(WIDTH),
        }
    return out


def stem_arrays(blocks: tuple[int, ...]) -> dict[str, np.ndarray]:
    random = np.random.default_rng(1)

    def group_norm(name: str, channels: int) -> dict[str, np.ndarray]:
        scale, bias = random.normal(0, 0.2, (2, 1, 1, 1, channels)).astype(np.float32)
        return {f"{name}/scale": 1 + scale, f"{name}/bias": bias}

    def filters(*shape: int) -> np.ndarray:
        return random.normal(0, 1, shape).astype(np.float32)

    out = {"conv_root/kernel": filters(7, 7, 3, 64), **group_norm("gn_root", 64)}
    inputs = 64
    for i, count in enumerate(blocks):
        outputs = 256 * 2**i
        for j in range(count):
            unit, middle = f"block{i + 1}/unit{j + 1}", outputs // 4
            shapes = [(1, 1, inputs, middle), (3, 3, middle, middle), (1, 1, middle, outputs)]
            for k, shape in enumerate(shapes, start=1):
                out |= {f"{unit}/conv{k}/kernel": filters(*shape), **group_norm(f"{unit}/gn{k}", shape[-1])}
            if j == 0:
                out |= {
                    f"{unit}/conv_proj/kernel": filters(1, 1, inputs, outputs),
                    **group_norm(f"{unit}/gn_proj", outputs),
                }
            inputs = outputs
    return out


@pytest.fixture
def peer() -> VisionTransformer:
    shape = {"img_size": 64, "patch_size": 16, "embed_dim": WIDTH, "depth": 2, "num_heads": HEADS, "mlp_ratio": 2}
    return VisionTransformer(**shape, num_classes=10, dynamic_img_size=True).eval()


@pytest.mark.parametrize("prefix", ["", "opt/target/"])
def test_vit_gives_the_logits_that_timm_gives_from_the_same_file(prefix, peer, tmp_path):
    np.savez(tmp_path / "B_16.npz", **{prefix + key: value for key, value in arrays(grid=4, patch=16).items()})
    peer.load_pretrained(tmp_path / "B_16.npz")
    checkpoint = read_checkpoint(tmp_path / "B_16.npz", heads=HEADS)
    assert (checkpoint.dialect, checkpoint.unknown) == ("google", [])
    assert checkpoint.preprocessing.mean == (0.5, 0.5, 0.5)
    model = model_from(checkpoint)
    assert (model.settings.position_rule, model.settings.norm_eps, model.settings.num_classes) == ("google", 1e-6, 10)
    assert_same(output(model, pictures(64, 64)), output(peer, pictures(64, 64)))


def test_pre_logits_are_the_hidden_layer_of_the_head(peer, tmp_path):
    weights = arrays(grid=4, patch=16, pre_logits=True)
    np.savez(tmp_path / "in21k.npz", **weights)
    peer.load_pretrained(tmp_path / "in21k.npz")  # timm leaves the hidden layer out: only its features compare
    model = model_from(read_checkpoint(tmp_path / "in21k.npz", heads=HEADS))
    assert (model.settings.head, model.settings.head_activation) == ("mlp", "tanh")
    x = pictures(64, 64)
    with torch.no_grad():
        features = peer.forward_head(peer.forward_features(x), pre_logits=True)
        assert_same(model.features(x)["pooled"], features)
    hidden = np.tanh(features.numpy() @ weights["pre_logits/kernel"] + weights["pre_logits/bias"])
    expected = torch.from_numpy(hidden @ weights["head/kernel"] + weights["head/bias"])
    assert_same(output(model, x), expected)


def test_hybrid_gives_the_logits_that_timm_gives_from_the_same_file(tmp_path):
    weights = arrays(grid=2, patch=1, inputs=2048) | stem_arrays((2, 2, 2, 2))
    np.savez(tmp_path / "R26_S_32.npz", **weights)
    shape = {"img_size": 64, "embed_dim": WIDTH, "depth": 2, "num_heads": HEADS, "mlp_ratio": 2, "num_classes": 10}
    peer = timm.create_model("vit_small_r26_s32_224", **shape, dynamic_img_size=True).eval()
    peer.load_pretrained(tmp_path / "R26_S_32.npz")
    model = model_from(read_checkpoint(tmp_path / "R26_S_32.npz", heads=HEADS))
    assert (model.settings.stem, model.settings.image_size) == ((2, 2, 2, 2), (64, 64))
    x = pictures(64, 64).double()  # in single precision the two orders of adding up differ more on some processors
    expected = output(peer.double(), x)
    assert (output(model.double(), x) - expected).abs().max() < 1e-7 * expected.abs().max()


def bilinear_between_corners(table: np.ndarray, height: int, width: int) -> np.ndarray:
    """[h0, w0, D] -> [h, w, D]: the corners stay, and what lies between is interpolated along each axis."""

    def along_first(values: np.ndarray, count: int) -> np.ndarray:
        places = np.arange(count) * (len(values) - 1) / (count - 1)
        low = np.minimum(places.astype(int), len(values) - 2)
        share = (places - low)[:, None, None]
        return values[low] * (1 - share) + values[low + 1] * share

    return along_first(along_first(table, height).transpose(1, 0, 2), width).transpose(1, 0, 2)


@pytest.mark.parametrize("size", [(96, 96), (48, 112)])
def test_table_at_another_size_is_resized_as_google_does_at_load_and_on_the_fly(size, tmp_path):
    weights = arrays(grid=4, patch=16)
    np.savez(tmp_path / "B_16.npz", **weights)
    table = weights["Transformer/posembed_input/pos_embedding"][0].astype(np.float64)
    grid = size[0] // 16, size[1] // 16
    patches = bilinear_between_corners(table[1:].reshape(4, 4, WIDTH), *grid).reshape(-1, WIDTH)

    model = vitrail.create_model("vit_b16", **SMALL, image_size=size, num_classes=10).eval()
    report = vitrail.load_weights(model, tmp_path / "B_16.npz")
    assert report.notes == [f"positions resized from 4×4 to {grid[0]}×{grid[1]} by the rule 'google'"]
    ours = model.position.table[0].detach().numpy()
    assert np.abs(ours[1:] - patches).max() < 1e-6
    assert np.array_equal(ours[0], table[0].astype(np.float32))
    native = model_from(read_checkpoint(tmp_path / "B_16.npz", heads=HEADS))
    assert_same(output(native, pictures(*size)), output(model, pictures(*size)))
