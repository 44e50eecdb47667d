"""What a run says before it begins, while it trains, and when it is over."""

import io
import re

import pytest
from rich.console import Console as Terminal

import vitrail
from tests.training.dense_data import make_masks
from tests.training.support import make_folder, small_options
from vitrail import VitrailError
from vitrail.console import Console
from vitrail.training.messages import Kept, advise_shorter, show_epoch, show_step, show_uncompiled
from vitrail.training.run_folder import read_record


@pytest.mark.parametrize(
    ("best", "probed", "code", "share"),
    [
        ({"epoch": 7}, False, "epoch", 1.0),
        ({"epoch": 7, "share": 1.0}, True, "epoch", 1.0),
        ({"epoch": 7, "share": 0.5}, True, "between", 0.5),
        ({"epoch": 0, "share": 0.25}, True, "between", 0.25),
        ({"epoch": 0, "share": 1.0}, True, "last", 1.0),
        ({"epoch": 0, "share": 0.0}, True, "probe", 1.0),
        ({"epoch": 0}, True, "probe", 1.0),
        ({"epoch": 0}, False, "start", 1.0),
    ],
)
def test_weights_that_are_kept_are_called_what_they_are(best, probed, code, share):
    kept = Kept.of(best, probed)
    assert (kept.code, kept.share, kept.epoch) == (code, share, best["epoch"])
    assert kept.tuned == (best.get("share") == 0.0)  # tuning was tried, and was no better
    assert f"{best['epoch']}" in str(kept) or not best["epoch"]
    assert (f"{share:.0%}" in str(kept)) == (code == "between")


def test_an_epoch_that_is_kept_says_so_and_names_the_better_figure_of_an_earlier_one(capsys):
    row = {"epoch": 3, "train_loss": 1.0, "val_loss": 1.1, "val_top1": 0.4586, "val_top1_error": 0.01}
    row["images_per_second"] = 9.4

    def shown(is_best, ahead=None, beside=""):
        show_epoch(Console(), row, 5, beside, is_best, ahead)
        return capsys.readouterr().out

    assert shown(True).rstrip().endswith("  kept") and "0.4586" in shown(True)
    assert "0.4620" in shown(True, 0.462).partition("kept")[2]
    assert "kept" not in shown(False, 0.462)
    assert "0.0100" not in shown(True)  # a standard error is for the choice, not for people
    assert "9.4 images/s" in shown(False)


def test_of_many_epochs_every_twentieth_part_is_shown_and_the_last(capsys):
    for epoch in range(1, 104):
        show_epoch(Console(), {"epoch": epoch, "train_loss": 1.0, "images_per_second": 1.0}, 103, "", False, None)
    shown = [int(line.split()[1].split("/")[0]) for line in capsys.readouterr().out.splitlines()]
    assert shown == [*range(5, 104, 5), 103]


def test_on_a_narrow_terminal_rate_and_time_left_come_before_bar_and_score():
    console, lines = Console(), {}
    console._console = Terminal(file=io.StringIO(), force_terminal=True, width=80)
    console.progress = lambda text: lines.update({console._console.width: text})
    for width in (200, 80, 20):
        console._console.width = width
        beside = " (from 5.30; good: 2.1 to 3.0)"
        show_step(console, 12, 120, 13, 35, 5.2144, beside, 264.0, 0.01, 3960.0, {"val_top1": 0.0192})
    assert lines[80].split("  ")[1:] == [
        "epoch 12/120", "step 13/35", "1 h 06 min left", "loss 5.214", "264 images/s",
    ]  # fmt: skip
    assert all(word in lines[200] for word in ("█", "val_top1 0.019", beside.strip(), lines[80][-12:]))
    assert lines[20] == "  epoch 12/120"


def test_a_device_that_waits_for_data_says_so(capsys):
    for wait, told in ((0.04, False), (0.06, True)):
        console = Console(every=0.0)
        show_step(console, 1, 2, 1, 2, 1.0, "", 10.0, wait, 5.0, {})
        assert (f"{wait:.0%}" in capsys.readouterr().out) == told


def test_a_long_run_is_told_of_with_what_would_take_less(capsys):
    advise_shorter(Console(), 599.0, True)
    assert capsys.readouterr().out == ""
    advise_shorter(Console(), 3600.0, True)
    assert "--tune probe" in capsys.readouterr().out
    advise_shorter(Console(), 3600.0, False)
    said = capsys.readouterr().out
    assert "--epochs" in said and "--tune" not in said


def test_a_model_that_can_not_be_compiled_is_told_of_in_one_line(capsys):
    show_uncompiled(Console())
    said = capsys.readouterr().out
    assert said.count("\n") == 1 and "gcc" in said and "python3-dev" in said


def test_a_class_without_a_readable_image_is_told_of_or_refused(tmp_path, capsys):
    data = make_folder(tmp_path / "data", count=18)
    for path in (data / "class 1").iterdir():
        path.write_bytes(b"no image")
    run = vitrail.train(data, **small_options(epochs=1, batch_size=4), out=tmp_path / "run")
    (note,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("  note: ")]
    assert run.metrics and "class 1" in note
    for path in (data / "class 0").iterdir():
        path.write_bytes(b"no image")
    with pytest.raises(VitrailError, match="class 0, class 1") as info:
        vitrail.train(data, **small_options(epochs=1, batch_size=4), out=tmp_path / "none")
    assert info.value.code == "nothing_to_tell_apart"
    assert not (tmp_path / "none").exists()


def test_a_plan_tells_of_images_that_are_enlarged_and_the_record_keeps_their_side(tmp_path, capsys):
    data = make_folder(tmp_path / "data", count=18)  # of 12×15
    run = vitrail.train(data, **small_options(epochs=1, image_size=16), out=tmp_path / "run")
    assert re.search(r"\n  images +16×16 .* 15 pixels", capsys.readouterr().out)
    assert read_record(run.folder).start().image_side == 15
    vitrail.train(data, **small_options(epochs=0, image_size=8), out=tmp_path / "own")
    assert re.search(r"\n  images +8×8 .*(?<!\d)\n", capsys.readouterr().out)


@pytest.mark.parametrize("named", [True, False])
def test_classes_that_are_only_numbers_get_a_hint(tmp_path, capsys, named):
    data = make_masks(tmp_path / "masks", {"train": 4, "val": 2})
    if not named:
        (data / "classes.txt").unlink()
    options = small_options(model="vit_nano4", task="segment", head="linear", image_size=16, batch_size=4)
    vitrail.train(data, **options, epochs=0, out=tmp_path / "run")
    assert ("classes.txt" in capsys.readouterr().out) == (not named)


@pytest.mark.parametrize(
    ("options", "chosen"), [({"epochs": 1}, True), ({"epochs": 1, "val": 0.0}, False), ({"epochs": 0}, False)]
)
def test_only_figures_of_images_that_chose_come_with_a_caution(tmp_path, capsys, options, chosen):
    data = make_folder(tmp_path / "data", count=20)
    vitrail.train(data, **small_options(**options), out=tmp_path / "run")
    assert ("vitrail evaluate" in capsys.readouterr().out) == chosen
