"""`vitrail embed`: the file holds what `Predictor.embed` gives, row by row."""

import subprocess
import sys

import numpy as np
import pytest
import tyro
from PIL import Image

import vitrail
from tests.parity.peers import shake
from vitrail.cli.embed import embed
from vitrail.models import Preprocessing


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = shake(vitrail.create_model("vit_ti16", depth=1, num_classes=3, image_size=32))
    vitrail.Predictor(model, Preprocessing(size=(32, 32)), device="cpu").save("run/model.safetensors")
    (tmp_path / "pictures").mkdir()
    for i, name in enumerate(("a.png", "b.png", "c.png")):
        noise = np.random.default_rng(i).integers(0, 256, (40, 50, 3), dtype=np.uint8)
        Image.fromarray(noise).save(tmp_path / "pictures" / name)
    return tmp_path


def run(*arguments):
    return tyro.cli(embed, args=[*map(str, arguments)])


def test_npz_holds_paths_and_float32_rows(folder, capsys):
    assert run("pictures", "--model", "run", "--out", "e.npz", "--batch-size", 2) == 0
    assert "e.npz: 3 pictures, 192 numbers each" in capsys.readouterr().out
    with np.load("e.npz", allow_pickle=False) as file:
        assert file["paths"].tolist() == ["pictures/a.png", "pictures/b.png", "pictures/c.png"]
        assert file["embeddings"].dtype == np.float32
        expected = vitrail.load("run", device="cpu").embed([*file["paths"]], batch_size=2)
        assert np.array_equal(file["embeddings"], expected.numpy())


def test_parquet_holds_the_same_and_the_mean_of_views_if_asked(folder):
    from pyarrow import parquet

    assert run("pictures", "--model", "run", "--out", "e.parquet", "--flip", "--crops", 5) == 0
    table = parquet.read_table("e.parquet")
    assert table.column_names == ["path", "embedding"]
    assert str(table.schema.field("embedding").type) == "fixed_size_list<element: float>[192]"
    paths = table["path"].to_pylist()
    expected = vitrail.load("run", device="cpu").embed(paths, flip=True, crops=5)
    assert np.array_equal(np.array(table["embedding"].to_pylist(), np.float32), expected.numpy())


def test_a_bad_picture_is_skipped_and_named(folder, capsys):
    (folder / "pictures" / "bad.png").write_bytes(b"")
    assert run("pictures", "--model", "run", "--out", "e.npz") == 1
    assert "skipped: pictures/bad.png is empty" in capsys.readouterr().err
    with np.load("e.npz") as file:
        assert file["embeddings"].shape == (3, 192)
        assert "pictures/bad.png" not in file["paths"].tolist()
    assert run("pictures/a.png", "--model", "run", "--out", "new/folder/e.npz") == 0
    assert capsys.readouterr().out == "new/folder/e.npz: 1 picture, 192 numbers each\n"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["pictures", "--model", "run", "--out", "e.csv"], "--out must end in .npz or .parquet, got e.csv"),
        (["pictures", "--model", "run", "--out", "bad.png/e.npz"], "bad.png/e.npz can't be written"),
        (["pictures", "--model", "none.pth", "--out", "e.npz"], "There is no file none.pth"),
        (["bad.png", "--model", "run", "--out", "e.npz"], "Not one of the pictures can be used; e.npz was not written"),
    ],
)
def test_a_mistake_is_one_sentence_and_leaves_no_file(folder, arguments, sentence):
    (folder / "bad.png").write_bytes(b"")
    with pytest.raises(vitrail.VitrailError) as error:
        run(*arguments)
    assert sentence in str(error.value)
    assert sorted(p.name for p in folder.iterdir()) == ["bad.png", "pictures", "run"]


def test_a_missing_extra_is_named(folder):
    code = """
import sys
for name in ("pyarrow", "onnx", "onnxscript", "onnxruntime"):
    sys.modules[name] = None
from pathlib import Path
import vitrail
from vitrail.cli.embed import embed
for call in (lambda: embed([Path("pictures")], Path("e.parquet"), "run"), lambda: vitrail.export("run", "onnx"),
             lambda: vitrail.load("m.onnx")):
    try:
        call()
    except vitrail.VitrailError as error:
        print(error)
"""
    (folder / "m.onnx").write_bytes(b"x")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert ["vitrail[parquet]" in lines[0], "vitrail[onnx]" in lines[1], "vitrail[onnx]" in lines[2]] == [True] * 3
    assert sorted(p.name for p in folder.iterdir()) == ["m.onnx", "pictures", "run"]
