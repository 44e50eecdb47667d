"""timm's weights in our models and ours in timm's, at the default and at other sizes."""

import pytest
import timm
import torch
from safetensors.torch import load_file, save_file

import vitrail
from tests.parity.peers import assert_same, pictures, shake
from vitrail.weights import model_from, read_checkpoint

# timm's name, its arguments (depth is cut for speed), and another size, non-square where timm can take it.
VITS = [
    ("vit_tiny_patch16_224", {"depth": 2}, (160, 256)),
    ("vit_base_patch16_224", {"depth": 1}, (192, 224)),
    ("vit_base_patch32_224", {"depth": 1}, (96, 160)),
    ("deit_tiny_distilled_patch16_224", {"depth": 2}, (160, 256)),
    ("deit3_small_patch16_224", {"depth": 2}, (240, 160)),
    ("vit_small_patch14_dinov2", {"depth": 1, "img_size": 224}, (140, 196)),
    ("vit_small_patch14_reg4_dinov2", {"depth": 1, "img_size": 224}, (140, 196)),
    ("vit_base_patch16_clip_quickgelu_224", {"depth": 1, "num_classes": 0}, (160, 256)),
    ("vit_base_patch16_siglip_224", {"depth": 1}, (160, 256)),
    ("vit_tiny_r_s16_p8_224", {"depth": 2}, (160, 256)),
    ("vit_small_r26_s32_224", {"depth": 2}, (160, 256)),
    ("vit_base_r50_s16_224", {"depth": 1, "num_classes": 1000}, (160, 256)),
]
DINOV3 = [("vit_small_patch16_dinov3_qkvb", {"depth": 2}), ("vit_small_plus_patch16_dinov3_qkvb", {"depth": 2})]


def ours_from(name, reference, tmp_path, **changes):
    save_file({k: v.contiguous() for k, v in reference.state_dict().items()}, tmp_path / "model.safetensors")
    depth = {"depth": len(reference.blocks)} if hasattr(reference, "blocks") else {}
    model = vitrail.create_model(name, **depth, **changes)
    report = vitrail.load_weights(model, tmp_path / "model.safetensors", head="keep")
    assert report.dialect == "timm"
    assert report.notes == []
    return model.eval()


@pytest.mark.parametrize(("name", "arguments", "other"), VITS, ids=[v[0] for v in VITS])
def test_vit_of_timm_gives_the_same_logits_here_at_two_sizes_and_goes_back(name, arguments, other, tmp_path):
    reference = shake(timm.create_model(name, dynamic_img_size=True, **arguments))
    changes = {"image_size": arguments["img_size"]} if "img_size" in arguments else {}
    model = ours_from(name, reference, tmp_path, **changes)
    with torch.no_grad():
        for size in (model.settings.image_size, other):
            assert_same(model(pictures(*size)), reference(pictures(*size)))

    back = timm.create_model(name, dynamic_img_size=True, **arguments).eval()
    vitrail.save_weights(model, tmp_path / "back.safetensors", dialect="timm")
    back.load_state_dict(load_file(tmp_path / "back.safetensors"), strict=True)
    with torch.no_grad():
        assert_same(model(pictures(*other)), back(pictures(*other)))


@pytest.mark.parametrize(("name", "arguments"), DINOV3, ids=[d[0] for d in DINOV3])
def test_dinov3_of_timm_gives_the_same_features(name, arguments, tmp_path):
    reference = shake(timm.create_model(name, dynamic_img_size=True, **arguments))
    model = ours_from(name, reference, tmp_path)
    with torch.no_grad():
        for size in ((256, 256), (160, 224)):
            # timm pools by the mean; the tokens are what DINOv3 gives.
            assert_same(model.features(pictures(*size))["tokens"], reference.forward_features(pictures(*size)))
    vitrail.save_weights(model, tmp_path / "back.safetensors", dialect="timm")
    back = timm.create_model(name, dynamic_img_size=True, **arguments).eval()
    back.load_state_dict(load_file(tmp_path / "back.safetensors"), strict=True)
    with torch.no_grad():
        assert_same(model.features(pictures(160, 224))["tokens"], back.forward_features(pictures(160, 224)))


@pytest.mark.parametrize(
    ("name", "arguments", "size"),
    [
        ("swin_tiny_patch4_window7_224", {"depths": (2, 2, 2, 2)}, (224, 224)),
        ("swin_tiny_patch4_window7_224", {"depths": (2, 2, 2)}, (192, 256)),  # padded: 48×64 is no multiple of 7
        ("swin_tiny_patch4_window7_224", {"depths": (2, 2)}, (100, 132)),
        ("swin_base_patch4_window12_384", {"depths": (2, 2)}, (200, 384)),
        ("swinv2_tiny_window8_256", {"depths": (2, 2, 2, 2)}, (256, 256)),
        # timm's v2 can't be built for a size that it would have to pad.
        ("swinv2_tiny_window8_256", {"depths": (2, 2)}, (256, 320)),
        ("swinv2_tiny_window16_256", {"depths": (2, 2)}, (256, 128)),
    ],
)
def test_swin_of_timm_gives_the_same_logits_also_where_it_pads_and_goes_back(name, arguments, size, tmp_path):
    stages = len(arguments["depths"])
    heads = {"num_heads": {96: (3, 6, 12, 24), 128: (4, 8, 16, 32)}[128 if "base" in name else 96][:stages]}
    reference = shake(timm.create_model(name, img_size=size, num_classes=50, **arguments, **heads))
    model = ours_from(
        name,
        reference,
        tmp_path,
        depths=arguments["depths"],
        heads=heads["num_heads"],
        image_size=size,
        num_classes=50,
        padding="timm",
    )
    with torch.no_grad():
        assert_same(model(pictures(*size)), reference(pictures(*size)))
    vitrail.save_weights(model, tmp_path / "back.safetensors", dialect="timm")
    reference.load_state_dict(load_file(tmp_path / "back.safetensors"), strict=True)
    with torch.no_grad():
        assert_same(model(pictures(*size)), reference(pictures(*size)))


def test_table_loaded_into_another_size_is_resized_as_timm_does(tmp_path):
    reference = shake(timm.create_model("vit_tiny_patch16_224", depth=1, dynamic_img_size=True))
    save_file(reference.state_dict(), tmp_path / "model.safetensors")
    model = vitrail.create_model("vit_ti16", depth=1, image_size=(160, 320)).eval()
    report = vitrail.load_weights(model, tmp_path / "model.safetensors")
    assert "resized from 14×14 to 10×20" in " ".join(report.notes)
    with torch.no_grad():
        assert_same(model(pictures(160, 320)), reference(pictures(160, 320)))


def test_architecture_is_read_off_a_bare_file(tmp_path):
    reference = shake(timm.create_model("deit3_small_patch16_224"))
    save_file(reference.state_dict(), tmp_path / "weights.safetensors")
    checkpoint = read_checkpoint(tmp_path / "weights.safetensors")
    assert (checkpoint.name, checkpoint.dialect) == ("deit3_s16", "timm")
    with torch.no_grad():
        assert_same(model_from(checkpoint)(pictures(224, 224)), reference(pictures(224, 224)))
