"""The report: complete in itself, safe with any name, and right for few classes, many, and several per image."""

import base64
import io
import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest
from PIL import Image

from vitrail.errors import VitrailError
from vitrail.report import model_report
from vitrail.report.axes import nice_ticks
from vitrail.report.charts import Series, line_chart
from vitrail.report.content import DataProblems, ImageCard, ReportContent
from vitrail.report.drawing import thumbnail
from vitrail.report.findings import findings
from vitrail.report.heat_map import heat_map
from vitrail.report.model_report import write_report
from vitrail.report.numbers import number, percent
from vitrail.tasks.classify import metrics
from vitrail.tasks.classify.page import confident_mistakes, hardest_images

VOID = {"meta", "img", "br", "input", "wbr"}
HOSTILE = ["</script><script>alert(1)</script>", "\"><img src=x onerror='alert(2)'>", "a & b < c", "猫", "עברית"]


class Page(HTMLParser):
    """Reads a page as a browser would and keeps what the tests ask about."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.attributes, self.text, self.json = [], [], [], "", []
        self.feed(text)
        self.close()
        assert self.open == [], "elements that were never closed"

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += attributes
        if tag not in VOID:
            self.open.append(tag)
        if ("type", "application/json") in attributes:
            self.json.append("")

    def handle_startendtag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += attributes

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] == "script" and data.startswith("{"):
            self.json[-1] += data
        elif not self.open or self.open[-1] not in ("script", "style"):
            self.text += data

    def ids(self):
        return {value for name, value in self.attributes if name == "id"}


def curves(epochs=5):
    return [
        {"epoch": e, "train_loss": 2 / e, "val_loss": 2.2 / e, "val_top1": 1 - 0.5 / e, "lr": 1e-4 / e,
         "images_per_second": 100.0, "data_wait": 0.02}
        for e in range(1, epochs + 1)
    ]  # fmt: skip


def report(classes, n=200, seed=0, **more):
    """The content of a report about a model with some skill."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, len(classes), n)
    logits = generator.normal(size=(n, len(classes)))
    logits[np.arange(n), labels] += 2
    chances = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    predicted = chances.argmax(1)
    mistakes = confident_mistakes(chances, labels, classes)
    for picture in mistakes:
        pixels = generator.integers(0, 255, (120, 160, 3), dtype=np.uint8)
        picture.image, picture.name = thumbnail(Image.fromarray(pixels)), f"{picture.true}/{picture.index}.jpg"
    content = dict(
        title="A model", figures=metrics.classification_figures(chances, labels, classes, rounds=50),
        split=f"{n} images of test/", classes=classes, per_class=metrics.per_class(predicted, labels, len(classes)),
        confusion=metrics.confusion(predicted, labels, len(classes)), reliability=metrics.reliability(chances, labels),
        curves=curves(), best_epoch=4, mistakes=mistakes,
        hardest=hardest_images(chances, labels, classes, 6, {picture.index for picture in mistakes}),
        problems=DataProblems([("a.jpg", "truncated")], [["b.jpg", "c.jpg"]], [["d.jpg", "e.jpg"]], ["Balanced."]),
        recipe=[("epochs", 5, "few images")], command="vitrail train data", versions={"Python": "3.11"},
    )  # fmt: skip
    return ReportContent(**(content | more))


def read(tmp_path, content):
    path = write_report(tmp_path / "report.html", content)
    assert path.stat().st_size < 3e6
    return path.read_text(encoding="utf-8")


def page_of(content):
    return Page(model_report.page(content))


@pytest.mark.parametrize("count", [2, 37, 1000])
def test_a_report_of_any_number_of_classes_is_whole_small_and_asks_for_nothing_outside(tmp_path, count):
    text = read(tmp_path, report([f"class {c}" for c in range(count)], n=3 * count + 100))
    page = Page(text)
    assert "http://" not in text and "https://" not in text and "url(//" not in text and "@import" not in text
    for name, value in page.attributes:
        if name in ("src", "href", "srcset", "action", "data", "poster"):
            assert value.startswith(("data:image/", "#")), value[:80]
    assert {"link", "iframe", "object", "embed", "form"}.isdisjoint(page.tags)
    assert page.ids() >= {"mistakes", "hardest", "classes", "confusion", "calibration", "training", "data", "recipe"}
    assert page.ids() >= {value[1:] for name, value in page.attributes if name == "href" and value[0] == "#"}
    assert text.count('<th scope="row">') == count
    assert "vitrail train data" in page.text and f"{count} classes" in page.text
    [heat] = [data for data in map(json.loads, page.json) if "totals" in data]
    assert sum(heat["totals"]) == 3 * count + 100


def test_the_headline_is_the_first_figure_with_its_interval_and_the_split():
    page = page_of(report(list("abc"), figures={"top1": 0.877, "top1_low": 0.85, "top1_high": 0.9, "n": 90}))
    assert "Measured on 200 images of test/." in page.text
    assert "87.7\u202f%" in page.text and "85.0 – 90.0\u202f%" in page.text


def test_hostile_names_are_shown_and_never_run(tmp_path):
    pictures = [ImageCard(HOSTILE[0], HOSTILE[1], 0.9, 0.1, image="javascript:alert(3)", name=HOSTILE[1])]
    text = read(
        tmp_path,
        report(HOSTILE, title=HOSTILE[0], summary=HOSTILE[1], command=HOSTILE[0], hardest=pictures, notes=HOSTILE,
               recipe=[(name, name, name) for name in HOSTILE], versions={HOSTILE[0]: HOSTILE[1]},
               problems=DataProblems([(HOSTILE[0], HOSTILE[1])], [HOSTILE], [HOSTILE], HOSTILE)),
    )  # fmt: skip
    page = Page(text)
    assert not [name for name, _ in page.attributes if name.startswith("on")]
    assert not [value for name, value in page.attributes if value and value.startswith("javascript:")]
    assert page.tags.count("script") == 1 + len(page.json)
    for name in HOSTILE:
        assert name in page.text
    assert [data["names"] for data in map(json.loads, page.json) if "totals" in data] == [HOSTILE]


def test_a_policy_in_the_page_forbids_every_request():
    policies = [value for name, value in page_of(report(list("ab"))).attributes if name == "content"]
    assert policies[0].startswith("default-src 'none'; img-src data:;")


def test_several_labels_per_image_have_average_precision_and_thresholds(tmp_path):
    generator = np.random.default_rng(0)
    names = ["person", "dog", "sofa"]
    targets = generator.random((200, 3)) < 0.3
    chances = 1 / (1 + np.exp(-(generator.normal(size=(200, 3)) + 3 * targets - 1.5)))
    thresholds = metrics.best_thresholds(chances, targets)
    content = ReportContent(
        title="Tags", figures=metrics.multi_label_figures(chances, targets, names, thresholds, rounds=50),
        split="val", classes=names, per_class=metrics.multi_label_per_class(chances, targets, thresholds),
        reliability=metrics.reliability(chances, targets), multi_label=True,
        mistakes=confident_mistakes(chances, targets, names), hardest=hardest_images(chances, targets, names),
        curves=[{"epoch": 1, "train_loss": 0.7, "val_map": 0.5}, {"epoch": 2, "train_loss": 0.4, "val_map": 0.6}],
    )  # fmt: skip
    page = Page(read(tmp_path, content))
    for words in ("Mean average precision", "Average precision", "Threshold", "validation mAP", percent(thresholds[0])):
        assert words in page.text
    assert "confusion" not in page.ids()


def test_sections_without_content_are_left_out(tmp_path):
    page = Page(read(tmp_path, ReportContent("Bare", {"top1": 0.5, "n": 2}, "2 images", ["a", "b"])))
    assert page.ids() == {"main", "figures", "arch"}
    no_validation = report(list("abc"), curves=[{"epoch": 1, "train_loss": 1.0}, {"epoch": 2, "train_loss": 0.5}])
    text = read(tmp_path, no_validation)
    assert "training" in Page(text).ids() and "validation" not in Page(text).text
    failed = [{"epoch": 1, "train_loss": 1.0, "val_loss": None}, {"epoch": 2, "train_loss": float("nan")}]
    assert "training" in Page(read(tmp_path, report(list("abc"), curves=failed))).ids()


def test_a_line_has_a_gap_where_nothing_was_measured_and_a_dot_where_it_is_alone():
    chart = line_chart("Loss", [1, 2, 3, 4, 5], [Series("training", [4.0, 3.0, None, 1.0, 0.0])])
    path = re.search(r'class="line" d="([^"]+)"', chart.split("</figcaption>")[1]).group(1)
    assert re.findall("[ML]", path) == ["M", "L", "M", "L"]
    points = [tuple(map(float, point.split())) for point in re.split("[ML]", path)[1:]]
    assert [x for x, _ in points] == [52, 151, 349, 448]  # equal steps, without the third
    heights = np.array([y for _, y in points])
    np.testing.assert_allclose(heights, np.interp([4, 3, 1, 0], [0, 4], [206, 10]), atol=0.1)
    assert 'class="point"' in line_chart("Loss", [1], [Series("training", [0.5])])
    assert line_chart("Loss", [1], [Series("training", [None])]) == ""


def test_ticks_are_round_numbers_that_enclose_the_values():
    assert nice_ticks(0.1, 3.1) == [0, 1, 2, 3, 4]
    assert nice_ticks(0.871, 0.904) == [0.87, 0.88, 0.89, 0.9, 0.91]
    assert nice_ticks(5, 5)[0] < 5 < nice_ticks(5, 5)[-1]
    one = line_chart("Accuracy", [1], [Series("validation", [0.82])], percent)
    assert "100\u202f%" in one and "120\u202f%" not in one  # no axis beyond all
    alike = line_chart("Accuracy", [1, 2], [Series("", [0.99101, 0.99104])], percent)
    assert alike.count(">99.1\u202f%</text>") == 1  # values that are written alike, once
    little = line_chart("Waiting", [1, 2], [Series("", [0.0001, 0.0004])], percent)
    assert ">0\u202f%</text>" in little and ">0.5\u202f%</text>" in little  # not one label for all of the axis
    assert nice_ticks(0, 0) == [0, 0.2, 0.4, 0.6, 0.8, 1]  # as the mAP of a detector that finds nothing
    assert nice_ticks(1e-14, 2e-14)[0] == 1e-14 and nice_ticks(1e-14, 2e-14)[-1] == 2e-14
    assert [number(v) for v in (0, 2e-4, 2.344e-5, 0.57523, 12345.6, None)] == [
        "0", "2e-4", "2.34e-5", "0.5752", "12,346", "–"
    ]  # fmt: skip


def test_a_heat_map_of_a_thousand_classes_sums_neighbours_and_shows_mistakes_alone():
    matrix = np.diag(np.full(1000, 8))
    matrix[0, 999] = 2
    matrix[3, 4] = 5  # within the first block of nine
    data = json.loads(
        re.search(r"<script[^>]*>(.*?)</script>", heat_map(matrix, [f"c{i}" for i in range(1000)])).group(1)
    )
    assert len(data["names"]) == 112 and data["names"][0] == "c0 … c8" and data["merged"]
    assert data["totals"][0] == 9 * 8 + 7
    assert data["cells"] == [[0, 0, 5], [0, 111, 2]]


def test_the_table_of_classes_begins_with_the_weakest_and_ends_with_those_without_images():
    columns = {"support": [9, 0, 9, 9], "recall": [0.9, np.nan, 0.2, 0.5], "f1": [0.95, 0.0, 0.33, 0.67]}
    text = page_of(report(["good", "absent", "worst", "middling"], per_class=columns, confusion=None)).text
    table = text[text.index("Find a class") :]
    places = [table.index(name) for name in ("worst", "middling", "good", "absent")]
    assert places == sorted(places)


def test_long_names_are_broken_where_they_are_joined_whatever_was_said():
    picture = ImageCard("pit_bull</terrier", "pit_bull_terrier", 0.9, 0.1, name="a_b/1.jpg")
    text = model_report.page(report(["a", "b"], mistakes=[picture]))
    assert "<bdi>pit_<wbr>bull_<wbr>terrier</bdi>" in text and "<bdi>pit_<wbr>bull&lt;/<wbr>terrier</bdi>" in text
    assert '<p class="file">a_<wbr>b/<wbr>1.jpg</p>' in text


def test_findings_say_what_matters():
    matrix = np.array([[8, 2, 0], [1, 4, 5], [0, 0, 10]])
    predicted = np.concatenate([np.repeat(np.arange(3), row) for row in matrix])
    labels = np.repeat(np.arange(3), 10)
    chances = np.where(np.eye(3)[predicted] > 0, 0.98, 0.01)
    content = report(
        ["cat", "dog", "fox"], per_class=metrics.per_class(predicted, labels, 3), confusion=matrix,
        reliability=metrics.reliability(chances, labels),
    )  # fmt: skip
    content.problems.conflicting = [["b.jpg (cat)", "c.jpg (dog)"]]
    assert list(findings(content)) == [
        "The weakest class is dog: 4 of 10 found, most often mistaken for fox.",
        "The model is over-confident: on average it claims 98.0\u202f% and is right in 73.3\u202f%.",
        "One image is in more than one split, so these figures are optimistic; the files are listed under the data.",
        "One image has more than one label, in copies that contradict each other; they are listed under the data.",
        "One file was left out because unreadable, listed under the data.",
    ]


@pytest.mark.parametrize(
    ("times", "claimed", "verdict"),
    [
        (1, 0.6, "These images are too few to judge its confidence by"),
        (2, 0.99, "The model is over-confident"),
        (100, 0.6, "Its confidence fits, as far as these images tell"),
        (100, 0.7, "The model is over-confident"),
    ],
)
def test_confidence_is_judged_where_there_are_images_enough(times, claimed, verdict):
    """Of five, three are right."""
    right = np.array([True, True, True, False, False] * times)
    chances = np.array([[claimed, 1 - claimed]] * len(right))
    table = metrics.reliability(chances, np.where(right, 0, 1))
    (sentence,) = findings(ReportContent("title", {}, "", ["a", "b"], reliability=table))
    share = f"{100 * claimed:.1f}"
    assert sentence == f"{verdict}: on average it claims {share}\u202f% and is right in 60.0\u202f%."


def test_the_surest_mistakes_and_the_hardest_images_come_in_order_and_once():
    chances = np.array([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8], [0.55, 0.45], [0.01, 0.99]])
    labels = np.array([1, 1, 1, 0, 0])
    mistakes = confident_mistakes(chances, labels, ["a", "b"], 2)
    assert [(p.index, p.true, p.predicted, p.probability) for p in mistakes] == [
        (4, "a", "b", 0.99),
        (0, "b", "a", 0.9),
    ]
    assert mistakes[0].true_probability == 0.01
    hardest = hardest_images(chances, labels, ["a", "b"], 2, excluding={p.index for p in mistakes})
    assert [(p.index, p.predicted) for p in hardest] == [(1, "a"), (3, "a")]
    several = np.array([[1, 1, 0], [0, 0, 1], [0, 0, 0]], dtype=bool)
    scores = np.array([[0.9, 0.2, 0.7], [0.1, 0.1, 0.3], [0.4, 0.3, 0.2]])
    [mistake] = confident_mistakes(scores, several, ["a", "b", "c"])
    assert (mistake.true, mistake.predicted, mistake.probability) == ("a, b", "c", 0.7)
    missed = hardest_images(scores, several, ["a", "b", "c"])
    assert [(p.index, p.predicted, p.probability) for p in missed] == [(0, "b", 0.2), (1, "c", 0.3)]


def decoded(uri):
    kind, data = uri.split(";base64,")
    return kind, Image.open(io.BytesIO(base64.b64decode(data)))


def test_thumbnails_are_small_and_lay_transparency_on_white():
    kind, image = decoded(thumbnail(Image.new("RGB", (640, 320), "red")))
    assert (kind, image.size, image.mode) == ("data:image/jpeg", (160, 80), "RGB")
    kind, image = decoded(thumbnail(Image.new("RGBA", (20, 10), (255, 0, 0, 0))))
    assert (kind, image.size, image.getpixel((3, 3))) == ("data:image/png", (20, 10), (255, 255, 255))
    digit = Image.fromarray((np.arange(64, dtype=np.uint8) * 4).reshape(8, 8))
    assert decoded(thumbnail(digit))[1].convert("L").tobytes() == digit.tobytes()  # every pixel of so small a picture


@pytest.mark.data
def test_sixty_real_photographs_fit_into_a_file_that_can_be_mailed(tmp_path, real_data):
    files = sorted((real_data / "pets" / "images" / "test").glob("*/*.jpg"))[::9][:60]
    pictures = [
        ImageCard("a", "b", 0.9, 0.1, thumbnail(Image.open(file).convert("RGB")), f"{file.parent.name}/{file.name}")
        for file in files
    ]
    assert len(pictures) == 60
    text = read(tmp_path, report(list("abc"), mistakes=pictures))
    assert len(text) < 900_000 and text.count("data:image/jpeg") == 60


def test_long_lists_are_cut_and_say_so(tmp_path):
    problems = DataProblems(unreadable=[(f"{i}.jpg", "truncated") for i in range(5000)])
    text = read(tmp_path, report(list("abc"), problems=problems))
    assert "199.jpg" in text and "200.jpg" not in text and "and 4,800 more" in text


def test_a_report_that_cannot_be_written_is_one_sentence_and_leaves_nothing(tmp_path):
    (tmp_path / "report.html").mkdir()
    with pytest.raises(VitrailError, match="can't be written"):
        write_report(tmp_path / "report.html", report(list("ab")))
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


def test_a_file_name_that_is_not_utf8_does_not_stop_the_report(tmp_path):
    read(tmp_path, report(["a", "caf\udce9"], problems=DataProblems([("caf\udce9.jpg", "not an image")])))
