"""Faces by folder, table and list; protocols that keep people apart; what is refused, in one sentence."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitrail.data.sources.faces import open_faces, write_faces
from vitrail.data.sources.faces.protocol import folds, part_by_subject
from vitrail.data.sources.faces.samples import Face, square
from vitrail.errors import VitrailError


def picture(path: Path, shade: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (16, 12), (shade % 256, 100, 100)).save(path)
    return path


def make_people(root: Path, people: int = 8, each: int = 2, kinds: tuple[str, ...] = ("live", "print")) -> Path:
    for person in range(people):
        for kind in kinds:
            for number in range(each):
                picture(root / kind / f"{person:04d}" / f"{number}.png", person)
    return root


def make_face(person: str, attack: str = "", number: int = 0, domain: str = "") -> Face:
    return Face(f"{domain}{person}{attack}{number}", Path("x"), (), attack, person, "", domain)


# -- reading ----------------------------------------------------------------------------------------------------------


def test_folders_say_type_subject_session_domain_and_split(tmp_path):
    picture(tmp_path / "msu" / "train" / "real" / "0001" / "phone" / "a.png")
    picture(tmp_path / "msu" / "train" / "attack" / "print" / "0001" / "b.png")
    picture(tmp_path / "msu" / "train" / "replay" / "0002" / "c.png")
    picture(tmp_path / "msu" / "test" / "real" / "0003" / "d.png")
    picture(tmp_path / "msu" / "test" / "mask" / "e.png")
    picture(tmp_path / "msu" / "devel" / "real" / "0004" / "f.png")
    source = open_faces(tmp_path, training=False)
    train = {Path(face.name).stem: face for face in source.splits["train"]}
    a, b, c = train["a"], train["b"], train["c"]
    assert (a.attack, a.subject, a.session, a.domain, a.person) == ("", "0001", "phone", "msu", "msu/0001")
    assert (b.attack, b.subject, b.domain) == ("print", "0001", "msu")
    assert (c.attack, c.subject) == ("replay", "0002")
    assert source.classes == ["live", "print", "replay"] and [f.subject for f in source.splits["val"]] == ["0004"]
    assert [face.labels for face in (a, b, c)] == [(0,), (1,), (2,)]
    mask = next(face for face in source.splits["test"] if face.attack)
    assert (mask.attack, mask.subject, mask.labels) == ("mask", "", ())  # nothing to learn it from


def test_folders_of_people_below_attack_are_no_attack_types(tmp_path):
    for kind in ("live", "spoof"):
        for person in ("ann", "bob"):
            picture(tmp_path / kind / person / "1.png")
    source = open_faces(tmp_path, training=False)
    assert source.classes == ["live", "attack"]
    assert {face.subject for face in source.splits["all"]} == {"ann", "bob"}


def test_a_table_says_all_of_it_and_is_read_back_as_it_was_written(tmp_path):
    for name in "abc":
        picture(tmp_path / f"{name}.png")
    (tmp_path / "faces.csv").write_text(
        "path;label;attack;split;subject;session;domain;box\n"
        "a.png;bona-fide;;train;7;s1;lab;\n"
        "b.png;spoof;replay;train;7;s2;lab;2 1 6 8\n"
        "c.png;print;;dev;8;s1;home;\n"
    )
    source = open_faces(tmp_path / "faces.csv", training=False)
    a, b = source.splits["train"]
    assert (a.attack, b.attack, source.splits["val"][0].attack) == ("", "replay", "print")
    assert b.box == (2.0, 1.0, 8.0, 9.0)
    again = open_faces(write_faces(tmp_path / "again.csv", source.splits), training=False)
    told = [
        [(f.attack, f.subject, f.session, f.domain, f.box) for faces in s.splits.values() for f in faces]
        for s in (source, again)
    ]
    assert told[0] == told[1] and list(again.splits) == ["train", "val"]


NUAA = b"\xef\xbb\xbf0001\\0001_00_00_01_0.jpg\r\n0002/0002_01_00_02_1.jpg 3 2 4 5 8 9\r\r\n0009\\gone.jpg\r\n???\r\n"


def test_lists_of_nuaa_with_odd_slashes_encodings_and_missing_files(tmp_path):
    for folder in ("ClientRaw", "ImposterRaw"):
        for name in ("0001/0001_00_00_01_0.jpg", "0002/0002_01_00_02_1.jpg"):
            picture(tmp_path / folder / name, 7 if folder == "ClientRaw" else 200)
    for kind in ("client", "imposter"):
        (tmp_path / f"{kind}_train_raw.txt").write_bytes(NUAA)
        (tmp_path / f"{kind}_test_raw.txt").write_bytes("0002\\0002_01_00_02_1.jpg".encode("utf-16"))
        (tmp_path / f"{kind}_train_normalized.txt").write_text("nowhere.bmp\n")
    source = open_faces(tmp_path, training=False)
    assert {split: len(faces) for split, faces in source.splits.items()} == {"train": 4, "test": 2}
    first, second, third, _ = source.splits["train"]
    assert (first.attack, first.subject, first.session, first.box) == ("", "0001", "01", None)
    assert (second.subject, second.session, second.box) == ("0002", "02", (3.0, 2.0, 7.0, 7.0))
    # The same path in both lists is two pictures.
    assert third.attack == "attack" and first.decode().getpixel((0, 0)) != third.decode().getpixel((0, 0))
    assert any("1 picture of client_train_raw.txt not found, left out (0009/gone.jpg)" in note for note in source.notes)
    assert any("1 line of client_train_raw.txt name no picture (???)" in note for note in source.notes)
    assert any("those of raw are read, not those of normalized" in note for note in source.notes)


# -- face boxes -------------------------------------------------------------------------------------------------------


def test_the_square_around_a_face_has_its_margin_and_stays_inside():
    assert square((100, 100), (40, 40, 60, 50), 0.0) == (40, 35, 60, 55)
    assert square((100, 100), (40, 40, 60, 60), 0.5) == (30, 30, 70, 70)
    assert square((100, 100), (0, 0, 20, 20), 0.5) == (0, 0, 40, 40)  # moved, not shrunk
    assert square((30, 100), (40, 0, 80, 30), 0.5) == (45, 0, 75, 30)  # as large as the picture allows


def test_a_face_box_cuts_the_picture_for_training_and_for_measuring_alike(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 255, (40, 60, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    face = Face("a.png", tmp_path / "a.png", (0,), box=(20, 10, 30, 20), margin=0.5)
    assert np.array_equal(face.pixels(), pixels[5:25, 15:35])
    assert np.array_equal(np.asarray(face.decode()), pixels[5:25, 15:35])
    assert face.identity() != Face("a.png", tmp_path / "a.png", (0,)).identity()
    outside = Face("a.png", tmp_path / "a.png", (0,), box=(60, 10, 70, 20))
    for read in (outside.pixels, outside.decode):
        with pytest.raises(
            VitrailError, match=r"a\.png is 60×40 pixels, and its face box \(60, 10 to 70, 20\) lies out"
        ):
            read()


def test_boxes_of_a_second_table_are_found_by_path_or_name(tmp_path):
    data = make_people(tmp_path / "data", people=2, each=1)
    table = tmp_path / "boxes.csv"
    table.write_text("path,left,top,width,height\nlive/0000/0.png,1,2,3,4\nlive\\0001\\0.png,5,6,7,8\n")
    source = open_faces(data, boxes=table, margin=0.1, training=False)
    boxes = {face.name: face.box for face in source.splits["all"]}
    assert boxes["live/0000/0.png"] == (1, 2, 4, 6) and boxes["live/0001/0.png"] == (5, 6, 12, 14)
    assert boxes["print/0000/0.png"] is None
    assert any(note.startswith("2 pictures without a face box, taken at the centre") for note in source.notes)
    table.write_text("path,box\nother.png,1 2 3 4\n")
    with pytest.raises(VitrailError, match="has no box for any picture"):
        open_faces(data, boxes=table)


# -- protocols --------------------------------------------------------------------------------------------------------


def people_of(source, split: str) -> set[str]:
    return {face.person for face in source.splits[split]}


def test_development_subjects_are_held_out_whole_and_hold_both_kinds(tmp_path):
    source = open_faces(make_people(tmp_path, people=8), seed=3)
    assert people_of(source, "train") & people_of(source, "val") == set()
    assert len(people_of(source, "val")) == 2  # a quarter
    assert {face.attack for face in source.splits["val"]} == {"", "print"}
    again = open_faces(tmp_path, seed=3)
    assert people_of(again, "val") == people_of(source, "val")
    assert any(people_of(open_faces(tmp_path, seed=s), "val") != people_of(source, "val") for s in range(4))


def test_a_part_by_subject_has_its_share_of_both_kinds_though_people_differ_in_size():
    rng = np.random.default_rng(0)
    faces = [
        make_face(f"{person}", kind, n)
        for person in range(16)
        for kind in ("", "print")
        for n in range(rng.integers(10, 300))
    ]
    rest, part = part_by_subject(faces, 0.25, seed=1)
    assert len(rest) + len(part) == len(faces)
    for kind in ("", "print"):
        share = sum(f.attack == kind for f in part) / sum(f.attack == kind for f in faces)
        assert 0.15 < share < 0.35


def test_the_last_subject_of_an_attack_type_stays_in_training():
    faces = [make_face(str(p), kind) for p in range(6) for kind in ("", "print")] + [make_face("0", "mask")]
    for seed in range(5):
        rest, part = part_by_subject(faces, 0.4, seed)
        assert "mask" in {face.attack for face in rest}
        assert {face.attack for face in part} == {"", "print"}


def test_folds_share_nobody_and_are_of_about_one_size():
    rng = np.random.default_rng(1)
    faces = [
        make_face(f"{p}", kind, n) for p in range(15) for kind in ("", "print") for n in range(rng.integers(50, 400))
    ]
    parts = folds(faces, 3)
    people = [{face.person for face in part} for part in parts]
    assert not people[0] & people[1] and not people[0] & people[2] and not people[1] & people[2]
    assert sum(map(len, parts)) == len(faces)
    for kind in ("", "print"):
        sizes = [sum(face.attack == kind for face in part) for part in parts]
        assert max(sizes) < 1.25 * min(sizes)


def test_a_fold_takes_the_union_and_each_subject_is_tested_once(tmp_path):
    for split in ("train", "test"):  # the same people in both, as in an official list
        make_people(tmp_path / split, people=6)
    tested: list[str] = []
    for number in (1, 2, 3):
        source = open_faces(tmp_path, fold=f"{number}/3")
        sets = [people_of(source, split) for split in ("train", "val", "test")]
        assert sum(map(len, sets)) == len(set.union(*sets)) == 6
        tested += sets[2]
    assert sorted(tested) == [f"{n:04d}" for n in range(6)]


def test_a_subject_in_two_splits_is_refused_by_name_unless_the_protocol_is_official(tmp_path):
    make_people(tmp_path / "train", people=6)
    make_people(tmp_path / "test", people=2)
    with pytest.raises(
        VitrailError, match=r"train and test share 2 subjects \(0000, 0001\).*--protocol official"
    ) as told:
        open_faces(tmp_path, seed=1)
    assert "\n" not in str(told.value)
    source = open_faces(tmp_path, protocol="official", seed=1)
    assert source.protocol["overlap"] == {"train and test": ["0000", "0001"]}
    assert any("train and test share 2 subjects (0000, 0001): the figures flatter" in note for note in source.notes)


def test_a_picture_of_nobody_in_two_splits_is_refused_by_its_name(tmp_path):
    rows = []
    for name, split in (("a", "train"), ("b", "train"), ("c", "devel"), ("a", "test")):
        for kind in ("live", "print"):
            picture(tmp_path / kind / f"{name}.png")
            rows.append(f"{kind}/{name}.png,{kind},{split}")
    (tmp_path / "faces.csv").write_text("\n".join(["path,label,split", *rows]))
    with pytest.raises(VitrailError, match=r"train and test share 2 subjects \(live/a\.png, print/a\.png\)"):
        open_faces(tmp_path / "faces.csv")


def test_a_domain_left_out_is_tested_on_and_people_of_one_number_are_strangers_elsewhere(tmp_path):
    for domain in ("msu", "casia", "oulu"):
        make_people(tmp_path / domain, people=4)
    source = open_faces(tmp_path, leave_out="casia")
    assert {face.domain for face in source.splits["test"]} == {"casia"}
    assert {face.domain for s in ("train", "val") for face in source.splits[s]} == {"msu", "oulu"}
    assert len(source.splits["test"]) == 16 and len(source.splits["train"]) + len(source.splits["val"]) == 32
    assert any(
        note.startswith("4 subjects of the test (0000, 0001, 0002, 0003) also trained or chose, in another domain")
        for note in source.notes
    )
    with pytest.raises(VitrailError, match=r"no domain 'cassia'; it has casia, msu, oulu\. Did you mean .casia."):
        open_faces(tmp_path, leave_out="cassia")


def test_an_attack_type_unseen_in_training_is_allowed_and_said(tmp_path):
    make_people(tmp_path / "train", people=6)
    for person in ("x", "y"):
        picture(tmp_path / "test" / "live" / person / "1.png")
        picture(tmp_path / "test" / "mask" / person / "1.png")
    source = open_faces(tmp_path)
    assert source.classes == ["live", "print"]
    assert [face.labels for face in source.splits["test"] if face.attack == "mask"] == [(), ()]
    assert "test has 1 attack type that training does not (mask)." in source.notes


def only_live(folder: Path) -> None:
    make_people(folder, kinds=("live",))


def only_live_in_development(folder: Path) -> None:
    make_people(folder / "train")
    for person in "xy":
        picture(folder / "dev" / "live" / person / "1.png")


def one_person(folder: Path) -> None:
    make_people(folder, people=1)


def no_live(folder: Path) -> None:
    make_people(folder, kinds=("print", "replay"))


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (only_live, "The training set holds live faces only (16): train on both, live faces and attacks."),
        (
            only_live_in_development,
            "The development set holds live faces only (2): it has to choose a threshold between them",
        ),
        (one_person, "Of 1 subject none can be set apart for development"),
        (no_live, "has no folder of live faces: put them into live/"),
    ],
)
def test_what_can_t_be_learned_from_is_refused_in_one_sentence(tmp_path, make, sentence):
    make(tmp_path)
    with pytest.raises(VitrailError) as told:
        open_faces(tmp_path)
    assert sentence in str(told.value) and "\n" not in str(told.value)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"fold": "4/3"}, "--fold 4/3 is not known: write 1/3"),
        ({"fold": "1/3", "leave_out": "msu"}, "--fold and --leave-out each say what to test on"),
        ({"leave_out": "msu"}, "it names none"),
        ({"fold": "1/9"}, "8 subjects can't be divided into 9 folds"),
    ],
)
def test_protocols_that_make_no_sense_are_refused(tmp_path, options, sentence):
    with pytest.raises(VitrailError, match=sentence):
        open_faces(make_people(tmp_path), **options)


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        ("a.png,1\n", 'Line 2 .* has the label "1": write live or attack'),
        ("a.png,live\nb.png,attack\n", "None of the 2 pictures"),
        ("a.png,live\na.png,print\n", r"Line 3 of .* says print of a\.png, and line 2 says live: which is it\?"),
        ("", "has no rows"),
    ],
)
def test_tables_that_can_t_be_read_are_refused(tmp_path, rows, sentence):
    if rows.startswith("a.png,1"):
        picture(tmp_path / "a.png")
    (tmp_path / "faces.csv").write_text("path,label\n" + rows)
    with pytest.raises(VitrailError, match=sentence):
        open_faces(tmp_path / "faces.csv")
