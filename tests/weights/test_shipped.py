"""The models that ship inside: found by name, used where none is named, half the bytes and the same answers."""

import json
import os

import numpy as np
import pytest
import torch
from PIL import Image

import vitrail
from tests.odd_files import photograph
from tests.training.support import make_folder
from vitrail import VitrailError
from vitrail.cli import main
from vitrail.models.heads import classifiers
from vitrail.predict import Predictor
from vitrail.reasons import Reason
from vitrail.weights import read_checkpoint, shipped
from vitrail.weights.files import read_source
from vitrail.weights.shipped import AUTOENCODER, CLASSIFIER, LARGEST, default_model, shipped_names

LABELS = ["heron", "owl", "teal"]
REAL = shipped.FOLDER


@pytest.fixture
def inside(tmp_path, monkeypatch):
    """A package with small models in it; with the real ones, where they are, the last tests are concerned."""
    folder = tmp_path / "shipped"
    folder.mkdir()
    torch.manual_seed(0)
    for name, architecture, classes in ((CLASSIFIER, "vit_nano4", LABELS), (AUTOENCODER, "mae_b16", None)):
        small = {"num_classes": 3, "image_size": 16} if classes else {
            "image_size": 32, "patch_size": 8, "width": 24, "depth": 2, "heads": 2, "decoder_width": 16,
            "decoder_depth": 1, "decoder_heads": 2,
        }  # fmt: skip
        model = vitrail.create_model(architecture, **small)
        for layer in classifiers(model) if classes else ():
            torch.nn.init.normal_(layer.weight)  # a head that says something
        Predictor(model, model.preprocessing, classes, name, "cpu").save(folder / f"{name}.safetensors", half=True)
    monkeypatch.setattr(shipped, "FOLDER", folder)
    return folder


def test_half_precision_takes_half_of_the_bytes_and_gives_the_same_answers(tmp_path):
    model = vitrail.create_model("vit_nano4", num_classes=3, image_size=16)
    whole = Predictor(model, model.preprocessing, LABELS, device="cpu")
    a, b = whole.save(tmp_path / "a.safetensors"), whole.save(tmp_path / "b.safetensors", half=True)
    assert 0.45 < b.stat().st_size / a.stat().st_size < 0.6
    assert {tensor.dtype for tensor in read_checkpoint(b).state.values()} == {torch.float16}
    halved = vitrail.load(b, device="cpu")
    assert halved.labels == LABELS and next(halved.model.parameters()).dtype == torch.float32
    picture = photograph(1, 16, 16)
    difference = (whole.probabilities(picture) - halved.probabilities(picture)).abs().max()
    assert 0 < difference < 1e-3
    with torch.no_grad():
        next(model.parameters())[0] = 1e6
    with pytest.raises(VitrailError, match=r"beyond what fp16 holds"):
        whole.save(tmp_path / "c.safetensors", half=True)
    assert not (tmp_path / "c.safetensors").exists()


def test_a_model_inside_is_found_by_name_and_by_no_name(inside, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    picture = photograph(2, 40, 30)
    by_none, by_name = vitrail.load(device="cpu"), vitrail.load("vitrail_tiny", device="cpu")
    assert by_none.labels == by_name.labels == LABELS and by_none.name == "vitrail_tiny"
    assert by_none.predict(picture) == by_name.predict(picture)
    assert vitrail.load("vitrail_tiny_mae", device="cpu").embed(picture).shape == (1, 24)
    assert (
        vitrail.load_weights(vitrail.create_model("vit_nano4", num_classes=3, image_size=16), "vitrail_tiny").used > 20
    )
    assert shipped_names() == [CLASSIFIER, AUTOENCODER] and shipped_names(tmp_path) == []
    other = vitrail.create_model("vit_nano4", num_classes=2, image_size=16)
    vitrail.save_weights(other, tmp_path / "vitrail_tiny", labels=["a", "b"])  # a file of that name comes first
    assert vitrail.load("vitrail_tiny").labels == ["a", "b"]


def test_nothing_inside_is_one_sentence(tmp_path, monkeypatch):
    with pytest.raises(VitrailError, match="No model ships inside this copy"):
        default_model(tmp_path)
    monkeypatch.setattr(shipped, "FOLDER", tmp_path)
    with pytest.raises(VitrailError, match="No model ships inside this copy"):
        vitrail.load()
    with pytest.raises(VitrailError, match="'vitrail_tiny' is neither a file or folder nor a model name") as told:
        vitrail.load("vitrail_tiny")
    assert str(told.value).count("vitrail_tiny") == 1 and str(told.value).endswith("`vitrail models` lists them all.")


def test_a_slip_in_a_name_is_answered_with_what_is_there(inside, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "pets").mkdir(parents=True)
    for slip, meant in (("vitrail_tny", "vitrail_tiny"), ("runs/pet", "runs/pets"), ("deit_tny", "deit_tiny")):
        with pytest.raises(VitrailError, match=f"'{slip}' is neither a file .*Did you mean \"{meant}\""):
            vitrail.load(slip)
    with pytest.raises(VitrailError, match=r'There is no file or folder runs/pet; .* Did you mean "runs/pets"'):
        read_source("runs/pet")
    monkeypatch.chdir(tmp_path / "runs")
    with pytest.raises(VitrailError, match=r"'pest' is neither a file .*Did you mean \"pets\""):
        vitrail.load("pest")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(VitrailError) as told:
        vitrail.load("runs/zzzz")
    assert "Did you mean" not in str(told.value)
    (tmp_path / "runs" / "notes.md").touch()
    with pytest.raises(VitrailError) as told:  # no model is a text
        vitrail.load("runs/note")
    assert "Did you mean" not in str(told.value)


@pytest.mark.skipif(os.getuid() == 0, reason="root may read every folder")
def test_a_folder_whose_names_are_not_for_everyone_is_no_traceback(tmp_path):
    (tmp_path / "closed").mkdir(mode=0o111)
    with pytest.raises(VitrailError, match="neither a file or folder"):
        vitrail.load(tmp_path / "closed" / "pets")


def run(*arguments):
    with pytest.raises(SystemExit) as stopped:
        main([str(argument) for argument in arguments])
    assert not stopped.value.code


def test_verbs_without_a_model_use_the_one_inside_and_say_so(inside, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    photograph(3, 48, 64).save("photo.jpg")
    run("predict", "photo.jpg", "--top", 1, "--device", "cpu")
    said = capsys.readouterr()
    (best,) = vitrail.load(device="cpu").predict("photo.jpg", top=1)[0]
    assert best.label in said.out and f"{best.probability:.1%}" in said.out
    assert said.err.startswith("vitrail: with vitrail_tiny, which ships inside and has 200 names for things; --model ")
    run("explain", "photo.jpg", "--device", "cpu")
    assert (tmp_path / "runs/explained/explain.html").is_file()
    assert (tmp_path / "runs/explained/photo").is_dir()
    run("embed", "photo.jpg", "--out", "e.npz", "--device", "cpu")
    with np.load("e.npz") as file:
        assert file["embeddings"].shape == (1, 64)
    run("export", "--to", "timm")
    assert (tmp_path / "vitrail_tiny.timm.safetensors").is_file()
    capsys.readouterr()
    run("models", "vitrail*")
    listed = capsys.readouterr().out
    assert "vitrail_tiny" in listed and "vitrail_tiny_mae" in listed and listed.count("ships inside") == 2


def test_training_can_start_from_a_model_inside(inside, tmp_path):
    started = vitrail.train(
        make_folder(tmp_path / "toys", 18), weights="vitrail_tiny", tune="probe", device="cpu", out=tmp_path / "run"
    )
    assert "vitrail_tiny" in (started.folder / "run.json").read_text()
    before = read_checkpoint(inside / "vitrail_tiny.safetensors").state
    after = read_checkpoint(started.folder).state
    assert torch.equal(before["blocks.0.attention.qkv.weight"].float(), after["blocks.0.attention.qkv.weight"])
    assert vitrail.load(started).labels == ["class 0", "class 1", "class 2"]
    alone = tmp_path / "elsewhere" / "adapter.safetensors"  # its base is in every install
    alone.parent.mkdir()
    (started.folder / "adapter.safetensors").rename(alone)
    picture = photograph(5, 16, 16)
    assert vitrail.load(alone, device="cpu").predict(picture) == vitrail.load(started, device="cpu").predict(picture)


def test_training_without_a_word_starts_from_it_where_pictures_are_like_its_own(inside, tmp_path, monkeypatch):
    def first_line(side, **options):
        data = make_folder(tmp_path / f"{side}", 12, side=side)
        run = vitrail.train(
            data, tune="head", epochs=0, device="cpu", out=tmp_path / f"run{len(options)}{side}", **options
        )
        return json.loads((run.folder / "run.json").read_text())["model"]["why"]

    assert first_line(64) == str(Reason("start_shipped", name="vitrail_tiny"))
    assert first_line(12).startswith("vit_nano4 from scratch: no public weights")
    assert first_line(64, model="vit_mini8").startswith("vit_mini8 from scratch")
    assert first_line(64, weights="none", image_size=8).startswith("vit_nano4 from scratch: --weights none")


def test_what_ships_is_no_architecture(inside, tmp_path):
    data = make_folder(tmp_path / "toys", 18)
    for name in ("vitrail_tiny", "vitrail_tiny_mae"):
        for verb, start in ((vitrail.train, name), (vitrail.pretrain, "vitrail_tiny_mae")):
            sentence = f"^{name} is a trained model and no architecture: .* start from --weights {start}\\.$"
            with pytest.raises(VitrailError, match=sentence):
                verb(data, model=name, device="cpu", out=tmp_path / "run")


@pytest.mark.parametrize("name", LARGEST)
def test_what_really_ships_is_small_and_complete(name):
    path = REAL / f"{name}.safetensors"
    assert path.stat().st_size <= LARGEST[name]
    checkpoint = read_checkpoint(path)
    parameters = sum(tensor.numel() for tensor in checkpoint.state.values())
    assert parameters <= 6_000_000 and checkpoint.name == name and checkpoint.about["recipe"]["epochs"] > 0
    if name == CLASSIFIER:
        assert len(set(checkpoint.labels)) == 200 and checkpoint.labels[0] == "goldfish"
        assert checkpoint.about["tested"]["top1"] > 0.65
        predictor = vitrail.load(path, device="cpu")
        for size in ((64, 64), (480, 640), (900, 500)):
            found = predictor.predict(Image.new("RGB", size[::-1], "orange"), top=200)[0]
            assert abs(sum(one.probability for one in found) - 1) < 1e-4


def test_the_demo_shows_photographs_to_it(inside, tmp_path, capsys, monkeypatch):
    from vitrail.cli.demo import photographs

    answers = photographs(tmp_path / "out")
    said = capsys.readouterr().out
    assert said.startswith("vitrail_tiny ships inside: 3 classes, 16 pixels.") and "Grace Hopper" in said
    assert "what is not among them gets the nearest of its 3 names" in said
    assert answers and set(answers) <= set(LABELS) and [*(tmp_path / "out").rglob("*.png")]
    monkeypatch.setattr(shipped, "FOLDER", tmp_path)
    assert photographs(tmp_path / "none") == []


@pytest.mark.data
def test_it_knows_more_than_half_of_the_photographs_of_its_classes(real_data):
    """Whole photographs of 256 pixels and more, not the 64×64 pictures that it learned from: one of each class whose
    name is the same here and there."""
    predictor, photographs = vitrail.load(device="cpu"), real_data / "imagenet_val_1k"
    names = [label.lower() for label in predictor.labels]
    known = {key: str(name).lower() for key, name in json.loads((photographs / "classes.json").read_text()).items()}
    pairs = [(sorted((photographs / key).glob("*.jpg"))[0], names.index(n)) for key, n in known.items() if n in names]
    found = predictor.probabilities([path for path, _ in pairs])
    truth = torch.tensor([index for _, index in pairs])
    assert len(pairs) > 150
    assert (found.argmax(1) == truth).float().mean() > 0.53
    assert (found.topk(5).indices == truth[:, None]).any(1).float().mean() > 0.78
