"""`vitrail explain`: a folder per picture, one page, and the table of the methods."""

import json
import re
import warnings
from pathlib import Path

import numpy as np
import pytest
import tyro
from PIL import Image

import vitrail
from tests.explain.small import lively, swin
from tests.explain.test_explanation import check_page
from vitrail.cli import main
from vitrail.cli.explain import explain, folder_name
from vitrail.models import Preprocessing


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    predictor = vitrail.Predictor(lively(), Preprocessing(size=(48, 48)), ["cat", "dog", "owl", "fox"], device="cpu")
    predictor.save("run/model.safetensors")
    for place in ("pictures/a.png", "pictures/b c.png", "pictures/more/a.jpg"):
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        noise = np.random.default_rng(len(place)).integers(0, 256, (60, 80, 3), dtype=np.uint8)
        Image.fromarray(noise).save(tmp_path / place)
    return tmp_path


def run(*arguments):
    return tyro.cli(explain, args=[*map(str, arguments)])


def test_a_folder_of_pngs_per_picture_and_one_page(folder, capsys):
    assert run("pictures", "--model", "run", "--out", "out", "--target", "owl") == 0
    said = capsys.readouterr().out
    assert re.search(r"explained: owl \d+\.\d%, in out/b_c", said) and "out/explain.html: 3 pictures of 48×48." in said
    assert {path.name for path in (folder / "out").iterdir()} == {"a", "a_2", "b_c", "model", "explain.html"}
    assert {path.stem for path in (folder / "out" / "model").iterdir()} == {
        "attention_distance", "attention_entropy", "position_similarity", "patch_filters",
    }  # fmt: skip
    text = (folder / "out" / "explain.html").read_text(encoding="utf-8")
    check_page(text)
    assert re.findall(r'<section id="([^"]+)"', text) == ["picture-0", "picture-1", "picture-2", "model"]
    assert text.count("Explained: owl.") == 3 and "Mean of 3 images." in text
    overlay = np.asarray(Image.open(folder / "out" / "a" / "relevance.png"))
    found = vitrail.load("run", device="cpu").explain("pictures/a.png", "owl").overlays(zoom=9)["relevance"]
    assert np.array_equal(overlay, found)


def test_a_page_that_is_there_is_kept_or_its_replacement_is_said(folder, capsys):
    options = ("--model", "run", "--methods", "attention")
    assert run("pictures/a.png", *options) == 0 and run("pictures/b c.png", *options) == 0
    assert "replaced" not in capsys.readouterr().out
    assert "a.png" in (folder / "runs/explained/explain.html").read_text(encoding="utf-8")
    assert "b c.png" in (folder / "runs/explained-2/explain.html").read_text(encoding="utf-8")
    assert run("pictures/b c.png", *options, "--out", "runs/explained") == 0
    assert "runs/explained/explain.html of an earlier call is replaced" in capsys.readouterr().out
    assert not (folder / "runs/explained-3").exists()


def test_blocks_count_from_1_in_the_command_as_on_the_page(folder):
    assert run("pictures/a.png", "--model", "run", "--methods", "attention", "--out", "out", "--layer", "2") == 0
    found = vitrail.load("run", device="cpu").explain("pictures/a.png", layer=1, methods=["attention"])
    assert np.array_equal(np.asarray(Image.open(folder / "out/a/attention.png")), found.overlays(zoom=9)["attention"])
    page = (folder / "out" / "explain.html").read_text(encoding="utf-8")
    assert "Raw attention of block 2," in page and "<span>block 3</span>" in page and "<span>head 1</span>" in page
    assert "layer 0" not in page and "head 0" not in page and "Python counts them from 0" in page


def test_pictures_that_cannot_be_used_are_named_and_skipped(folder, capsys):
    (folder / "pictures" / "bad.png").write_bytes(b"no picture")
    Image.new("RGB", (100_000, 1)).save(folder / "pictures" / "b line.png")  # can be read, but not cropped
    assert run("pictures", "--model", "run", "--out", "out", "--methods", "grad_cam") == 1
    said = capsys.readouterr()
    assert "skipped: pictures/b line.png: An image of 1×100000 (height×width) would need" in said.err
    assert "bad.png" in said.err and "2 of 5 pictures could not be used" in said.err
    assert "out/explain.html: 3 pictures of 48×48." in said.out  # also of those after it
    assert not (folder / "out" / "a" / "rollout.png").exists() and (folder / "out" / "a" / "grad_cam.png").exists()


def test_the_table_of_methods_is_printed_and_written(folder, capsys):
    (folder / "pictures" / "bad.png").write_bytes(b"no picture")
    assert run("pictures", "--model", "run", "--out", "out", "--faithfulness", "--methods", "relevance") == 1
    said = capsys.readouterr().out
    assert re.search(r"relevance +0\.\d{3} +0\.\d{3}", said) and "minus random, picture by picture" in said
    figures = json.loads((folder / "out" / "faithfulness.json").read_text())
    assert figures["n"] == 3 and [*figures["methods"]] == ["relevance", "attention", "random"]
    row = figures["methods"]["relevance"]
    chance = figures["methods"]["random"]["deletion_auc"]
    assert row["deletion_minus_random"] == pytest.approx(row["deletion_auc"] - chance)
    assert f"{row['deletion_auc']:.3f}" in said
    page = (folder / "out" / "faithfulness.html").read_text(encoding="utf-8")
    assert "<table>" in page and f"{row['deletion_auc']:.3f}" in page and "http" not in page.replace("http-equiv", "")
    assert {path.name for path in (folder / "out").iterdir()} == {
        "faithfulness.json", "faithfulness.png", "faithfulness.html",
    }  # fmt: skip


@pytest.mark.parametrize(("before", "said"), [
    (0, "Stopped; nothing was saved yet."), (1, "Stopped; 1 picture drawn in out, but no page."),
])  # fmt: skip
def test_who_interrupts_is_told_what_is_there(folder, capsys, monkeypatch, before, said):
    explained = vitrail.Predictor.explain

    def interrupted(predictor, *arguments):
        if (folder / "out").exists() or not before:
            raise KeyboardInterrupt
        return explained(predictor, *arguments)

    monkeypatch.setattr(vitrail.Predictor, "explain", interrupted)
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
    with pytest.raises(SystemExit) as left:
        main(["explain", "pictures", "--model", "run", "--out", "out"])
    assert left.value.code == 130 and capsys.readouterr().err == f"vitrail: {said}\n"
    assert (folder / "out").exists() == bool(before)


def test_folders_of_pictures_with_one_name_do_not_meet():
    taken: set[str] = set()
    names = [folder_name(Path(p), taken) for p in ("x/a.png", "y/A.jpg", "a?b.png", "model.png", "....png", "猫.jpg")]
    assert names == ["a", "A_2", "a_b", "model_2", "picture", "猫"]


def test_mistakes_are_one_sentence(folder, capsys, monkeypatch):
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)  # the command line has its own way

    def said(*arguments, model="run"):
        with pytest.raises(SystemExit) as left:
            main(["explain", *arguments, "--model", model])
        assert left.value.code == 2
        return capsys.readouterr().err

    vitrail.Predictor(swin(), Preprocessing(size=(64, 64)), device="cpu").save("swin/model.safetensors")
    told = said("pictures", "--out", "out", "--methods", "relevance", model="swin")  # and not once for every picture
    assert told == (
        "vitrail: relevance needs attention between all patches, and Swin has it in windows only: use grad_cam, "
        "attention, random.\n"
    )
    assert said("pictures", "--out", "out", "--target", "bird") == "vitrail: The model has no class 'bird'.\n"
    assert "--out names a folder, and run/model.safetensors is a file" in said(
        "pictures", "--out", "run/model.safetensors"
    )
    assert "has blocks 1 to 3; there is no block 9" in said("pictures/a.png", "--out", "out", "--layer", "9")
    assert "--layer counts from 1, as the page does" in said("pictures/a.png", "--out", "out", "--layer", "0")
    assert "--batch-size must be at least 1" in said("pictures", "--out", "out", "--batch-size", "0")
