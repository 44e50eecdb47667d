"""What the Studio's page and the PNGs that it saves say, and whether one can read it."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import vitrail
from vitrail.models import Preprocessing

from .conftest import served_here
from .test_page import Visit

CLASSES = [f"bird {i}" for i in range(12)]
DRAWN = """() => {
    const fill = CanvasRenderingContext2D.prototype.fillText;
    window.drawn = [];
    CanvasRenderingContext2D.prototype.fillText = function (text, ...rest) {
        window.drawn.push(text);
        return fill.call(this, text, ...rest);
    };
}"""


@pytest.fixture(scope="module")
def alone() -> Iterator[str]:
    """One model of twelve classes, none of which it is sure of."""
    torch.manual_seed(0)
    net = vitrail.create_model("vit_ti16", depth=4, image_size=96, num_classes=12)
    torch.nn.init.normal_(net.head.output.weight, std=0.1)
    predictor = vitrail.Predictor(net, Preprocessing(size=(96, 96)), CLASSES, "flock", "cpu", {})
    with served_here(predictor) as address:
        yield address


def saved_words(visit: Visit) -> list[str]:
    """What is written on the PNG."""
    visit.page.evaluate(DRAWN)
    with visit.page.expect_download():
        visit.page.click("#save")
    return visit.page.evaluate("window.drawn")


def settle(visit: Visit) -> None:
    visit.state("busy")
    visit.state("ready")


def test_classes_that_come_up_join_the_list_and_the_png_has_the_same_rows(browser, alone, picture):
    visit = Visit(browser, alone)
    visit.show(picture)
    before = visit.probabilities()
    for row, column in ((1, 3), (1, 4), (2, 3), (2, 4), (3, 4), (0, 0), (5, 5), (4, 1), (5, 0), (4, 4), (3, 1), (0, 5)):
        visit.page.mouse.click(*visit.place(row, column))
    settle(visit)
    after = visit.probabilities()
    new = list(after)[5:]
    assert list(after)[:5] == list(before) and 1 <= len(new) <= 2
    assert max(after[label] for label in new) > min(after[label] for label in before)
    rows = [text.split("\n") for text in visit.page.locator(".classes .line").all_inner_texts()]
    assert [row[1] for row in rows[5:]] == ["came up"] * len(new) and all("→" in row[1] for row in rows[:5])
    words = saved_words(visit)
    assert "12 patches hidden (set to the mean colour)." in words
    expected = [word for label, former, now in rows for word in (now, former, label)]
    place = words.index(expected[0])
    assert words[place : place + len(expected)] == expected
    visit.close()


def test_a_place_for_a_second_picture_says_what_it_is(browser, alone, picture):
    visit = Visit(browser, alone)
    visit.show(picture)
    visit.page.click("#compare")
    second = visit.page.locator(".pane").nth(1)
    assert second.locator(".stage").inner_text() == "Drop a second picture here."  # this Studio has no samples
    assert second.locator("canvas").is_hidden()
    visit.drop(picture, on=".pane:nth-child(2) .stage")
    settle(visit)
    assert second.locator("canvas").is_visible() and second.locator(".invite").is_hidden()
    visit.close()


def test_all_models_are_named_at_the_start_and_on_the_png_of_two(browser, studio, picture):
    visit = Visit(browser, studio.address)
    line = visit.page.locator("#model-line").inner_text()
    assert line == "3 models: small vit; small swin; small mae, which paints"
    visit.show(picture)
    assert visit.page.locator("#model-line").inner_text().startswith("small vit: ")
    visit.page.click("#compare")
    settle(visit)
    assert saved_words(visit)[-1] == "Vitrail Studio · small vit · small swin"
    visit.close()


def luminance(colour: str) -> float:
    """Of an rgb(…) of CSS, as WCAG has it."""
    parts = [int(part) / 255 for part in colour[4:-1].split(",")]
    linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_pressed_button_can_be_read_under_the_pointer(browser, alone, picture, scheme):
    visit = Visit(browser, alone, scheme=scheme)
    visit.show(picture)
    visit.page.click("#compare")
    visit.page.hover("#compare")
    visit.page.wait_for_timeout(300)
    style: Any = "(e) => { const s = getComputedStyle(e); return [s.color, s.backgroundColor]; }"
    dark, light = sorted(map(luminance, visit.page.locator("#compare").evaluate(style)))
    assert (light + 0.05) / (dark + 0.05) > 7
    visit.close()


def test_the_strip_shrinks_until_all_of_it_is_seen(browser, alone, picture):
    visit = Visit(browser, alone, width=1120)
    visit.show(picture)
    inside = "(e) => [e.scrollWidth <= e.clientWidth, e.style.getPropertyValue('--tile')]"
    narrow = visit.page.locator("#stages").evaluate(inside)
    visit.page.set_viewport_size({"width": 1480, "height": 900})
    visit.page.wait_for_timeout(200)
    wide = visit.page.locator("#stages").evaluate(inside)
    assert narrow[0] and int(narrow[1][:-2]) < 96 and wide == [True, "96px"]
    visit.close()


def test_controls_that_do_nothing_for_an_overlay_rest(browser, alone, picture):
    visit = Visit(browser, alone)
    visit.show(picture)
    resting = lambda: [visit.page.locator(f"#{name}").is_disabled() for name in ("layer", "head")]  # noqa: E731
    seen = {}
    for key, name in (("1", "attention"), ("2", "rollout"), ("3", "relevance"), ("5", "colours"), ("7", "none")):
        visit.page.keyboard.press(key)
        seen[name] = resting()
    both, neither = [True, True], [False, False]
    assert seen == {
        "attention": neither, "rollout": both, "relevance": both, "colours": [False, True], "none": both,
    }  # fmt: skip
    visit.page.locator("#heads-canvas").click(position={"x": 10, "y": 10})  # who chooses a head wants to see it
    assert visit.page.locator("input[value=attention]").is_checked() and resting() == neither
    visit.page.check("#whole")
    visit.page.wait_for_selector("text=[1, 3, 80, 112]")
    assert visit.page.locator("#size-out").inner_text() == "112×80 px"
    visit.close()


def test_the_name_of_a_line_lies_above_all_dots(browser, alone, picture):
    visit = Visit(browser, alone)
    visit.show(picture)
    for plot in ("distance", "entropy"):
        name = visit.page.locator(f"#{plot} text", has_text="even attention").bounding_box()
        dots = [dot.bounding_box()["y"] for dot in visit.page.locator(f"#{plot} .dot").all()]
        assert len(dots) == 12 and name["y"] + name["height"] <= min(dots)
    visit.close()
