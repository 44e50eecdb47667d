"""What all benchmarks share: a record says how its figures were made."""

import json
import sys
from pathlib import Path

import numpy as np
import torch

import vitrail

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
import photographs
import pytest
import record
import throughput


def test_a_record_has_the_command_without_places_and_the_versions(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/some/where/speed.py", "--data", "/home/me/pets", "--size", "64", "my pets"])
    record.keep(tmp_path / "new" / "out.json", {"rows": [1.5]}, "cpu")
    found = json.loads((tmp_path / "new" / "out.json").read_text())
    assert found["about"]["command"] == "python benchmarks/speed.py --data pets --size 64 'my pets'"
    assert found["rows"] == [1.5] and "thread" in found["about"]["hardware"]
    assert (found["about"]["vitrail"], found["about"]["torch"]) == (vitrail.__version__, torch.__version__)
    record.keep(None, {"rows": []})
    assert [*tmp_path.iterdir()] == [tmp_path / "new"]


def test_photographs_of_known_classes_are_found_by_name_and_by_number(tmp_path):
    for folder in ("persian", "0001", "zebra crossing"):
        (tmp_path / "set" / folder).mkdir(parents=True)
        (tmp_path / "set" / folder / "a.jpg").touch()
    (tmp_path / "set" / "classes.json").write_text(json.dumps({"0001": "Gold_Fish"}))
    paths, truth = photographs.pictures(tmp_path / "set", ["gold fish", "owl", "Persian cat"])
    assert [path.parent.name for path in paths] == ["0001", "persian"] and truth.tolist() == [0, 2]
    images = np.zeros((2, 4, 4, 3), dtype=np.uint8)
    np.savez(tmp_path / "set.npz", test_images=images, test_labels=[1, 0])
    pictures, truth = photographs.pictures(tmp_path / "set.npz", [])
    assert [picture.size for picture in pictures] == [(4, 4)] * 2 and truth.tolist() == [1, 0]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here, and the benchmark would begin")
def test_what_is_about_a_gpu_says_so_where_there_is_none(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["throughput.py"])
    with pytest.raises(SystemExit) as ended:
        throughput.main()
    assert ended.value.code == 2 and capsys.readouterr().err == "This is about a GPU, and there is none here.\n"


def test_time_in_which_several_kernels_run_counts_once():
    assert throughput.covered([(10.0, 14.0), (0.0, 4.0), (1.0, 2.0), (3.0, 6.0)]) == (14.0, 10.0)


def test_random_pictures_are_a_data_set_that_can_be_trained_on(tmp_path):
    throughput.random_pictures(tmp_path / "random.npz", 600, 8)
    row = throughput.measured(
        tmp_path / "random.npz", "vit_nano2:depth=1", "adamw", 64, 3, tmp_path / "run", compile="off"
    )
    assert len(row["epochs"]) == 3
    assert row["images_per_second"] == pytest.approx(np.median(row["epochs"][1:]), abs=0.5)  # the first compiles
