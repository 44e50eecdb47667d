"""Printing: lines, a live line that fits its terminal, images in half blocks, and rates for people."""

import io

import pytest
from PIL import Image
from rich.console import Console as Terminal

from vitrail.console import Console, clock, fitting, pace


def on_terminal(width: int = 40, **kind) -> Console:
    """A console that writes to memory as to a terminal."""
    console = Console()
    kind = {"color_system": "truecolor"} | kind
    console._console = Terminal(file=io.StringIO(), force_terminal=True, width=width, **kind)
    return console


def test_an_image_is_drawn_in_half_blocks_on_a_terminal_and_nowhere_else(capsys):
    image = Image.new("RGBA", (2, 4), (0, 0, 0, 0))
    image.putpixel((0, 0), (255, 0, 0, 255))
    image.putpixel((0, 1), (0, 0, 255, 255))
    plain = Console()
    plain.image(image)
    assert capsys.readouterr().out == "" and plain.width == 0
    console = on_terminal()
    console.image(image)
    upper, lower = console._console.file.getvalue().splitlines()
    assert "\x1b[38;2;255;0;0;48;2;0;0;255m▀" in upper and "▀" not in lower and console.width == 40
    for poor in ({"color_system": "standard"}, {"no_color": True}):
        console = on_terminal(**poor)
        console.image(image)
        assert console.width == 0 and console._console.file.getvalue() == ""


@pytest.mark.parametrize(("rate", "words"), [(0.31, "0.3"), (9.4, "9.4"), (12.6, "13"), (54321.0, "54,321")])
def test_a_slow_rate_keeps_a_decimal(rate, words):
    assert pace(rate) == f"{words} images/s"


@pytest.mark.parametrize(
    ("seconds", "words"), [(59.9, "59 s"), (60, "1 min 00 s"), (3599, "59 min 59 s"), (7320, "2 h 02 min")]
)
def test_seconds_become_minutes_and_hours(seconds, words):
    assert clock(seconds) == words


def test_of_pieces_that_do_not_fit_those_of_the_highest_numbers_are_left_out():
    pieces = (0, "first"), (2, "second"), (1, "third"), (3, None)
    assert fitting(*pieces, width=None) == "  first  second  third"
    assert fitting(*pieces, width=22) == "  first  second  third"
    assert fitting(*pieces, width=21) == "  first  third"
    assert fitting(*pieces, width=3) == "  first"  # the first one is never left out


def test_all_processes_but_the_first_are_silent(capsys):
    silent = Console(active=False)
    silent.line("a")
    silent.table([("name", "value", "reason")])
    silent.progress("b")
    assert capsys.readouterr().out == ""
    Console().table([("name", "1", "why"), ("longer name", "23", "")])
    assert capsys.readouterr().out == "  name          1  why\n  longer name  23\n"
