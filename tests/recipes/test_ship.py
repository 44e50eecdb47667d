"""From a run to the file in the package, and from the repository to a wheel that predicts."""

import json
import subprocess
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path

import matplotlib
import pytest
import ship
import torch

import vitrail
from tests.training.support import make_folder, small_options
from vitrail import VitrailError
from vitrail.models.heads import classifiers
from vitrail.predict import Predictor
from vitrail.weights import read_checkpoint
from vitrail.weights.shipped import CLASSIFIER, LARGEST, shipped

ROOT = Path(__file__).parents[2]
HOPPER = Path(matplotlib.get_data_path()) / "sample_data" / "grace_hopper.jpg"  # a photograph that every install has


def test_the_labels_are_two_hundred_names_in_the_order_of_their_ids():
    rows = [line.split("\t") for line in ship.LABELS.read_text(encoding="utf-8").splitlines()]
    ids = [row[0] for row in rows]
    assert ids == sorted(ids) and len(set(ids)) == len({row[1] for row in rows}) == 200
    assert ship.readable(["n03763968", "my own", "n07747607"]) == ["military uniform", "my own", "orange"]


def test_a_run_is_shipped_in_half_precision_with_its_figures_and_without_its_machine(tmp_path):
    data = make_folder(tmp_path / "n01443537 and others", 24)
    for old, new in zip(sorted(data.iterdir()), ("n01443537", "n02123394", "n12267677"), strict=True):
        old.rename(data / new)
    run = vitrail.train(data, **small_options(epochs=1, batch_size=8, out=tmp_path / "run"))
    record = "records/studies/distillation.json"
    path = ship.ship(run, "vitrail_tiny", record, tmp_path / "inside")
    found = read_checkpoint(path)
    assert found.labels == ["goldfish", "Persian cat", "acorn"] and found.name == "vitrail_tiny"
    assert found.about["recipe"]["epochs"] == 1 and found.about["record"] == record
    assert found.about["metrics"]["top1"] == run.metrics["top1"]
    assert "tested" not in found.about  # that is of other records
    assert str(tmp_path) not in path.read_bytes()[:20_000].decode("latin1")
    assert path.stat().st_size < 0.6 * (run.folder / "model.safetensors").stat().st_size
    assert shipped("vitrail_tiny", tmp_path / "inside") == path


def test_the_figures_on_test_images_are_those_of_the_run_with_that_recipe():
    record = "records/speedrun/tiny_imagenet_hybrid.json"
    of = json.loads((ROOT / record).read_text())
    assert ship.tested(record, of["recipe"] | {"seed": 0, "augment": "strong"}) == of["runs"][0]["figures"]
    assert ship.tested(record, of["recipe"] | {"seed": 1}) == {} == ship.tested("records/speed/throughput.json", {})
    with pytest.raises(VitrailError, match="another recipe"):
        ship.tested(record, of["recipe"] | {"seed": 0, "epochs": 3})


def test_it_may_look_at_larger_pictures_than_it_learned_from(tmp_path):
    model = vitrail.create_model("vit_nano4", num_classes=3, image_size=16)
    bundle = vitrail.save_weights(model, tmp_path / "small.safetensors")
    path = ship.ship(bundle, "vitrail_tiny", folder=tmp_path / "inside", image_size=24)
    found = vitrail.load(path)
    assert found.preprocessing.size == (24, 24) and found.model.settings.image_size == (16, 16)
    assert found.probabilities(torch.rand(3, 50, 40)).shape == (1, 3)


def test_what_is_too_large_is_not_shipped(tmp_path):
    model = vitrail.create_model("deit_ti16", depth=14, num_classes=2)  # 6.5 M parameters
    bundle = vitrail.save_weights(model, tmp_path / "large.safetensors")
    with pytest.raises(VitrailError, match=r"takes 1\d\.\d MB, and 12 MB is the limit"):
        ship.ship(bundle, "vitrail_tiny", folder=tmp_path / "inside")
    assert not [*(tmp_path / "inside").iterdir()]
    before = tmp_path / "inside" / "vitrail_tiny.safetensors"
    before.write_text("the last good one")
    with pytest.raises(VitrailError, match="12 MB is the limit"):
        ship.ship(bundle, "vitrail_tiny", folder=before.parent)
    assert before.read_text() == "the last good one" and [*before.parent.iterdir()] == [before]
    with pytest.raises(VitrailError, match="none of the models that ship inside"):
        ship.ship(bundle, "vitrail_huge")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Built without a network, by the builder that pyproject.toml names."""
    if not find_spec("hatchling"):
        pytest.skip("hatchling, which builds the wheel, is not installed here; make test installs it")
    folder = tmp_path_factory.mktemp("wheel")
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (built,) = folder.glob("*.whl")
    return built


def test_the_wheel_holds_the_package_its_page_and_what_ships(wheel):
    inside = set(zipfile.ZipFile(wheel).namelist())
    source = ROOT / "src"
    wanted = {
        path.relative_to(source).as_posix()
        for path in (source / "vitrail").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert wanted <= inside and "vitrail/serve/page/index.html" in wanted
    assert {name for name in inside if name.endswith(".safetensors")} == {
        f"vitrail/shipped/{name}.safetensors" for name in LARGEST if shipped(name)
    }
    assert wheel.stat().st_size < 20_000_000


def test_an_installed_wheel_predicts_on_a_photograph_without_a_network(wheel, tmp_path):
    """A wheel without compiled parts is installed by unpacking it. Whoever opens a connection is refused."""
    place = tmp_path / "place"
    zipfile.ZipFile(wheel).extractall(place)
    if not shipped(CLASSIFIER):  # a copy without its models, as while they are being trained
        model = vitrail.create_model("vit_nano4", num_classes=2, image_size=16)
        torch.nn.init.normal_(classifiers(model)[0].weight)
        (place / "vitrail" / "shipped").mkdir(exist_ok=True)
        inside = place / "vitrail" / "shipped" / f"{CLASSIFIER}.safetensors"
        Predictor(model, model.preprocessing, ["cat", "dog"], CLASSIFIER, "cpu").save(inside, half=True)
    code = """
import socket, sys
def refuse(*_, **__): raise OSError("no network here")
socket.socket.connect = socket.getaddrinfo = refuse
import vitrail
print(vitrail.__file__, file=sys.stderr)
from vitrail.cli import main
main(["predict", sys.argv[1], "--top", "2", "--device", "cpu"])
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(HOPPER)],
        cwd=tmp_path, capture_output=True, text=True, env={"PYTHONPATH": str(place), "PATH": "", "HOME": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert str(place) in done.stderr and "vitrail_tiny, which ships inside" in done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == str(HOPPER) and len(lines) == 3 and lines[1].split()[0].endswith("%")
    if shipped(CLASSIFIER):
        assert "bow tie" in done.stdout  # hers is one, or nearly
