"""What a run prints: which epoch is kept and why, and what would help next."""

import io

import pytest
from PIL import Image
from rich.console import Console

from tests.training.support import make_trainer
from vitrail.console import View, fitting
from vitrail.training.fast.cuda_graph import reason
from vitrail.training.messages import show_nameless
from vitrail.training.selection import ahead
from vitrail.training.trainer import Progress


@pytest.mark.parametrize("error", [None, 0.01])  # of a share of images, and as a task measures it
def test_kept_says_why_where_an_earlier_epoch_has_the_better_figure(error, capsys):
    trainer, view = make_trainer(epochs=5), View()
    more = {} if error is None else {"top1_error": error}
    trainer.validated, answers = 2500, iter([0.41, 0.462, 0.4586, 0.3, 0.47])
    trainer.validate = lambda model: {"loss": 1.0, "top1": next(answers), **more}
    trainer.run(lambda row, kept: view.epoch(row, 5, kept, ahead(row, trainer.history, trainer.figure)))
    first, better, later, worse, best = capsys.readouterr().out.splitlines()
    assert all(line.endswith("  kept") for line in (first, better, best))
    assert later.endswith("  kept for being later: 0.4620 is ahead by less than a standard error")
    assert "kept" not in worse


def test_what_the_first_step_takes_to_compile_is_not_taken_for_the_pace():
    trainer = make_trainer(epochs=2)
    trainer.steps, trainer.batch_size, trainer.step, trainer.sums["time"] = 10, 4, 1, 30.0
    trainer.warm = (0, 1, 30.0)
    assert trainer._progress().seconds_left is None
    trainer.step, trainer.sums["time"] = 3, 34.0
    assert trainer._progress().seconds_left == pytest.approx(17 * 2.0)
    trainer.epoch, trainer.step, trainer.sums["time"] = 1, 4, 8.0
    assert trainer._progress().seconds_left == pytest.approx(6 * 2.0)


def test_on_a_narrow_terminal_pace_and_time_left_come_before_bar_and_score():
    now = Progress(12, 120, 13, 35, 5.2144, 264.0, 0.01, 3960.0, {"val_top1": 0.0192})
    view = View()
    view.beside = " (from 5.30; good: 2.1 to 3.0)"
    view._console = Console(file=io.StringIO(), force_terminal=True, width=80)
    lines, view.progress = {}, lambda text: lines.update({view._console.width: text})
    for width in (200, 80, 20):
        view._console.width = width
        view.step(now)
    assert lines[80] == "  epoch 12/120  step 13/35  1 h 06 min left  loss 5.214  264 images/s"
    assert all(word in lines[200] for word in ("█", "val_top1 0.019", "(from 5.30; good: 2.1 to 3.0)", lines[80][-12:]))
    assert lines[20] == "  epoch 12/120" and fitting((0, "a"), (1, None), width=None) == "  a"


@pytest.mark.parametrize(("rate", "words"), [(0.31, "0.3"), (9.4, "9.4"), (12.6, "13"), (54321.0, "54,321")])
def test_a_slow_pace_keeps_a_decimal(rate, words, capsys):
    View().epoch({"epoch": 1, "train_loss": 1.0, "images_per_second": rate}, 1, False)
    assert capsys.readouterr().out.endswith(f"train loss 1.0000  {words} images/s\n")


def test_a_picture_is_drawn_in_half_blocks_on_a_terminal_and_nowhere_else(capsys):
    picture = Image.new("RGBA", (2, 4), (0, 0, 0, 0))
    picture.putpixel((0, 0), (255, 0, 0, 255))
    picture.putpixel((0, 1), (0, 0, 255, 255))
    view = View()
    view.picture(picture)
    assert capsys.readouterr().out == "" and view.width == 0
    view._console = Console(file=io.StringIO(), force_terminal=True, color_system="truecolor", width=40)
    view.picture(picture)
    for poor in ({"color_system": "standard"}, {"color_system": "truecolor", "no_color": True}):
        plain = View()
        plain._console = Console(file=io.StringIO(), force_terminal=True, width=40, **poor)
        plain.picture(picture)
        assert plain.width == 0 and plain._console.file.getvalue() == ""
    upper, lower = view._console.file.getvalue().splitlines()
    assert "\x1b[38;2;255;0;0;48;2;0;0;255m▀" in upper and "▀" not in lower and view.width == 40


def test_classes_without_names_get_a_hint(capsys):
    show_nameless(View(), ["class 0", "class 1"])
    assert "classes.txt" in capsys.readouterr().out
    show_nameless(View(), ["class 0", "cat"])
    assert capsys.readouterr().out == ""
