"""ONNX files: the same numbers as the model at any batch and size, and a predictor like that of the run."""

import importlib
import shutil

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import vitrail
from tests.parity.peers import shake
from vitrail.exporters import export, onnx
from vitrail.models import Preprocessing
from vitrail.weights.onnx import OnnxModel

LABELS = ["ant", "bee", "猫"]
ABOUT = {"task": "classify", "multi_label": True, "thresholds": [0.2, 0.5, 0.9]}


@pytest.fixture(scope="module")
def predictor():
    model = shake(vitrail.create_model("vit_ti16", depth=1, num_classes=3, image_size=64))
    with torch.no_grad():
        model.position.table.mul_(20)  # or a wrong resize of it would hardly show
    pre = Preprocessing(size=(64, 64), crop=0.9)
    return vitrail.Predictor(model, pre, LABELS, "vit_ti16", "cpu", ABOUT)


@pytest.fixture(scope="module")
def exported(predictor, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    predictor.save(folder / "model.safetensors")
    return export(folder)


def noise(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def test_the_file_lies_beside_the_model_and_was_checked(exported):
    assert exported.path.name == "model.onnx"
    assert sorted(p.name for p in exported.path.parent.iterdir()) == ["model.onnx", "model.safetensors"]
    assert exported.difference <= 1e-5
    assert exported.megabytes == pytest.approx(exported.path.stat().st_size / 1e6)
    assert exported.seconds > 0


@pytest.mark.parametrize("shape", [(1, 64, 64), (5, 64, 64), (2, 96, 48), (1, 64, 160), (1, 50, 71), (1, 64, 17)])
def test_a_vit_gives_the_same_logits_and_features_at_any_batch_height_and_width(exported, predictor, shape):
    graph, x = OnnxModel(exported.path), noise(shape[0], 3, *shape[1:])
    with torch.no_grad():
        logits, features = predictor.model(x), predictor.model.features(x)["pooled"]
    assert logits.abs().max() > 0.1
    torch.testing.assert_close(graph(x), logits, rtol=0, atol=1e-5)
    torch.testing.assert_close(graph.features(x)["pooled"], features, rtol=0, atol=1e-4)


def test_a_predictor_from_the_file_is_the_predictor_of_the_run(exported, predictor):
    again = vitrail.load(exported.path)
    assert (again.labels, again.preprocessing, again.name, again.about) == (
        LABELS,
        predictor.preprocessing,
        "vit_ti16",
        ABOUT,
    )
    images = np.random.default_rng(0).integers(0, 256, (3, 70, 90, 3), dtype=np.uint8)
    torch.testing.assert_close(again.probabilities(images), predictor.probabilities(images), rtol=0, atol=1e-6)
    torch.testing.assert_close(again.embed(images), predictor.embed(images), rtol=0, atol=1e-4)
    flipped = (again.probabilities(images, flip=True, crops=5), predictor.probabilities(images, flip=True, crops=5))
    torch.testing.assert_close(*flipped, rtol=0, atol=1e-6)
    assert [[p.label for p in one] for one in again.predict(images)] == [
        [p.label for p in one] for one in predictor.predict(images)
    ]
    larger = vitrail.load(exported.path, image_size=(96, 80), fit="pad")
    assert larger.probabilities(images).shape == (3, 3)


def test_the_file_names_its_sizes_and_tells_nothing_of_this_machine(exported):
    import onnx as library

    model = library.load(exported.path)
    library.checker.check_model(model)
    (images,) = model.graph.input
    assert [d.dim_param or d.dim_value for d in images.type.tensor_type.shape.dim] == ["batch", 3, "height", "width"]
    assert [output.name for output in model.graph.output] == ["logits", "features"]
    assert model.opset_import[0].version >= 18
    assert b"site-packages" not in exported.path.read_bytes()
    assert __file__.encode() not in exported.path.read_bytes()


def test_what_needs_the_inside_of_the_model_says_so(exported, predictor, tmp_path):
    graph = vitrail.load(exported.path)
    refused = {
        "The attention of": lambda: vitrail.capture(graph.model).__enter__(),
        "The weights of": lambda: graph.save(tmp_path / "copy.safetensors"),
        "The layers of": lambda: graph.model.features(noise(1, 3, 64, 64), layers=[0]),
        "is an ONNX file already": lambda: export(exported.path),
        "has no weights to take out": lambda: vitrail.load_weights(predictor.model, exported.path),
    }
    for sentence, call in refused.items():
        with pytest.raises(vitrail.VitrailError, match=sentence):
            call()
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_not_ours_or_not_whole_is_one_sentence(exported, tmp_path):
    import onnx as library

    (tmp_path / "cut.onnx").write_bytes(exported.path.read_bytes()[:1000])
    model = library.load(exported.path)
    del model.metadata_props[:]
    library.save(model, tmp_path / "theirs.onnx")
    for name, sentence in {
        "cut.onnx": "can't be opened as an ONNX file",
        "theirs.onnx": "was not written by `vitrail export`",
        "missing.onnx": "There is no file",
    }.items():
        with pytest.raises(vitrail.VitrailError, match=sentence):
            vitrail.load(tmp_path / name)


def test_without_features_in_the_file_embedding_is_refused_and_predicting_works(exported, predictor, tmp_path):
    import onnx as library

    model = library.load(exported.path)
    del model.graph.output[1]
    library.save(model, tmp_path / "logits.onnx")
    alone = vitrail.load(tmp_path / "logits.onnx")
    image = np.zeros((80, 80, 3), np.uint8)
    torch.testing.assert_close(alone.probabilities(image), predictor.probabilities(image), rtol=0, atol=1e-6)
    with pytest.raises(vitrail.VitrailError, match="gives no features to embed with"):
        alone.embed(image)


@pytest.mark.parametrize("old", [(14, 14), (7, 9), (1, 14)])
@pytest.mark.parametrize("new", [(14, 14), (20, 14), (5, 30), (28, 2), (1, 3)])
def test_resizing_by_products_is_the_antialiased_bicubic_of_torch(old, new):
    table = noise(1, 6, *old).double()
    expected = F.interpolate(table, size=new, mode="bicubic", antialias=True)
    torch.testing.assert_close(onnx.resize_by_products(table, list(new)), expected, rtol=0, atol=1e-5)


def test_a_file_that_computes_something_else_is_not_kept(exported, tmp_path, monkeypatch):
    other = vitrail.create_model("vit_ti16", depth=1, num_classes=3, image_size=64)
    run = vitrail.save_weights(shake(other, seed=5), tmp_path / "model.safetensors", name="vit_ti16")
    room = importlib.import_module("vitrail.exporters")  # vitrail.export itself is the function
    monkeypatch.setattr(room, "write_onnx", lambda model, path, *rest: shutil.copy(exported.path, path))
    with pytest.raises(vitrail.VitrailError, match=r"was not kept: its answers differ from the model's by up to \d"):
        export(run)
    assert [p.name for p in tmp_path.iterdir()] == ["model.safetensors"]


def test_weights_beyond_the_limit_of_the_format_lie_in_a_second_file(predictor, tmp_path, monkeypatch):
    monkeypatch.setattr(onnx, "ONE_FILE", 0)  # as if they were 2 GB
    done = export(predictor, out=tmp_path / "large.onnx", check=False)
    assert done.difference is None
    assert sorted(p.name for p in tmp_path.iterdir()) == ["large.onnx", "large.onnx.data"]
    assert done.megabytes == pytest.approx(sum(p.stat().st_size for p in tmp_path.iterdir()) / 1e6)
    x = noise(1, 3, 64, 64)
    with torch.no_grad():
        torch.testing.assert_close(OnnxModel(done.path)(x), predictor.model(x), rtol=0, atol=1e-5)
