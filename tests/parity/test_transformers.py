"""transformers' folders in our models, and ours as folders that `from_pretrained` takes."""

import pytest
import torch
import transformers
from transformers import AutoModelForImageClassification
from transformers.models.vit_mae.modeling_vit_mae import build_2d_sinusoidal_position_embedding

import vitrail
from tests.parity.peers import assert_same, pictures, shake
from vitrail.weights import model_from, read_checkpoint

# Models cut short for speed are none of the catalog, and reading them says so.
pytestmark = pytest.mark.filterwarnings("ignore:.* fits no model of the catalog")

SMALL = {"hidden_size": 192, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 768}
SIZED = {**SMALL, "image_size": 224, "patch_size": 16}
DINO = {k: v for k, v in SIZED.items() if k != "intermediate_size"}
SWIN = {"embed_dim": 96, "depths": [2, 2], "num_heads": [3, 6], "num_labels": 7}

# What to build there, and which of its outputs is our forward.
CASES = {
    "vit": (lambda: transformers.ViTForImageClassification(transformers.ViTConfig(**SIZED, num_labels=7)), "logits"),
    "deit": (
        lambda: transformers.DeiTForImageClassificationWithTeacher(transformers.DeiTConfig(**SIZED, num_labels=7)),
        "logits",
    ),
    "dinov2": (lambda: transformers.Dinov2Model(transformers.Dinov2Config(**DINO)), "pooler_output"),
    "dinov2_gated": (
        lambda: transformers.Dinov2Model(transformers.Dinov2Config(**DINO, use_swiglu_ffn=True)),
        "pooler_output",
    ),
    "dinov2_registers": (
        lambda: transformers.Dinov2WithRegistersModel(transformers.Dinov2WithRegistersConfig(**DINO)),
        "pooler_output",
    ),
    "dinov3": (
        lambda: transformers.DINOv3ViTModel(transformers.DINOv3ViTConfig(**SIZED, num_register_tokens=4)),
        "pooler_output",
    ),
    "dinov3_gated": (
        lambda: transformers.DINOv3ViTModel(
            transformers.DINOv3ViTConfig(**SIZED, num_register_tokens=4, use_gated_mlp=True, hidden_act="silu")
        ),
        "pooler_output",
    ),
    "clip": (lambda: transformers.CLIPVisionModel(transformers.CLIPVisionConfig(**SIZED)), "pooler_output"),
    "siglip": (lambda: transformers.SiglipVisionModel(transformers.SiglipVisionConfig(**SIZED)), "pooler_output"),
    "swin": (
        lambda: transformers.SwinForImageClassification(transformers.SwinConfig(**SWIN, image_size=224, window_size=7)),
        "logits",
    ),
    "swinv2": (
        lambda: transformers.Swinv2ForImageClassification(
            transformers.Swinv2Config(**SWIN, image_size=256, window_size=8)
        ),
        "logits",
    ),
}


def run(reference, output, images):
    options = (
        {"interpolate_pos_encoding": True}
        if type(reference).__name__.startswith(("ViT", "DeiT", "CLIP", "Siglip"))
        else {}
    )
    with torch.no_grad():
        return getattr(reference(images, **options), output)


@pytest.mark.parametrize("case", CASES)
def test_model_of_transformers_gives_the_same_output_here_at_two_sizes_and_goes_back(case, tmp_path):
    build, output = CASES[case]
    reference = shake(build())
    reference.save_pretrained(tmp_path / "theirs")
    checkpoint = read_checkpoint(tmp_path / "theirs")
    model = model_from(checkpoint)
    assert checkpoint.dialect == "hf"
    assert checkpoint.unknown == []
    assert model.settings.norm_eps == reference.config.layer_norm_eps
    sizes = [model.settings.image_size, (160, 256)]
    if "swin" in case:
        sizes = [model.settings.image_size, (180, 260)]  # pads
    for size in sizes:
        with torch.no_grad():
            assert_same(model(pictures(*size)), run(reference, output, pictures(*size)))

    vitrail.save_weights(model, tmp_path / "ours", dialect="hf")
    back = type(reference).from_pretrained(tmp_path / "ours").eval()
    for size in sizes:
        with torch.no_grad():
            assert_same(model(pictures(*size)), run(back, output, pictures(*size)))


@pytest.mark.parametrize("name", ["vit_ti16", "deit_ti16_distilled", "swin_t", "swinv2_t"])
def test_folder_of_a_catalog_model_loads_as_an_image_classifier_with_labels(name, tmp_path):
    depth = {"depths": (2, 2, 2, 2)} if "swin" in name else {"depth": 2}
    model = shake(vitrail.create_model(name, num_classes=3, **depth))
    vitrail.save_weights(model, tmp_path / "folder", dialect="hf", labels=["ant", "bee", "cat"])
    classifier = AutoModelForImageClassification.from_pretrained(tmp_path / "folder").eval()
    assert classifier.config.id2label == {0: "ant", 1: "bee", 2: "cat"}
    size = model.settings.image_size
    with torch.no_grad():
        assert_same(model(pictures(*size)), classifier(pictures(*size)).logits)
    assert read_checkpoint(tmp_path / "folder").labels == ["ant", "bee", "cat"]


@pytest.mark.parametrize(("norm_pix", "size"), [(False, 224), (True, 160)])
def test_mae_predicts_the_same_patches_and_loss_and_goes_back(norm_pix, size, tmp_path):
    config = transformers.ViTMAEConfig(
        **{**SIZED, "image_size": size},
        decoder_hidden_size=96,
        decoder_num_hidden_layers=2,
        decoder_num_attention_heads=3,
        decoder_intermediate_size=384,
        norm_pix_loss=norm_pix,
    )
    torch.manual_seed(0)
    reference = transformers.ViTMAEForPreTraining(config).eval()
    # Built from a config, this release leaves its tables at zero; the published files hold what its formula gives.
    for table in (reference.vit.embeddings.position_embeddings, reference.decoder.decoder_pos_embed):
        width = table.shape[-1]
        waves = build_2d_sinusoidal_position_embedding(size // 16, size // 16, embed_dim=width, cls_token=True)
        table.data = waves.roll(width // 2, dims=-1)[None]  # columns before rows, as its own initialisation has it
    reference.save_pretrained(tmp_path / "theirs")
    model = model_from(read_checkpoint(tmp_path / "theirs"))
    assert model.settings.norm_pix is norm_pix
    vitrail.save_weights(model, tmp_path / "ours", dialect="hf")
    back = transformers.ViTMAEForPreTraining.from_pretrained(tmp_path / "ours").eval()
    images = pictures(size, size)
    noise = torch.rand(2, size**2 // 256, generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        ours = model(images, noise=noise)
        for peer in (reference, back):
            theirs = peer(images, noise=noise)
            assert torch.equal(ours.mask, theirs.mask)
            assert_same(ours.prediction, theirs.logits)
            assert abs(ours.loss - theirs.loss) < 1e-5 * theirs.loss
        # At other sizes the encoders agree; transformers resizes the decoder's table as if the picture were one row.
        noise = torch.rand(2, 10 * 16)
        theirs = reference.vit(pictures(160, 256), noise=noise, interpolate_pos_encoding=True).last_hidden_state
        assert_same(model.encode(pictures(160, 256), noise=noise)[0], theirs)


def test_deit_without_a_distillation_head_is_read_exactly(tmp_path):
    reference = shake(transformers.DeiTForImageClassification(transformers.DeiTConfig(**SIZED, num_labels=7)))
    reference.save_pretrained(tmp_path / "deit")
    model = model_from(read_checkpoint(tmp_path / "deit"))
    with torch.no_grad():
        assert_same(model(pictures(224, 224)), reference(pictures(224, 224)).logits)
