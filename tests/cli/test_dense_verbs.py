"""explain, embed and doctor with runs that segment or detect: they look into the backbone, and say so."""

from pathlib import Path

import numpy as np
import pytest
import torch
import tyro
from PIL import Image

from tests.dense_models import BACKBONE, seeing_colours
from vitrail import VitrailError, create_model, save_weights
from vitrail.cli.embed import embed
from vitrail.cli.explain import explain
from vitrail.doctor import diagnose
from vitrail.models.dense.detector import Detector


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    seeing_colours("stretch").save("segment.safetensors")
    Image.effect_noise((60, 40), 80).convert("RGB").save("a.png")
    return tmp_path


def test_explain_draws_the_backbone_and_says_where_the_mask_is(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["a.png", "--model", "segment.safetensors", "--out", "seen", "--methods", "rollout", "--device", "cpu"]
    assert tyro.cli(explain, args=arguments) == 0
    assert "made to segment says is drawn by `vitrail predict`" in capsys.readouterr().out
    assert Path("seen/explain.html").stat().st_size > 10_000 and list(Path("seen/a").glob("*rollout*.png"))


def test_a_class_is_refused_where_a_backbone_has_none(folder: Path) -> None:
    with pytest.raises(VitrailError, match=r"no class '1': this model has none, nor has the backbone of a segmenter"):
        tyro.cli(explain, args=["a.png", "--model", "segment.safetensors", "--out", "seen", "--target", "1"])


def test_embed_writes_the_features_of_the_backbone(folder: Path) -> None:
    arguments = ["a.png", "--model", "segment.safetensors", "--out", "v.npz", "--device", "cpu"]
    assert tyro.cli(embed, args=arguments) == 0
    assert np.load("v.npz")["embeddings"].shape == (1, BACKBONE["width"])


def test_doctor_examines_the_backbone_and_minds_no_norm_that_a_pyramid_passes_by(folder: Path) -> None:
    backbone = create_model("vit_ti16", **BACKBONE)
    with torch.no_grad():  # as if trained, but for the last norm, which no loss of a detector reaches
        for name, parameter in backbone.named_parameters():
            if not name.startswith("norm."):
                parameter += 0.1 * torch.randn_like(parameter) + 0.05
    model = Detector(backbone, "retinanet", 2, pyramid="simple", pyramid_channels=16, short_side=32, long_side=64)
    found = diagnose(str(save_weights(model, "detect.safetensors")), device="cpu")
    lines = [str(one) for one in found.findings]
    assert any("the backbone of a model made to detect is examined" in line for line in lines)
    assert not [line for line in lines if "as initialised" in line]
    alone = diagnose(str(save_weights(backbone, "alone.safetensors")), device="cpu")
    assert any("as initialised" in str(one) and "the last norm" in str(one) for one in alone.findings)
