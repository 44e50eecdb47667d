"""What a report says of the data that a run was trained on."""

from tests.data.test_sources import fill
from vitrail.data.sources.classification import open_source
from vitrail.report.content import ReportContent
from vitrail.report.model_report import page
from vitrail.tasks.problems import class_problems


def test_an_image_under_two_labels_is_named_with_both(tmp_path):
    fill(tmp_path, "train/cat/1.png", "train/dog/2.png", "train/dog/3.png", "val/cat/4.png", "val/dog/5.png")
    for copy, of in (("train/dog/1.png", "train/cat/1.png"), ("train/dog/2 again.png", "train/dog/2.png"),
                     ("val/cat/3.png", "train/dog/3.png"), ("val/dog/5 again.png", "val/dog/5.png")):  # fmt: skip
        (tmp_path / copy).write_bytes((tmp_path / of).read_bytes())
    source = open_source(tmp_path)
    found = class_problems(source.splits, source.classes, {}, [])
    assert sorted(found.conflicting) == [
        ["train/cat/1.png (cat)", "train/dog/1.png (dog)"], ["train/dog/3.png (dog)", "val/cat/3.png (cat)"],
    ]  # fmt: skip
    assert found.leaked == [["train/dog/3.png", "val/cat/3.png"]]
    assert sorted(map(sorted, found.duplicates)) == [
        ["train/dog/2 again.png", "train/dog/2.png"], ["val/dog/5 again.png", "val/dog/5.png"],
    ]  # fmt: skip
    text = page(ReportContent("A model", {"top1": 0.5}, "2 images", source.classes, problems=found))
    assert "train/cat/1.png (cat)<br>train/dog/1.png (dog)" in text
