"""Boxes out of COCO's JSON, VOC's XML and YOLO's text: the same ones, and what is wrong is counted and listed."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitrail import VitrailError
from vitrail.data.sources.boxes import open_boxes
from vitrail.data.sources.boxes.samples import split_word
from vitrail.data.sources.boxes.yolo import read_yaml
from vitrail.data.split import divide

# name → (width, height, [(class, x0, y0, x1, y1)]), in pixels counted from 0, the end left out
PICTURES = {
    "a": (100, 80, [("cat", 10, 20, 60, 70), ("dog", 0, 0, 100, 80)]),
    "b": (64, 64, [("dog", 4, 8, 12, 16)]),
    "c": (50, 40, []),
}
CLASSES = ["cat", "dog"]


def pictures(folder: Path, names=PICTURES) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        Image.new("RGB", PICTURES[name][:2]).save(folder / f"{name}.png")


def coco(names=PICTURES, **more) -> dict:
    images, annotations = [], []
    for number, name in enumerate(names, 1):
        width, height, rows = PICTURES[name]
        images.append({"id": number, "file_name": f"{name}.png", "width": width, "height": height})
        for label, x0, y0, x1, y1 in rows:
            annotations.append(
                {
                    "id": len(annotations) + 1, "image_id": number, "category_id": 10 * (CLASSES.index(label) + 1),
                    "bbox": [x0, y0, x1 - x0, y1 - y0], "iscrowd": 0,
                }
            )  # fmt: skip
    categories = [{"id": 20, "name": "dog"}, {"id": 10, "name": "cat"}]
    return {"images": images, "annotations": annotations, "categories": categories, **more}


def write_coco(root: Path, content: dict | None = None, name: str = "boxes.json") -> Path:
    pictures(root / "images")
    (root / name).write_text(json.dumps(coco() if content is None else content))
    return root / name


def xml(name: str, objects=None, size=None) -> str:
    width, height, rows = PICTURES[name]
    width, height = size or (width, height)
    things = "".join(
        f"<object><name>{label}</name><difficult>{int(label == 'blurred')}</difficult><bndbox><xmin>{x0 + 1}</xmin>"
        f"<ymin>{y0 + 1}</ymin><xmax>{x1}</xmax><ymax>{y1}</ymax></bndbox></object>"
        for label, x0, y0, x1, y1 in (rows if objects is None else objects)
    )
    return f"<annotation><size><width>{width}</width><height>{height}</height></size>{things}</annotation>"


def write_voc(root: Path, **objects) -> Path:
    pictures(root / "JPEGImages")
    (root / "Annotations").mkdir(parents=True)
    for name in PICTURES:
        (root / "Annotations" / f"{name}.xml").write_text(xml(name, objects.get(name)))
    return root


def write_yolo(root: Path, images: str = "images", labels: str = "labels") -> Path:
    pictures(root / images)
    (root / labels).mkdir(parents=True, exist_ok=True)
    for name, (w, h, rows) in PICTURES.items():
        lines = [
            f"{CLASSES.index(c)} {(x0 + x1) / 2 / w} {(y0 + y1) / 2 / h} {(x1 - x0) / w} {(y1 - y0) / h}"
            for c, x0, y0, x1, y1 in rows
        ]
        if lines:
            (root / labels / f"{name}.txt").write_text("\n".join(lines))
    return root


def check_same(source) -> None:
    assert source.classes == CLASSES and [*source.splits] == ["all"] and source.multi_label
    samples = {Path(sample.name).stem: sample for sample in source.splits["all"]}
    assert {*samples} == {*PICTURES}
    for name, (width, height, rows) in PICTURES.items():
        sample = samples[name]
        assert np.allclose(sample.boxes_on((height, width)), np.array([r[1:] for r in rows]).reshape(-1, 4), atol=1e-3)
        assert [source.classes[c] for c in sample.classes] == [row[0] for row in rows]
        assert sample.labels == tuple(sorted({CLASSES.index(row[0]) for row in rows}))
        assert sample.decode().size == (width, height)
    assert source.problems == {"no box": [samples["c"].name]}
    assert source.notes == [f"1 picture without a box, kept as a negative example ({samples['c'].name})."]


def test_three_formats_give_the_same_boxes(tmp_path):
    check_same(open_boxes(write_coco(tmp_path / "coco")))
    check_same(open_boxes(tmp_path / "coco"))
    check_same(open_boxes(write_voc(tmp_path / "voc")))
    yolo = write_yolo(tmp_path / "yolo")
    (yolo / "classes.txt").write_text("cat\ndog\n")
    check_same(open_boxes(yolo))


def test_cocos_own_ids_are_kept_for_what_is_written(tmp_path):
    source = open_boxes(write_coco(tmp_path))
    assert source.category_ids == [10, 20] and [s.number for s in source.splits["all"]] == [1, 2, 3]


def test_boxes_that_reach_out_are_clipped_and_empty_ones_left_out_each_counted_and_listed(tmp_path):
    content = coco()
    for number, (category, box) in enumerate(
        [(10, [90, 70, 50, 50]), (10, [200, 10, 5, 5]), (20, [5, 5, 0, 10]), (30, [1, 1, 5, 5]), (10, [1, 2, "x", 4]),
         (20, [0, 0, 100, 80]), (10, [1, 2, float("nan"), 4]), (10, [0, 0, 100.1, 80.1])]
    ):  # fmt: skip
        content["annotations"].append({"id": 50 + number, "image_id": 1, "category_id": category, "bbox": box})
    content["annotations"].append({"id": 70, "image_id": 99, "category_id": 10, "bbox": [1, 1, 2, 2]})
    source = open_boxes(write_coco(tmp_path, content))
    counts = {what: len(where) for what, where in source.problems.items()}
    assert counts == {
        "clipped": 1, "empty": 2, "unknown class": 1, "unreadable box": 2, "repeated": 1, "no picture": 1, "no box": 1,
    }  # fmt: skip
    assert source.problems["clipped"] == ["a.png: cat [90, 70, 140, 120]"]
    assert source.problems["no picture"] == ["1 box of image 99 in boxes.json"]
    sample = source.splits["all"][0]
    assert np.allclose(sample.boxes_on((80, 100))[2:], [[90, 70, 100, 80], [0, 0, 100, 80]], atol=1e-3)
    assert "2 boxes were empty or outside of the picture, and left out (a.png: cat [200, 10, 205, 15]," in " ".join(
        source.notes
    )


def test_a_picture_whose_boxes_are_all_wrong_is_no_negative_example(tmp_path):
    content = coco()
    for wrong in ([1, 2, "x", 4], [200, 10, 5, 5]):
        content["annotations"] = [a for a in content["annotations"] if a["image_id"] != 2]
        content["annotations"].append({"id": 90, "image_id": 2, "category_id": 10, "bbox": wrong})
        source = open_boxes(write_coco(tmp_path, content))
        assert [sample.name for sample in source.splits["all"]] == ["a.png", "c.png"]
        assert source.problems["no box left"] == ["b.png"] and source.problems["no box"] == ["c.png"]
        assert "1 picture whose boxes are all wrong, left out (b.png)." in source.notes


def test_files_without_partner_are_listed_and_bad_ones_leave_their_picture_out(tmp_path):
    root = write_voc(tmp_path)
    (root / "JPEGImages" / "a.png").unlink()
    (root / "Annotations" / "c.xml").write_text("<annotation><size>")
    Image.new("RGB", (30, 30)).save(root / "JPEGImages" / "d.png")
    source = open_boxes(root)
    assert source.problems["no picture"] == ["a.xml"]
    assert source.problems["no annotation"] == ["JPEGImages/d.png"] and "no box" not in source.problems
    assert "1 picture without an annotation, left out (JPEGImages/d.png)." in source.notes
    assert source.problems["unreadable annotation"][0].startswith("c.xml: ")
    assert [sample.name for sample in source.splits["all"]] == ["JPEGImages/b.png"]
    content = coco()
    content["images"].append({"id": 9, "file_name": "gone.png", "width": 9, "height": 9})
    assert open_boxes(write_coco(tmp_path / "coco", content)).problems["no picture"] == ["gone.png of boxes.json"]


def test_an_annotation_that_declares_entities_is_not_read(tmp_path):
    root = write_voc(tmp_path)
    bomb = '<!DOCTYPE x [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;&a;">]>' + xml("a").replace("cat", "&b;")
    (root / "Annotations" / "a.xml").write_text(bomb)
    assert open_boxes(root).problems["unreadable annotation"] == ["a.xml: declares entities, which no annotation needs"]


def test_difficult_objects_and_crowds_are_kept_as_ignored(tmp_path):
    root = write_voc(tmp_path / "voc", b=[("dog", 4, 8, 12, 16), ("blurred", 0, 0, 5, 5)])
    sample = open_boxes(root).splits["all"][1]
    assert sample.ignored.tolist() == [False, True] and len(sample.labels) == 1
    content = coco()
    content["annotations"][0]["iscrowd"] = 1
    assert open_boxes(write_coco(tmp_path / "coco", content)).splits["all"][0].ignored.tolist() == [True, False]


def test_pictures_of_one_name_in_two_splits_have_names_of_their_own(tmp_path):
    for split in ("train", "val"):
        pictures(tmp_path / split)
        (tmp_path / split / "_annotations.coco.json").write_text(json.dumps(coco()))
    source = open_boxes(tmp_path)
    names = {split: [sample.name for sample in samples] for split, samples in source.splits.items()}
    assert names == {split: [f"{split}/{name}.png" for name in PICTURES] for split in ("train", "val")}
    assert source.problems["no box"] == ["train/c.png", "val/c.png"]
    assert open_boxes(tmp_path / "val" / "_annotations.coco.json").splits["val"][0].name == "a.png"


def test_one_id_for_two_pictures_is_refused_and_an_entry_repeated_counts_once(tmp_path):
    content = coco()
    content["images"].append(dict(content["images"][0]))
    source = open_boxes(write_coco(tmp_path, content))
    assert [sample.name for sample in source.splits["all"]] == ["a.png", "b.png", "c.png"]
    assert source.notes[0] == "1 picture of boxes.json with an entry that is there already (a.png)."
    content["images"][1]["id"] = 1
    with pytest.raises(
        VitrailError, match=r"gives a\.png and b\.png the same id, 1: whose its boxes are can't be told"
    ):
        open_boxes(write_coco(tmp_path, content))


def test_the_lists_of_voc_are_the_splits(tmp_path):
    root = write_voc(tmp_path)
    lists = root / "ImageSets" / "Main"
    lists.mkdir(parents=True)
    (lists / "train.txt").write_text("a\nmissing\n")
    (lists / "val.txt").write_text("b  1\n")
    (lists / "trainval.txt").write_text("a\nb\n")
    source = open_boxes(root)
    assert {split: [s.name for s in samples] for split, samples in source.splits.items()} == {
        "train": ["JPEGImages/a.png"], "val": ["JPEGImages/b.png"],
    }  # fmt: skip
    assert source.problems["not in a list"] == ["c.png"] and source.problems["no picture"] == ["missing of train.txt"]


def test_a_file_or_a_folder_for_each_split(tmp_path):
    pictures(tmp_path / "coco" / "train2017", ["a", "c"])
    pictures(tmp_path / "coco" / "val2017", ["b"])
    (tmp_path / "coco" / "annotations").mkdir()
    for split, names in (("train", ["a", "c"]), ("val", ["b"])):
        (tmp_path / "coco" / "annotations" / f"instances_{split}2017.json").write_text(json.dumps(coco(names)))
        (tmp_path / "coco" / "annotations" / f"captions_{split}2017.json").write_text("{}")
    source = open_boxes(tmp_path / "coco")
    assert {split: len(samples) for split, samples in source.splits.items()} == {"train": 2, "val": 1}
    (tmp_path / "coco" / "annotations" / "instances_more.json").write_text(json.dumps(coco(["a"])))
    source = open_boxes(tmp_path / "coco")
    assert len(source) == 3 and "instances_more.json names no split, as the files beside it do, and is not" in str(
        source.notes
    )

    for split, names in (("train", ["a", "c"]), ("valid", ["b"])):
        pictures(tmp_path / "export" / split, names)
        (tmp_path / "export" / split / "_annotations.coco.json").write_text(json.dumps(coco(names)))
    source = open_boxes(tmp_path / "export")
    assert {split: len(samples) for split, samples in source.splits.items()} == {"train": 2, "val": 1}

    for split in ("train", "test"):
        write_yolo(tmp_path / "yolo", f"{split}/images", f"{split}/labels")
    (tmp_path / "yolo" / "data.yaml").write_text(
        "train: ../train/images\ntest: ../test/images\nval: ../valid/images\nnc: 2\nnames: ['cat', 'dog']\n"
    )
    source = open_boxes(tmp_path / "yolo")
    assert {split: len(samples) for split, samples in source.splits.items()} == {"train": 3, "test": 3}
    assert source.classes == CLASSES and "../valid/images, which is to hold val pictures, is not there." in source.notes
    (tmp_path / "yolo" / "data.yaml").write_text("train: [train/images, test/images]\nnames: ['cat', 'dog']\n")
    assert len(open_boxes(tmp_path / "yolo").splits["train"]) == 6

    write_yolo(tmp_path / "plain", "images/train", "labels/train")
    source = open_boxes(tmp_path / "plain")
    assert source.classes == ["class 0", "class 1"] and len(source.splits["train"]) == 3


def test_without_splits_a_seeded_part_is_set_apart_with_every_class_in_both(tmp_path):
    samples = open_boxes(write_coco(tmp_path)).splits["all"]
    samples = [replace(sample, name=f"{number} {sample.name}") for number in range(4) for sample in samples]
    rest, part = divide(samples, 0.5, seed=0)
    assert len(rest) == 6 and len(part) == 6
    for side in (rest, part):
        assert {label for sample in side for label in sample.labels} == {0, 1}
    assert divide(samples, 0.5, seed=0) == (rest, part) != divide(samples, 0.5, seed=1)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("0 0.5 0.5 0.2", "line 1 has 4 numbers, and a box has 5"),
        ("0 0.5 0.5 0.2 0.2\ncat 1 2 3 4", 'line 2 is no row of numbers ("cat 1 2 3 4")'),
        ("0 120 60 30 30", "line 1 holds 120, and fractions of the picture are expected"),
        ("0.5 0.5 0.5 0.2 0.2", "line 1 begins with 0.5, which is no class"),
        ("nan 0.5 0.5 0.2 0.2", "line 1 begins with nan, which is no class"),
        ("1e9 0.5 0.5 0.2 0.2", "line 1 begins with 1e+09, which is no class"),
    ],
)
def test_a_text_file_that_is_not_yolos_leaves_its_picture_out(text, reason, tmp_path):
    root = write_yolo(tmp_path)
    (root / "labels" / "a.txt").write_text(text)
    (root / "labels" / "z.txt").write_text("0 0.5 0.5 0.1 0.1")
    source = open_boxes(root)
    assert reason in source.problems["unreadable annotation"][0]
    assert source.problems["no picture"] == ["labels/z.txt"] and len(source.splits["all"]) == 2


def test_polygons_of_yolo_and_coco_are_outlines(tmp_path):
    root = write_yolo(tmp_path / "yolo")
    for name in "ab":
        (root / "labels" / f"{name}.txt").write_text("0 0.1 0.2 0.5 0.2 0.5 0.6")
    source = open_boxes(root)
    assert source.outlined and np.allclose(source.splits["all"][0].boxes, [[0.1, 0.2, 0.5, 0.6]])
    content = coco()
    for annotation in content["annotations"]:
        annotation["segmentation"] = [[10, 20, 50, 20, 50, 60]]
    content["annotations"][1]["segmentation"] = {"size": [80, 100], "counts": [0, 8000]}
    source = open_boxes(write_coco(tmp_path / "coco", content))
    assert source.outlined and np.allclose(source.splits["all"][0].outlines[0][0][1], [0.5, 0.25])
    assert not open_boxes(write_voc(tmp_path / "voc")).outlined
    for broken in ({"size": [80, 100], "counts": [1, 2]}, {"size": [8, 10], "counts": [0, 80]}, [[1, 2, 3]]):
        content["annotations"][1]["segmentation"] = broken
        assert open_boxes(write_coco(tmp_path / "coco", content)).bare == ["a.png"]


def test_ids_and_sides_that_are_none_cost_no_more_than_their_entry(tmp_path):
    content = coco()
    content["annotations"] += [
        {"id": 50, "image_id": [1], "category_id": 10, "bbox": [1, 1, 5, 5]},
        {"id": 51, "image_id": 1, "category_id": {}, "bbox": [1, 1, 5, 5]},
    ]
    content["images"][1]["width"] = "100"
    source = open_boxes(write_coco(tmp_path, content))
    assert source.problems["no picture"] == ["1 box of image None in boxes.json"]
    assert source.problems["unknown class"] == ["a.png: category {} [1, 1, 6, 6]"]
    assert source.problems["unreadable annotation"] == ["b.png of boxes.json: no width and height"]
    content["images"][0]["id"] = []
    with pytest.raises(VitrailError, match="an image without an id"):
        open_boxes(write_coco(tmp_path, content))


def test_names_are_read_from_every_form_of_yaml(tmp_path):
    path = tmp_path / "data.yaml"
    for text in (
        "names: [cat, 'a, b']", 'names:\n  - cat\n  - "a, b"  # two\n', "names:\n  0: cat\n  1: 'a, b'\n",
        "names: {0: cat, 1: 'a, b'}", "nc: 2\ntrain: x\nnames:\n- cat\n- a, b\n",
    ):  # fmt: skip
        path.write_text(text)
        assert read_yaml(path)["names"] == ["cat", "a, b"], text


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("instances_train2017", "train"),
        ("heads_train", "train"),
        ("valid", "val"),
        ("pets", None),
        ("test-dev2017", "test"),
    ],
)
def test_the_split_that_a_name_means(name, split):
    assert split_word(name) == split


def test_what_is_no_source_of_boxes_is_refused_in_a_sentence(tmp_path):
    with pytest.raises(VitrailError, match=r"^There is no .*: expected COCO's JSON"):
        open_boxes(tmp_path / "nowhere")
    with pytest.raises(VitrailError, match="holds no boxes: expected COCO's JSON"):
        open_boxes(tmp_path)
    (tmp_path / "x.json").write_text("{")
    with pytest.raises(VitrailError, match=r"x\.json is no JSON"):
        open_boxes(tmp_path / "x.json")
    (tmp_path / "x.json").write_text("[1]")
    with pytest.raises(VitrailError, match="needs the lists images, annotations and categories"):
        open_boxes(tmp_path / "x.json")
    (tmp_path / "x.json").write_text(json.dumps(coco()))
    with pytest.raises(VitrailError, match=r"names a\.png, which is neither beside it nor in images/"):
        open_boxes(tmp_path / "x.json")
    pictures(tmp_path / "far")
    assert len(open_boxes(tmp_path / "x.json", images=tmp_path / "far")) == 3
    (tmp_path / "x.json").write_text(json.dumps(coco(annotations=[])))
    with pytest.raises(VitrailError, match="holds no box at all"):
        open_boxes(tmp_path / "x.json", images=tmp_path / "far")
    write_voc(tmp_path)
    with pytest.raises(VitrailError, match="holds Pascal VOC's XML and COCO's JSON: keep one kind"):
        open_boxes(tmp_path)


@pytest.mark.data
def test_blood_cells_and_pet_heads_are_read(real_data):
    cells = open_boxes(real_data / "bccd")
    assert cells.classes == ["Platelets", "RBC", "WBC"]
    assert {split: len(samples) for split, samples in cells.splits.items()} == {"train": 205, "val": 87, "test": 72}
    assert sum(len(s.boxes) for samples in cells.splits.values() for s in samples) == 4155 + 372 + 361 - 2
    assert {what: len(where) for what, where in cells.problems.items()} == {"empty": 2}
    heads = open_boxes(real_data / "pets" / "heads_train.json")
    assert heads.classes == ["cat_head", "dog_head"] and len(heads.splits["train"]) == 1110
    assert np.allclose(heads.splits["train"][0].boxes_on((256, 256)), [[192, 40.5, 234.5, 102.4]], atol=1e-3)
