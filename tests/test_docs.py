"""The pages of docs/ and the README say what the code does."""

import doctest
import re
from pathlib import Path

import pytest

from vitrail.cli.demo import write_digits

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted((ROOT / "docs").glob("*.md"))
PROSE = {"architecture.md"}  # about the code, without examples


@pytest.mark.parametrize("page", PAGES, ids=[p.name for p in PAGES])
def test_every_example_of_a_page_prints_what_the_page_shows(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # The fences are for the reader of the page; to doctest the last one would be a part of the output.
    text = re.sub(r"^```.*$", "", page.read_text(encoding="utf-8"), flags=re.M)
    examples = doctest.DocTestParser().get_doctest(text, {}, page.name, str(page), 0)
    result = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(examples)
    assert result.attempted > 5 or page.name in PROSE
    assert result.failed == 0


@pytest.mark.parametrize("page", [ROOT / "README.md", ROOT / "README.zh.md", *PAGES], ids=lambda p: p.name)
def test_links_of_a_page_lead_somewhere(page):
    targets = re.findall(r"\]\((?!http)([^)#]+)", page.read_text(encoding="utf-8"))
    assert [target for target in targets if not (page.parent / target).exists()] == []


def test_readme_python_block_runs(tmp_path, monkeypatch):
    """The block as it stands, with the files and the batch that its reader is supposed to have."""
    from PIL import Image

    import vitrail

    monkeypatch.chdir(tmp_path)
    block = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.S)
    chinese = re.search(r"```python\n(.*?)```", (ROOT / "README.zh.md").read_text(encoding="utf-8"), re.S)
    assert block and chinese
    code = re.compile(r"\s*#.*")
    assert [code.sub("", line) for line in block[1].splitlines()] == [code.sub("", s) for s in chinese[1].splitlines()]
    write_digits(Path("runs/demo/digits"))
    small = vitrail.create_model("vit_b16", num_classes=10)
    vitrail.save_weights(small, "checkpoint.pth", dialect="timm")
    Image.new("RGB", (300, 200), "teal").save("photo.jpg")
    names: dict = {}
    exec(block[1], names)
    assert names["maps"][11].shape == (1, 12, 281, 281)  # 14·20 patches and the class token
    assert names["predictor"].preprocessing.size == (224, 320)
