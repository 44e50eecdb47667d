"""`vitrail export`: what is printed, what is written, and that `--model file.onnx` predicts and embeds."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
import tyro
from PIL import Image

import vitrail
from tests.parity.peers import shake
from vitrail.cli.embed import embed
from vitrail.cli.explain import explain
from vitrail.cli.export import export
from vitrail.cli.predict import predict
from vitrail.models import Preprocessing


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = shake(vitrail.create_model("vit_ti16", depth=1, num_classes=3, image_size=32))
    labels = ["ant", "bee", "cat"]
    vitrail.Predictor(model, Preprocessing(size=(32, 32)), labels, device="cpu").save("run/model.safetensors")
    noise = np.random.default_rng(0).integers(0, 256, (40, 50, 3), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / "photo.png")
    return tmp_path


def run(verb, *arguments):
    return tyro.cli(verb, args=[*map(str, arguments)])


def test_onnx_is_written_checked_and_serves_where_a_run_does_but_shows_no_layers(folder, capsys):
    assert not run(export, "run", "--to", "onnx", "--out", "shipped/small.onnx")
    printed = capsys.readouterr().out
    megabytes = float(re.search(r"^shipped/small\.onnx: ([\d.]+) MB, in [\d.]+ s$", printed, re.M)[1])
    assert megabytes == pytest.approx(Path("shipped/small.onnx").stat().st_size / 1e6, abs=0.05)
    said = (
        r"The written file, read back and run by onnxruntime: largest difference of the logits from the model's (\S+)"
    )
    assert float(re.search(said, printed)[1]) < 1e-5
    for verb, out in ((predict, "--csv"), (embed, "--out")):
        for model, name in (("run", "of_run"), ("shipped/small.onnx", "of_onnx")):
            suffix = ".csv" if verb is predict else ".npz"
            assert run(verb, "photo.png", "--model", model, out, name + suffix) == 0
    assert Path("of_onnx.csv").read_text()[:40] == Path("of_run.csv").read_text()[:40]
    with np.load("of_run.npz") as ours, np.load("of_onnx.npz") as theirs:
        assert np.abs(ours["embeddings"] - theirs["embeddings"]).max() < 1e-4
    words = r"^shipped/small\.onnx is an ONNX file, which shows no layers: name the run it was exported from\.$"
    with pytest.raises(vitrail.VitrailError, match=words):
        run(explain, "photo.png", "--model", "shipped/small.onnx", "--out", "seen")


@pytest.mark.parametrize(
    ("to", "name"),
    [("timm", "model.timm.safetensors"), ("torchvision", "model.torchvision.pth"), ("hf", "model-hf")],
)
def test_another_dialect_lies_beside_the_model_and_reads_back_the_same(folder, capsys, to, name):
    assert not run(export, "run", "--to", to)
    printed = capsys.readouterr().out
    assert f"run/{name}: 2.4 MB, in " in printed
    assert "read back and run by Vitrail: largest difference of the logits from the model's 0.0e+00" in printed
    assert ("the labels and the preprocessing stay in the run" in printed) == (to != "hf")
    assert sorted(p.name for p in Path("run").iterdir()) == sorted(["model.safetensors", name])
    assert vitrail.load("run", device="cpu").labels == ["ant", "bee", "cat"]  # still its own bundle


@pytest.mark.parametrize(("to", "name"), [("onnx", "model.onnx"), ("timm", "model.timm.safetensors")])
def test_what_a_masked_autoencoder_has_not_is_not_spoken_of(folder, capsys, to, name):
    model = shake(vitrail.create_model("mae_b16", depth=1, decoder_depth=1, image_size=32))
    about = {"task": "reconstruct"}  # as `vitrail pretrain` writes it
    vitrail.Predictor(model, Preprocessing(size=(32, 32)), device="cpu", about=about).save("mae/model.safetensors")
    assert not run(export, "mae", "--to", to)
    printed = capsys.readouterr().out
    assert Path("mae", name).exists() and "features" in printed
    if to == "onnx":  # the encoder alone, which embeds as the run does
        image = np.full((32, 32, 3), 90, np.uint8)
        ours, theirs = (vitrail.load(path, device="cpu").embed(image) for path in ("mae", f"mae/{name}"))
        assert torch.allclose(ours, theirs, atol=1e-4)
    assert "logits" not in printed and "labels" not in printed
    assert ("encoder" in printed) == (to == "onnx") and ("preprocessing" in printed) == (to != "onnx")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["nowhere.safetensors"], "There is no file nowhere.safetensors"),
        (["run", "--out", "m.bin"], "The name of a file for onnx ends in .onnx; m.bin does not"),
        (["run", "--to", "hf", "--out", "run"], "would overwrite the model itself"),
        (["run", "--to", "timm", "--out", "run/model.safetensors"], "would overwrite the model itself"),
        (["run", "--to", "timm", "--out", "photo.png/m.pth"], "can't be written"),
    ],
)
def test_a_mistake_is_one_sentence_and_leaves_no_file(folder, arguments, sentence, capsys):
    with pytest.raises(vitrail.VitrailError) as error:
        run(export, *arguments)
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)
    assert "writing" not in capsys.readouterr().err
    assert sorted(p.name for p in folder.rglob("*")) == ["model.safetensors", "photo.png", "run"]
