"""Folders of transformers beyond its image classifiers: bare backbones, whole CLIP and SigLIP models, other heads."""

import pytest
import torch
import transformers

from tests.parity.peers import assert_same, pictures, shake
from tests.weights.small import output
from vitrail.weights import model_from, read_checkpoint

pytestmark = pytest.mark.filterwarnings("ignore:.* fits no model of the catalog")

SHAPE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 32, "patch_size": 8}
TEXT = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
X = pictures(32, 32)


def saved(reference, path):
    shake(reference).save_pretrained(path)
    return reference


def test_bare_vit_gives_the_class_token_and_leaves_its_pooler(tmp_path):
    reference = saved(transformers.ViTModel(transformers.ViTConfig(**SHAPE, intermediate_size=64)), tmp_path)
    model = model_from(read_checkpoint(tmp_path))
    assert model.settings.num_classes == 0
    with torch.no_grad():
        assert_same(output(model, X), reference(X).last_hidden_state[:, 0])


def test_image_half_of_a_whole_clip_with_its_projection(tmp_path):
    vision = {**SHAPE, "intermediate_size": 64, "hidden_act": "quick_gelu"}
    config = transformers.CLIPConfig(vision_config=vision, text_config=TEXT, projection_dim=24)
    reference = saved(transformers.CLIPModel(config), tmp_path)
    checkpoint = read_checkpoint(tmp_path)
    settings = checkpoint.settings
    assert (settings.num_classes, settings.head_bias, settings.activation) == (24, False, "quick_gelu")
    assert checkpoint.unknown == []
    with torch.no_grad():
        features = reference.vision_model(X).pooler_output
        assert_same(output(model_from(checkpoint), X), reference.visual_projection(features))
        assert_same(output(model_from(checkpoint, num_classes=0), X), features)


def test_image_half_of_a_whole_siglip(tmp_path):
    config = transformers.SiglipConfig(vision_config={**SHAPE, "intermediate_size": 64}, text_config=TEXT)
    reference = saved(transformers.SiglipModel(config), tmp_path)
    checkpoint = read_checkpoint(tmp_path)
    assert (checkpoint.settings.pool, checkpoint.settings.activation) == ("attention", "gelu_tanh")
    with torch.no_grad():
        assert_same(output(model_from(checkpoint), X), reference.vision_model(X).pooler_output)


def test_classifier_that_reads_more_than_the_pooled_vector_is_left_out_aloud(tmp_path):
    reference = saved(
        transformers.Dinov2ForImageClassification(transformers.Dinov2Config(**SHAPE, num_labels=3)), tmp_path
    )
    with pytest.warns(UserWarning, match=r"left out, unknown here: classifier\.bias, classifier\.weight"):
        checkpoint = read_checkpoint(tmp_path)
    with torch.no_grad():
        assert_same(output(model_from(checkpoint), X), reference.dinov2(X).pooler_output)
