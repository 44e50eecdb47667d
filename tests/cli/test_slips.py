"""What the command line answers to a slip of the fingers: a few lines about the verb that was meant."""

import re
import warnings

import numpy as np
import pytest

import vitrail
from vitrail import create_model, load, save_weights
from vitrail.cli import VERBS, main
from vitrail.cli.pictures import progress, report_skipped


def answer(capsys, *arguments):
    with pytest.raises(SystemExit) as stopped:
        main([*arguments])
    assert stopped.value.code == 2
    return capsys.readouterr().err


def test_a_misspelt_command_is_one_line_with_the_nearest(capsys):
    told = answer(capsys, "explian", "cat.jpg")
    assert told.count("\n") == 1 and told.endswith('Did you mean "explain"?\n')
    assert all(verb in told for verb in VERBS)
    told = answer(capsys, "data", "inspct", "pets")
    assert told == "vitrail: There is no command 'data inspct'; there is `vitrail data inspect`.\n"
    assert answer(capsys, "--modle", "x").startswith("vitrail: A command comes first, then its options")


@pytest.mark.parametrize("verb", [["predict"], ["embed", "--out", "e.npz"], ["explain"]])
def test_a_model_among_the_pictures_is_told_where_it_goes(verb, tmp_path, capsys):
    file = tmp_path / "model.onnx"
    file.write_bytes(b"")
    assert answer(capsys, *verb, str(file)).endswith("model.onnx is a model, not a picture: put it behind --model.\n")


def test_the_version_is_one_line(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["--version"])
    assert stopped.value.code == 0 and capsys.readouterr().out == f"vitrail {vitrail.__version__}\n"


def test_a_misspelt_option_is_about_its_own_verb(capsys):
    told = answer(capsys, "predict", "cat.jpg", "--modle", "deit")
    assert "--model STR" in told and "vitrail predict --help" in told
    assert not any(f"vitrail {verb} " in told for verb in VERBS if verb != "predict")


@pytest.mark.parametrize(
    ("verb", "option"),
    [("explain", "--methods"), ("predict", "--fit"), ("train --task segment", "--head"), ("train", "--tune")],
)
def test_none_is_no_choice(verb, option, capsys):
    told = answer(capsys, *verb.split(), "cat.jpg", option, "relevanse")
    assert "invalid choice 'relevanse'" in told and "None" not in told


def test_an_option_of_another_task_is_answered_with_the_tasks_that_have_it(capsys):
    told = answer(capsys, "train", "pets", "--head", "fcn")
    assert told.startswith("vitrail: --head ") and "--task segment" in told and "--task detect" in told
    told = answer(capsys, "train", "pets", "--task", "detect", "--mixup=0.2")
    assert told.startswith("vitrail: --mixup ") and "--task classify" in told
    assert "`pretrain`" in answer(capsys, "train", "pets", "--mask-ratio", "0.5")
    assert "`pretrain`" in answer(capsys, "pretrain", "pets", "--tune", "lora")
    told = answer(capsys, "train", "pets", "--task", "segmnt")
    assert told.count("\n") == 1 and 'Did you mean "segment"?' in told


def test_what_is_no_number_is_told_in_words(capsys):
    assert "--epochs: must be a whole number, got 'abc'" in answer(capsys, "train", "pets", "--epochs", "abc")
    assert "--top: must be a whole number, got '3.5'" in answer(capsys, "predict", "cat.jpg", "--top", "3.5")
    assert "--lr: must be a number, got 'high'" in answer(capsys, "train", "pets", "--lr", "high")


def test_one_picture_that_can_not_be_used_is_one(capsys):
    assert report_skipped(["a.jpg is empty."], 1) == 1
    assert capsys.readouterr().err.endswith("vitrail: 1 of 1 picture could not be used.\n")


def test_an_option_without_a_value_of_its_own_is_left_out(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["predict", "--help"])
    told = capsys.readouterr().out
    assert stopped.value.code == 0 and "--model STR" in told and "{None}" not in told


def test_progress_is_silent_when_the_work_is_over(capsys):
    with progress(2, every=0.0) as advance:
        advance()
        advance()
    assert re.fullmatch(r"vitrail: 1 of 2 pictures, .* s left\n", capsys.readouterr().err)


def test_a_size_far_from_training_is_told(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.warns(UserWarning, match="was trained on 16×16 pixels; 32×32 is far from that"):
        load(save_weights(create_model("vit_nano4", num_classes=2, image_size=16), "own.safetensors"), image_size=32)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert load("own.safetensors", image_size=24).preprocessing.size == (24, 24)
        native = load("own.safetensors", fit="native")
        native.predict(np.zeros((24, 30, 3), np.uint8))
    with pytest.warns(UserWarning) as told:
        native.predict([np.zeros((24, 32, 3), np.uint8), np.zeros((64, 64, 3), np.uint8)])
    assert [str(one.message) for one in told] == [  # once is enough
        "The model was trained on 16×16 pixels; 24×32 is far from that, expect less of it."
    ]
