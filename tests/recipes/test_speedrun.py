"""The speed run at toy size: what counts as time, which images are measured on, how much of it is a transformer."""

import json

import pytest
import scales
import speedrun

import vitrail

QUICK = ["epochs=2", "batch_size=32", "warmup=1", "augment=none", "compile=off", "calm=1"]


def test_the_record_says_what_was_run(tmp_path, capsys):
    data = scales.toy_data(tmp_path / "digits.npz")
    out = tmp_path / "record.json"
    asked = ["--data", str(data), "--model", "vit_nano2", "--seeds", "0", "1", "--device", "cpu", "--json", str(out)]
    found = speedrun.main([*asked, "--set", *QUICK])
    assert json.loads(out.read_text()) == json.loads(json.dumps(found))
    assert found["recipe"]["epochs"] == 2 and found["recipe"]["optimizer"] == "muon"
    assert [row["of"] for row in found["runs"]] == ["test", "test"]
    for row in found["runs"]:
        assert row["images_seen"] == 2 * scales.TOY_TRAIN  # nothing held out
        assert 0 < row["seconds"] <= row["wall_seconds"] and 0 <= row["figures"]["top1"] <= 1
    assert "2 seeds: " in capsys.readouterr().out


def test_a_record_is_added_to(tmp_path, monkeypatch):
    data, out = scales.toy_data(tmp_path / "digits.npz"), tmp_path / "record.json"
    asked = ["--data", str(data), "--model", "vit_nano2", "--device", "cpu", "--json", str(out), "--set", *QUICK]
    first = speedrun.main([*asked, "--seeds", "3"])["runs"]
    both = speedrun.main([*asked, "--seeds", "3", "4"])["runs"]
    assert both[0] == first[0] and [row["seed"] for row in both] == [3, 4]
    monkeypatch.setattr(speedrun, "run", lambda *_: pytest.fail("it ran"))
    with pytest.raises(SystemExit, match="another recipe"):
        speedrun.main([*asked, "lr=0.5", "--seeds", "5"])
    with pytest.raises(SystemExit, match="another validate"):
        speedrun.main([*asked, "--seeds", "5", "--validate", "0.2"])
    assert len(json.loads(out.read_text())["commands"]) == 2


def test_runs_may_be_kept_and_gone_on_with(tmp_path):
    data = scales.toy_data(tmp_path / "digits.npz")
    asked = ["--data", str(data), "--model", "vit_nano2", "--device", "cpu", "--seeds", "0", "--set", *QUICK]
    (row,) = speedrun.main([*asked, "--keep", str(tmp_path / "kept")])["runs"]
    kept = vitrail.evaluate(tmp_path / "kept" / "seed-0", str(data), "test")
    assert kept["top1"] == row["figures"]["top1"]
    (again,) = speedrun.main([*asked, "--keep", str(tmp_path / "kept")])["runs"]  # as after an interruption
    assert again["figures"] == row["figures"] and again["epochs"] == 2 and again["resumed"] and "resumed" not in row
    with pytest.raises(SystemExit, match="seed-0 holds a run with another lr: give --keep another folder"):
        speedrun.main([*asked, "lr=0.5", "--keep", str(tmp_path / "kept")])


def test_while_the_recipe_is_tuned_test_images_are_not_read(tmp_path, monkeypatch):
    data = scales.toy_data(tmp_path / "digits.npz")
    monkeypatch.setattr(speedrun.vitrail, "evaluate", lambda *_, **__: pytest.fail("test/ was read"))
    asked = ["--data", str(data), "--model", "vit_nano2", "--seeds", "0", "--device", "cpu", "--validate", "0.25"]
    (row,) = speedrun.main([*asked, "--set", *QUICK])["runs"]
    assert row["of"] == "validation" and row["images_seen"] < 2 * scales.TOY_TRAIN


def test_the_share_of_the_blocks_is_all_but_the_stem():
    assert speedrun.blocks_share("vit_mini4") > 0.99
    assert 0.85 < speedrun.blocks_share(speedrun.MODEL) < 0.95  # at least 0.8 makes it a transformer
    assert speedrun.blocks_share("hybrid_mini4:depth=4") < speedrun.blocks_share(speedrun.MODEL)
