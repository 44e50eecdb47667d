"""The Studio in a real browser: what a person does, and whether the numbers on the page are the model's."""

import base64
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

import vitrail
from vitrail.data import fit_image, open_image, to_tensor

from .conftest import LABELS, Served, served_here


class Visit:
    """A page of the Studio. It ends well if nothing was written to the console and nobody else was asked anything."""

    def __init__(self, browser: Any, address: str, width: int = 1280, scheme: str = "light", touch: bool = False):
        self.context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme, has_touch=touch, accept_downloads=True
        )
        self.page, self.address = self.context.new_page(), address
        self.said: list[str] = []
        self.asked: list[str] = []
        self.page.on("console", lambda message: self.said.append(f"{message.type}: {message.text}"))
        self.page.on("pageerror", lambda error: self.said.append(f"error: {error}"))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.on("websocket", lambda socket: self.asked.append(socket.url))
        self.page.goto(address)
        self.state("empty")

    def close(self) -> None:
        self.context.close()
        assert [line for line in self.said if line.startswith(("error", "warning"))] == []
        assert [url for url in self.asked if not url.startswith((f"{self.address}/", "blob:", "data:"))] == []

    def state(self, name: str) -> None:
        # A selector, because the page's policy forbids the evaluation that waiting for a condition would need.
        self.page.wait_for_selector(f"html[data-state={name}]", state="attached", timeout=30_000)

    def drop(self, path: Path, on: str = "body") -> None:
        """As a hand does it: the file in the data of a drop event."""
        script = """([content, name]) => {
            const bytes = Uint8Array.from(atob(content), (c) => c.charCodeAt(0)), data = new DataTransfer();
            data.items.add(new File([bytes], name));
            return data;
        }"""
        data = self.page.evaluate_handle(script, [base64.b64encode(path.read_bytes()).decode(), path.name])
        self.page.dispatch_event(on, "drop", {"dataTransfer": data})

    def show(self, path: Path) -> None:
        self.drop(path)
        self.state("busy")
        self.state("ready")

    def place(self, row: float, column: float) -> tuple[float, float]:
        """Of a patch of a 6×6 grid, on the screen."""
        self.page.locator(".stage canvas").first.scroll_into_view_if_needed()
        box = self.page.locator(".stage canvas").first.bounding_box()
        return box["x"] + (column + 0.5) / 6 * box["width"], box["y"] + (row + 0.5) / 6 * box["height"]

    def hover(self, row: int, column: int) -> str:
        self.page.mouse.move(*self.place(row, column))
        self.page.wait_for_timeout(60)
        return self.readout()

    def readout(self) -> str:
        return self.page.locator(".readout").first.inner_text().replace("\u202f", " ")

    def drawn(self, selector: str = ".stage canvas") -> bytes:
        """The pixels of a canvas."""
        url = self.page.locator(selector).first.evaluate("(canvas) => canvas.toDataURL()")
        return Image.open(io.BytesIO(base64.b64decode(url.split(",")[1]))).convert("RGB").tobytes()

    def probabilities(self) -> dict[str, float]:
        rows = self.page.locator(".classes button").all()
        return {r.locator(".line span").inner_text(): float(r.get_attribute("data-probability")) for r in rows}

    def slide(self, name: str, value: int) -> None:
        self.page.locator(f"#{name}").evaluate(
            "(input, value) => { input.value = value; input.dispatchEvent(new Event('input', {bubbles: true})); }",
            value,
        )
        self.page.wait_for_timeout(60)


@pytest.fixture
def visit(browser, studio: Served) -> Iterator[Visit]:
    one = Visit(browser, studio.address)
    yield one
    one.close()


@pytest.fixture(scope="module")
def truth(studio: Served, picture: Path) -> tuple[vitrail.Predictor, torch.Tensor]:
    predictor = vitrail.load(studio.model, device="cpu")
    pre = predictor.preprocessing
    return predictor, to_tensor(fit_image(open_image(picture), pre), pre)[None]


def looks_at(predictor: vitrail.Predictor, x: torch.Tensor, layer: int, token: Any) -> str:
    """The words that the page should find for a map, from `capture`."""
    with torch.inference_mode(), vitrail.capture(predictor.model, [layer]) as maps:
        predictor.model(x)
    row = maps.row(layer, token)[0].mean(0)
    best = divmod(int(row.argmax()), row.shape[1])
    return f"looks most at row {best[0] + 1}, column {best[1] + 1} ({100 * float(row.max()):.1f} %)"


def test_a_dropped_picture_gets_the_classes_that_predict_gives(visit, truth, picture):
    visit.show(picture)
    expected = truth[0].predict(picture)[0]
    assert visit.page.locator(".best").inner_text() == expected[0].label
    assert visit.probabilities() == pytest.approx({p.label: p.probability for p in expected}, abs=1e-5)
    assert "128×96 → 96×96 pixels → 6×6 = 36 patches" in visit.page.locator(".fact").inner_text()
    seconds = visit.page.evaluate("performance.getEntriesByName('drawn').at(-1).duration") / 1000
    assert 0 < seconds < 30  # what it is on a quiet machine, `benchmarks/studio.py` measures


def test_the_strip_shows_every_stage_with_its_true_shape(visit, picture):
    visit.show(picture)
    figures = visit.page.locator("#stages figure")
    captions = [text.split("\n") for text in figures.locator("figcaption").all_inner_texts()]
    assert captions == [
        ["image", "[1, 3, 96, 96]"],
        ["6×6 patches", "[1, 36, 768]"],
        ["embeddings", "[1, 36, 192]"],
        ["positions", "[1, 36, 192]"],
        ["tokens", "[1, 37, 192]"],
        ["4 blocks", "[1, 37, 192]"],
        ["class token", "[1, 192]"],
        ["classes", "[1, 5]"],
    ]
    assert visit.page.locator("#stages .blocks button").count() == 4
    colours = {visit.drawn(f"#stages .blocks button:nth-child({i}) canvas") for i in (1, 2, 3, 4)}
    assert len(colours) == 4


def test_hovering_shows_the_attention_of_that_patch_without_asking_the_server(visit, truth, picture):
    visit.show(picture)
    visit.slide("layer", 2)
    before, asked = visit.drawn(), len(visit.asked)
    assert looks_at(*truth, 1, "class") in visit.readout()
    first = visit.hover(1, 4)
    assert "patch row 2, column 5" in first and looks_at(*truth, 1, (1, 4)) in first
    after = visit.drawn()
    assert after != before
    second = visit.hover(4, 0)
    assert looks_at(*truth, 1, (4, 0)) in second and visit.drawn() != after
    heads = visit.drawn("#heads-canvas")
    visit.hover(2, 3)
    assert visit.drawn("#heads-canvas") != heads
    assert len(visit.asked) == asked
    assert visit.page.evaluate("performance.getEntriesByName('hover').at(-1).duration") < 1000


def test_the_sliders_choose_block_and_head(visit, truth, picture):
    visit.show(picture)
    visit.hover(3, 3)
    visit.page.wait_for_timeout(400)  # the patch that the pointer rests on is kept when it leaves
    visit.page.mouse.move(5, 5)
    seen = set()
    for block in (1, 2, 3, 4):
        visit.slide("layer", block)
        assert f"Block {block}, mean of the heads" in visit.readout()
        assert looks_at(*truth, block - 1, (3, 3)) in visit.readout()
        seen.add(visit.drawn())
    visit.slide("head", 2)
    assert "head 2" in visit.readout() and "2 of 3" in visit.page.locator("#head-out").inner_text()
    seen.add(visit.drawn())
    assert len(seen) == 5
    opaque = visit.drawn()
    visit.slide("opacity", 0)
    assert visit.drawn() != opaque


def test_every_overlay_is_drawn_and_none_is_like_another(visit, picture):
    visit.show(picture)
    seen = {}
    names = ["attention", "rollout", "relevance", "grad_cam", "colours", "similar", "none"]
    for number, name in enumerate(names, 1):
        visit.page.keyboard.press(str(number))
        visit.page.wait_for_timeout(400)
        assert visit.page.locator(f"input[value={name}]").is_checked()
        seen[name] = visit.drawn()
    assert len(set(seen.values())) == len(names)
    visit.page.keyboard.press("3")
    other = visit.page.locator(".classes button").nth(3)
    other.click()
    visit.page.wait_for_timeout(600)
    assert other.locator(".line span").inner_text() in visit.readout()
    assert visit.drawn() != seen["relevance"]


def test_clicking_hides_patches_and_the_answer_follows(visit, truth, picture):
    visit.show(picture)
    predictor, x = truth
    whole = visit.probabilities()
    hidden = x.clone()
    for row, column in ((2, 3), (2, 4), (0, 0)):
        visit.page.mouse.click(*visit.place(row, column))
        hidden[0, :, 16 * row : 16 * row + 16, 16 * column : 16 * column + 16] = 0
    visit.state("busy")
    visit.state("ready")
    with torch.inference_mode():
        expected = predictor.model(hidden)[0].softmax(-1)
    assert visit.probabilities() == pytest.approx(dict(zip(LABELS, expected.tolist(), strict=True)), abs=1e-5)
    assert max(abs(whole[name] - visit.probabilities()[name]) for name in LABELS) > 0.002
    assert "3 patches hidden" in visit.page.locator(".hidden-note").inner_text()
    assert looks_at(predictor, hidden, 2, (0, 0)) in visit.readout()
    visit.page.click(".hidden-note button")
    visit.state("busy")
    visit.state("ready")
    assert visit.probabilities() == pytest.approx(whole, abs=1e-6)


def test_the_input_size_changes_grid_shapes_and_answer(visit, studio, picture):
    visit.show(picture)
    before = visit.probabilities()
    sizes = [32, 48, 64, 80, 96, 112, 128, 144, 160]
    visit.slide("size", sizes.index(144))
    visit.page.wait_for_selector("text=[1, 3, 144, 144]")
    visit.state("ready")
    captions = visit.page.locator("#stages figcaption").all_inner_texts()
    assert "9×9 patches\n[1, 81, 768]" in captions and "4 blocks\n[1, 82, 192]" in captions
    larger = vitrail.load(studio.model, image_size=144, device="cpu").predict(picture)[0]
    expected = {p.label: p.probability for p in larger}
    assert visit.probabilities() == pytest.approx(expected, abs=1e-5) and expected != pytest.approx(before, abs=1e-4)
    visit.page.check("#whole")
    visit.page.wait_for_selector("text=[1, 3, 128, 160]")  # 128×96 keeps its shape


def test_two_models_and_two_pictures_side_by_side(visit, picture, tmp_path):
    visit.show(picture)
    visit.page.click("#compare")
    visit.state("busy")
    visit.state("ready")
    names = visit.page.locator(".pane select").evaluate_all("(all) => all.map((s) => s.selectedOptions[0].text)")
    assert names == ["small vit", "small swin"]
    visit.hover(2, 2)
    readouts = visit.page.locator(".readout").all_inner_texts()
    assert "row 3, column 3" in readouts[0] and "Block" in readouts[1]
    Image.open(picture).transpose(Image.Transpose.ROTATE_90).save(tmp_path / "turned.png")
    visit.drop(tmp_path / "turned.png", on=".pane:nth-child(2) .stage")
    visit.page.wait_for_selector(".pane:nth-child(2) >> text=turned.png")
    visit.state("ready")
    assert "disc.png" in visit.page.locator(".fact").first.inner_text()
    visit.page.click("#compare")
    assert visit.page.locator(".pane").count() == 1


def test_a_masked_autoencoder_paints_what_the_slider_hides(visit, picture):
    visit.show(picture)
    visit.page.wait_for_selector("text=what the encoder sees: 9 of 36 patches")
    painted = visit.drawn("#mae-painted")
    visit.slide("ratio", 50)
    visit.page.wait_for_selector("text=what the encoder sees: 18 of 36 patches")
    assert visit.drawn("#mae-painted") != painted
    masked = visit.drawn("#mae-masked")
    visit.page.click("#again")
    visit.page.wait_for_timeout(500)
    assert visit.drawn("#mae-masked") != masked


def test_the_keyboard_does_what_the_mouse_does(visit, truth, picture):
    visit.show(picture)
    page = visit.page
    page.locator(".stage canvas").focus()
    for key in ("ArrowRight", "ArrowUp", "ArrowLeft", "ArrowLeft"):  # the first chooses the middle
        page.keyboard.press(key)
    page.wait_for_timeout(60)
    assert "patch row 3, column 2" in visit.readout()
    page.keyboard.press("[")
    page.wait_for_timeout(60)
    assert looks_at(*truth, 1, (2, 1)) in visit.readout()
    page.keyboard.press(".")
    page.wait_for_timeout(60)
    assert "Block 2, head 1" in visit.readout()
    page.keyboard.press(" ")
    visit.state("busy")
    visit.state("ready")
    assert "1 patch hidden" in page.locator(".hidden-note").inner_text()
    page.keyboard.press("c")
    page.wait_for_timeout(60)
    assert "the class token" in visit.readout()
    page.keyboard.press("?")
    assert page.locator("#keys").is_visible()
    page.keyboard.press("Escape")
    assert "the class token" in visit.readout() and not page.locator("#keys").is_visible()


def test_light_and_dark_follow_the_system_until_one_is_chosen(browser, studio, picture):
    visit = Visit(browser, studio.address, scheme="dark")
    shade = "getComputedStyle(document.documentElement).backgroundColor"
    dark = visit.page.evaluate(shade)
    visit.page.click("#theme")
    light = visit.page.evaluate(shade)
    assert (dark, light) == ("rgb(21, 23, 28)", "rgb(253, 252, 250)")
    visit.page.reload()
    visit.state("empty")
    assert visit.page.evaluate(shade) == light
    visit.close()


def test_it_fits_a_phone(browser, studio, picture):
    visit = Visit(browser, studio.address, width=390, touch=True)
    assert visit.page.evaluate("document.scrollingElement.scrollWidth") <= 390
    visit.show(picture)
    assert visit.page.evaluate("document.scrollingElement.scrollWidth") <= 390
    box = visit.page.locator(".stage canvas").bounding_box()
    assert box["x"] >= 0 and 340 < box["width"] <= 390
    visit.page.click("#compare")
    visit.state("busy")
    visit.state("ready")
    assert visit.page.evaluate("document.scrollingElement.scrollWidth") <= 390
    visit.page.click("#compare")
    visit.page.touchscreen.tap(*visit.place(1, 1))  # a finger looks,
    visit.page.wait_for_timeout(60)
    assert "patch row 2, column 2" in visit.readout()
    assert visit.page.locator(".hidden-note").is_hidden()
    visit.page.check("#tap")  # and hides where that is switched on
    visit.page.touchscreen.tap(*visit.place(1, 1))
    visit.page.wait_for_selector("text=1 patch hidden")
    visit.state("ready")
    visit.close()


def test_what_is_shown_can_be_saved(visit, picture):
    visit.show(picture)
    with visit.page.expect_download() as waiting:
        visit.page.click("#save")
    assert waiting.value.suggested_filename == "disc-vitrail.png"
    saved = Image.open(waiting.value.path())
    assert saved.format == "PNG" and saved.size[0] == 1516
    assert len(saved.convert("RGB").resize((64, 64)).getcolors(4096)) > 200


def test_everything_has_a_name_for_a_screen_reader(visit, picture):
    visit.show(picture)
    nameless = """(all) => all.filter((e) => e.offsetParent !== null && !(e.getAttribute('aria-label')
        || e.textContent.trim() || e.alt || (e.labels && e.labels[0]?.textContent.trim())
        || e.querySelector('img[alt]'))).map((e) => e.outerHTML.slice(0, 90))"""
    assert (
        visit.page.locator("button, input, select, canvas:not([aria-hidden]), svg[role]").evaluate_all(nameless) == []
    )
    assert visit.page.locator("img:not([alt])").count() == 0
    visit.page.wait_for_timeout(400)
    best = visit.page.locator(".best").inner_text()
    assert visit.page.locator("#status").inner_text().startswith(f"disc.png: {best}, ")


def test_a_bad_file_gets_a_message_and_the_picture_stays(browser, studio, picture, tmp_path):
    visit = Visit(browser, studio.address)
    (tmp_path / "empty.jpg").write_bytes(b"")
    (tmp_path / "words.jpg").write_text("no picture, only words, however long they are")
    visit.drop(tmp_path / "words.jpg")
    visit.page.wait_for_selector("#message:visible")
    assert "not an image of a known format" in visit.page.locator("#message").inner_text()
    visit.state("empty")
    visit.show(picture)
    assert visit.page.locator("#message").is_hidden()
    best = visit.page.locator(".best").inner_text()
    visit.drop(tmp_path / "empty.jpg")
    assert "empty (0 bytes)" in visit.page.locator("#message").inner_text()
    assert visit.page.locator(".best").inner_text() == best
    # Chromium itself notes each answer of 4xx, and this one is right.
    assert visit.said == ["error: Failed to load resource: the server responded with a status of 400 (Bad Request)"]
    visit.said.clear()
    visit.close()


def test_a_picture_that_the_server_forgot_is_sent_again_once(browser, studio, picture):
    visit = Visit(browser, studio.address)
    forgotten = {"attention", "spreads", "positions", "overlay", "paint"}

    def forget(route: Any) -> None:
        name = route.request.url.rpartition("/")[2]
        if name in forgotten:
            forgotten.remove(name)
            route.fulfill(status=410, json={"error": "That picture is no longer kept: drop it again."})
        else:
            route.continue_()

    visit.page.route("**/api/*", forget)
    visit.show(picture)
    visit.page.wait_for_selector("text=what the encoder sees: 9 of 36 patches")
    assert not forgotten and visit.page.locator("#message").is_hidden()
    # The first five come together, and the page may ask the painter a little later.
    assert 2 <= sum(url.endswith("/api/pictures") for url in visit.asked) <= 3
    assert "looks most at" in visit.readout()
    assert all("410" in line for line in visit.said) and len(visit.said) == 5
    visit.said.clear()
    visit.close()


def test_a_layer_that_comes_later_is_of_the_view_that_is_shown(browser, studio, picture, monkeypatch):
    """Where layers are sent one by one, and one is chosen just after a patch was hidden."""
    monkeypatch.setattr("vitrail.serve.views.SENT_AT_ONCE", 1000)
    predictor = vitrail.load(studio.model, device="cpu")
    with served_here(predictor) as address:
        visit = Visit(browser, address)
        bodies: list[dict[str, Any]] = []
        visit.page.on(
            "request",
            lambda request: bodies.append(request.post_data_json) if request.url.endswith("/attention") else None,
        )
        visit.show(picture)
        visit.page.mouse.click(*visit.place(2, 3))
        visit.page.keyboard.press("[")
        visit.state("busy")
        visit.state("ready")
        assert [(body["layers"], body["hidden"]) for body in bodies] == [([2], []), ([1], []), ([1], [15])]
        visit.close()


def test_the_benchmark_waits_for_the_hover_that_it_asked_for(visit, picture):
    from benchmarks.studio import hover

    visit.show(picture)
    visit.page.evaluate("""() => {
        const next = window.requestAnimationFrame.bind(window);
        window.slow = 0;
        window.requestAnimationFrame = (draw) => next((time) => {
            const end = performance.now() + window.slow;
            while (performance.now() < end);
            draw(time);
        });
    }""")
    quick = hover(visit.page, *visit.place(1, 1))
    visit.page.evaluate("window.slow = 400")
    assert hover(visit.page, *visit.place(4, 2)) >= 400 > quick > 0


@pytest.mark.data
def test_a_golden_retriever_is_one(browser, real_data):
    """DeiT-Ti on a real photograph; less so when its forehead is painted over."""
    predictor = vitrail.load(real_data / "deit_tiny_in1k" / "model.safetensors", device="cpu")
    with served_here(predictor) as address:
        visit = Visit(browser, address)
        visit.show(next((real_data / "imagenet_val_1k" / "0207").glob("*.jpg")))
        assert visit.page.locator(".best").inner_text() == "golden retriever"
        before = visit.probabilities()["golden retriever"]
        assert before == pytest.approx(0.814, abs=0.01)
        box = visit.page.locator(".stage canvas").bounding_box()
        # One quick stroke over the forehead: the fourth row of patches, from the third column to the twelfth.
        down = box["y"] + 0.25 * box["height"]
        start, end = (box["x"] + (column + 0.5) / 14 * box["width"] for column in (2, 11))
        visit.page.mouse.move(start, down)
        visit.page.mouse.down()
        visit.page.mouse.move(end, down, steps=2)
        visit.page.mouse.up()
        visit.state("busy")
        visit.state("ready")
        assert visit.page.locator(".hidden-note").inner_text().startswith("10 patches hidden")
        assert visit.probabilities()["golden retriever"] == pytest.approx(0.719, abs=0.01)
        visit.close()
