"""torchvision's weights in our models and ours in torchvision's."""

import pytest
import torch
import torchvision
from safetensors.torch import load_file
from torchvision.models.swin_transformer import SwinTransformer, SwinTransformerBlockV2
from torchvision.models.vision_transformer import VisionTransformer, interpolate_embeddings

import vitrail
from tests.parity.peers import assert_same, pictures, shake
from vitrail.models.swin import SwinSettings
from vitrail.weights import model_from, read_checkpoint

# Models cut short for speed are none of the catalog, and reading them says so.
pytestmark = pytest.mark.filterwarnings("ignore:.* fits no model of the catalog")


def vit(size=224):
    return VisionTransformer(size, 16, num_layers=2, num_heads=12, hidden_dim=768, mlp_dim=3072, num_classes=1000)


@pytest.mark.parametrize("size", [224, 160])
def test_vit_of_torchvision_gives_the_same_logits_and_goes_back(size, tmp_path):
    reference = shake(vit())
    torch.save(reference.state_dict(), tmp_path / "vit_b_16.pth")
    model = vitrail.create_model("vit_b_16", depth=2, image_size=size).eval()
    assert vitrail.load_weights(model, tmp_path / "vit_b_16.pth").dialect == "torchvision"
    if size != 224:  # torchvision resizes tables by a function of its own, before loading
        state = interpolate_embeddings(size, 16, reference.state_dict())
        reference = vit(size).eval()
        reference.load_state_dict(state)
    with torch.no_grad():
        assert_same(model(pictures(size, size)), reference(pictures(size, size)))
    back = vit(size).eval()
    back.load_state_dict(load_file(vitrail.save_weights(model, tmp_path / "back.safetensors", dialect="torchvision")))
    with torch.no_grad():
        assert_same(model(pictures(size, size)), back(pictures(size, size)))


def test_vit_at_another_size_on_the_fly_resizes_as_torchvision_would(tmp_path):
    reference = shake(vit())
    torch.save(reference.state_dict(), tmp_path / "weights.pth")
    model = vitrail.create_model("vit_b16", depth=2).eval()
    vitrail.load_weights(model, tmp_path / "weights.pth")
    resized = vit(256).eval()
    resized.load_state_dict(interpolate_embeddings(256, 16, reference.state_dict()))
    with torch.no_grad():
        assert_same(model(pictures(256, 256)), resized(pictures(256, 256)))


SWINS = [
    ("swin_t", 1, (7, 7), (224, 224)),
    ("swin_t", 1, (7, 7), (180, 260)),  # pads in every stage, and the last map is smaller than a window
    ("swin_t", 1, (4, 6), (100, 164)),  # rectangular windows
    ("swinv2_t", 2, (8, 8), (256, 256)),
    ("swinv2_t", 2, (8, 8), (180, 260)),
    ("swinv2_t", 2, (6, 4), (100, 164)),
]


@pytest.mark.parametrize(("name", "version", "window", "size"), SWINS)
def test_swin_of_torchvision_gives_the_same_logits_also_where_it_pads_and_goes_back(
    name, version, window, size, tmp_path
):
    def build():
        blocks = (
            {}
            if version == 1
            else {
                "block": SwinTransformerBlockV2,
                "downsample_layer": torchvision.models.swin_transformer.PatchMergingV2,
            }
        )
        return SwinTransformer([4, 4], 96, [2, 2, 2, 2], [3, 6, 12, 24], list(window), num_classes=1000, **blocks)

    reference = shake(build())
    torch.save(reference.state_dict(), tmp_path / "model.pth")
    model = vitrail.create_model(name, depths=(2, 2, 2, 2), window=window).eval()
    if window[0] == window[1]:
        assert vitrail.load_weights(model, tmp_path / "model.pth").dialect == "torchvision"
    else:  # a rectangular window can't be read off its table, so the reader must be told
        checkpoint = read_checkpoint(tmp_path / "model.pth", window=window, depths=(2, 2, 2, 2), version=version)
        model = model_from(checkpoint)
    with torch.no_grad():
        assert_same(model(pictures(*size)), reference(pictures(*size)))
    back = build().eval()
    back.load_state_dict(load_file(vitrail.save_weights(model, tmp_path / "back.safetensors", dialect="torchvision")))
    with torch.no_grad():
        assert_same(model(pictures(*size)), back(pictures(*size)))


def test_bias_table_is_resized_when_the_window_changes(tmp_path):
    model = shake(vitrail.create_model("swin_t", depths=(2, 2), heads=(3, 6), num_classes=5))
    path = vitrail.save_weights(model, tmp_path / "model.safetensors")
    larger = vitrail.create_model("swin_t", depths=(2, 2), heads=(3, 6), num_classes=5, window=(9, 7)).eval()
    report = vitrail.load_weights(larger, path)
    assert "resized from window 7×7 to 9×7" in report.notes[0]
    old, new = model.stages[0][0].bias.table.detach(), larger.stages[0][0].bias.table.detach()
    assert new.shape == (17 * 13, 3)
    assert torch.allclose(new.view(17, 13, 3)[8, 6], old.view(13, 13, 3)[6, 6], atol=1e-5)  # offset (0, 0) stays
    assert isinstance(larger.settings, SwinSettings)
    with torch.no_grad():
        assert torch.isfinite(larger(pictures(100, 132))).all()
