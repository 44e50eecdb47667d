"""Weights for other libraries: read back the same, with a word on what the format can't say, or refused."""

import pytest
import torch
from safetensors.torch import load_file

import vitrail
from tests.parity.peers import shake
from vitrail.exporters import export


def reduced(name, **changes):
    model = shake(vitrail.create_model(name, **{"num_classes": 4, "image_size": 64, **changes}))
    return vitrail.Predictor(model, model.preprocessing, list("abcd"), name, "cpu", {"task": "classify"})


@pytest.mark.parametrize(
    ("name", "changes", "to", "note"),
    [
        ("vit_ti16", {"depth": 1}, "timm", None),
        ("vit_ti16", {"depth": 1}, "torchvision", "resizes the positions in its own way"),
        ("vit_ti16", {"depth": 1, "norm_eps": 1e-3}, "timm", "norm_eps=0.001: build the model"),
        ("deit_ti16_distilled", {"depth": 1}, "hf", "resizes the positions in its own way"),
        ("swin_t", {"depths": (1, 1), "heads": (3, 6), "image_size": 56}, "timm", "pads in its own way"),
        ("swin_t", {"depths": (1, 1), "heads": (3, 6)}, "torchvision", None),
        ("swinv2_t", {"depths": (1, 1), "heads": (3, 6)}, "hf", None),
        ("siglip_b16", {"depth": 1, "width": 96, "heads": 2}, "timm", "activation=gelu_tanh"),
    ],
)
def test_the_file_reads_back_as_the_same_model(name, changes, to, note, tmp_path):
    done = export(reduced(name, **changes), to, tmp_path / ("m" if to == "hf" else "m.safetensors"))
    assert done.difference <= 1e-6
    notes = [n for n in done.notes if "stay in the run" not in n]
    assert len(notes) == (note is not None)
    assert note is None or note in notes[0]
    weights = done.path / "model.safetensors" if to == "hf" else done.path
    assert done.megabytes == pytest.approx(weights.stat().st_size / 1e6, rel=0.02)
    assert all(tensor.dtype == torch.float32 for tensor in load_file(weights).values() if tensor.is_floating_point())
    assert [p.name for p in tmp_path.iterdir()] == [done.path.name]


def test_what_a_dialect_can_not_express_is_refused_and_nothing_is_left(tmp_path):
    predictor = reduced("cpvt_ti16", depth=1)
    for to in ("timm", "hf", "torchvision"):
        with pytest.raises(vitrail.VitrailError, match="can't do position='conditional'"):
            export(predictor, to, tmp_path / ("m" if to == "hf" else "m.pth"))
    assert list(tmp_path.iterdir()) == []


def test_a_folder_gets_the_usual_name_and_an_older_export_is_replaced(tmp_path):
    for seed in (1, 2):
        predictor = reduced("vit_ti16", depth=1)
        shake(predictor.model, seed)
        assert export(predictor, "torchvision", tmp_path).path == tmp_path / "model.torchvision.pth"
        assert export(predictor, "hf", tmp_path / "hf").path == tmp_path / "hf"
    names = ["config.json", "model.safetensors", "preprocessor_config.json"]
    assert sorted(p.name for p in (tmp_path / "hf").iterdir()) == names
    image = torch.rand(3, 64, 64)
    again = vitrail.load(tmp_path / "hf", device="cpu")
    assert again.labels == list("abcd")
    torch.testing.assert_close(again.probabilities(image), predictor.probabilities(image), rtol=0, atol=1e-5)


def test_an_unknown_format_is_one_sentence():
    with pytest.raises(vitrail.VitrailError, match=r"to='onx' is not a format: use onnx, .*Did you mean .onnx"):
        export("anything", "onx")
