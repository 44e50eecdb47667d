"""The table of results is what the records say, in both languages, and in step."""

import json
from pathlib import Path

import pytest
import table

ROOT = Path(__file__).parents[2]


@pytest.fixture
def place(tmp_path):
    for name in table.HEADS:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"# Title\n\n{table.BEGIN}\nold\n{table.END}\n\nThe end.\n", encoding="utf-8")
    folder = tmp_path / "records" / "cifar"
    folder.mkdir()
    runs = [{"variant": "plain", "seed": s, "figures": {"top1": v}} for s, v in enumerate((0.955, 0.957, 0.956))]
    runs.append({"variant": "other", "seed": 0, "figures": {"top1": 0.5}})
    plain = {"record": "cifar/plain.json", "en": "CIFAR-10 in an hour", "zh": "一小时", "beside": "93.58, and more",
             "variant": "plain", "figure": "top1", "scale": 100,
             "short": {"en": "CIFAR-10", "zh": "CIFAR-10 图像",
                       "beside": {"en": "93.58 published", "zh": "已发表 93.58"}}}  # fmt: skip
    quick = {"record": "cifar/plain.json", "en": "to 94 %", "zh": "到 94 %", "numbers": [58.25], "form": "{:.1f} s"}
    (folder / "plain.json").write_text(json.dumps({"runs": runs}))
    results = {f"seg/{name}/{seed}": {"figures": {"miou": value + seed / 100}}
               for name, value in (("ours", 0.8), ("peer", 0.6)) for seed in (0, 1)}  # fmt: skip
    results["seg/ours/speed"] = {"images_per_second": [3]}
    dense = {"record": "cifar/dense.json", "en": "Pets", "zh": "宠物", "variant": "seg/ours", "figure": "miou",
             "scale": 100, "form": "{:.1f} %", "beside": "{seg/peer} the peer, under the same budget",
             "short": {"en": "Pets", "zh": "宠物", "beside": "{seg/peer} the peer"}}  # fmt: skip
    (folder / "dense.json").write_text(json.dumps({"results": results}))
    (tmp_path / "records" / "headlines.json").write_text(json.dumps([quick, plain, dense]))
    return tmp_path


def test_rows_are_computed_from_the_runs(place):
    assert table.main(["--check", "--root", str(place)]) == 1
    assert "old" in (place / "README.md").read_text()  # to check is not to write
    assert table.main(["--root", str(place)]) == 0
    assert (place / "README.md").read_text().splitlines() == [
        "# Title",
        "",
        table.BEGIN,
        "| what | Vitrail | beside | record |",
        "| --- | --- | --- | --- |",
        "| CIFAR-10 | 95.60 ± 0.10 % (n = 3) | 93.58 published | [plain](records/cifar/plain.json) |",
        "| Pets | 80.5 ± 0.7 % (n = 2) | 60.5 ± 0.7 % the peer | [dense](records/cifar/dense.json) |",
        table.END,
        "",
        "The end.",
    ]
    # Beside the records lie all rows, with all that is to be said.
    assert (place / "records" / "README.md").read_text().splitlines()[5:8] == [
        "| to 94 % | 58.2 s |  | [plain](cifar/plain.json) |",
        "| CIFAR-10 in an hour | 95.60 ± 0.10 % (n = 3) | 93.58, and more | [plain](cifar/plain.json) |",
        "| Pets | 80.5 ± 0.7 % (n = 2) | 60.5 ± 0.7 % the peer, under the same budget | [dense](cifar/dense.json) |",
    ]
    assert "| CIFAR-10 图像 | 95.60 ± 0.10 % (n = 3) | 已发表 93.58 |" in (place / "README.zh.md").read_text()
    assert table.main(["--check", "--root", str(place)]) == 0


def test_a_row_without_numbers_and_a_page_without_a_place_are_refused(place):
    (place / "records" / "cifar" / "empty.json").write_text(json.dumps({"runs": []}))
    headlines = place / "records" / "headlines.json"
    before, nothing = (
        headlines.read_text(),
        {"record": "cifar/empty.json", "en": "Nothing", "figure": "top1", "short": {}},
    )
    headlines.write_text(json.dumps([nothing]))
    with pytest.raises(SystemExit, match=r"empty\.json .* Nothing"):
        table.main(["--root", str(place)])
    headlines.write_text(before)
    (place / "README.md").write_text("# Title\n")
    with pytest.raises(SystemExit, match=r"^README\.md"):
        table.main(["--root", str(place)])


def test_the_pages_of_this_repository_are_in_step():
    for name in table.HEADS:
        page = (ROOT / name).read_text(encoding="utf-8")
        assert table.written(page, name, ROOT / "records") == page
