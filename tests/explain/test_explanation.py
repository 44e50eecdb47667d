"""`Predictor.explain`: the arrays are those of the functions, and it shows itself, in a notebook and as a page."""

import errno
import io
import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch
import tyro
from PIL import Image

import vitrail
from tests.explain.small import SIZE, lively, swin
from tests.parity.peers import shake
from vitrail import explain
from vitrail.cli.explain import explain as cli_explain
from vitrail.data import prepare
from vitrail.explain.explanation import explain_picture, portrait, write
from vitrail.explain.image_maps import percent
from vitrail.explain.page import section
from vitrail.models import MaskedAutoencoder, Preprocessing

PHOTO = Image.fromarray(np.random.default_rng(0).integers(0, 255, (50, 70, 3), dtype=np.uint8))
LABELS = ["cat", "Dog", "crane", "crane"]


@pytest.fixture
def predictor():
    return vitrail.Predictor(lively(), Preprocessing(size=(48, 48)), LABELS, "small", device="cpu")


def test_the_arrays_are_those_of_the_functions(predictor):
    found = predictor.explain(PHOTO, target="cat")
    x = prepare(PHOTO, predictor.preprocessing)
    assert [*found.maps] == ["relevance", "grad_cam", "rollout", "attention"]
    for name, values in found.maps.items():
        assert torch.allclose(values, explain.METHODS[name](predictor.model, x, 0)[0], atol=1e-6)
    assert [*found.curves] == [*found.maps, "random"]
    expected = explain.faithfulness(predictor.model, x, found.maps["relevance"][None], 0, steps=10)
    assert torch.allclose(found.curves["relevance"].deletion, expected.deletion, atol=1e-6)
    assert torch.allclose(found.distance, explain.attention_distance(predictor.model, x))
    assert found.target == "cat" and len(found.attention) == 3 and found.pca.shape == (3, 3, 3)
    best = predictor.predict(PHOTO, top=4)[0]
    assert [label for label, _ in found.classes] == [p.label for p in best]
    assert [share for _, share in found.classes] == pytest.approx([p.probability for p in best], abs=1e-6)


def test_the_likeliest_class_is_explained_by_default_and_the_curves_can_be_left_out(predictor):
    found = predictor.explain(PHOTO, methods=["grad_cam"], faithfulness=False)
    assert found.target == predictor.predict(PHOTO, top=1)[0][0].label
    assert [*found.maps] == ["grad_cam"] and found.curves == {}


def test_the_layer_is_where_attention_and_grad_cam_look(predictor):
    found = predictor.explain(PHOTO, 1, layer=1, faithfulness=False)
    x = prepare(PHOTO, predictor.preprocessing)
    assert torch.allclose(found.maps["attention"], explain.attention(predictor.model, x, 1)[0].mean(0), atol=1e-6)
    assert torch.allclose(found.maps["grad_cam"], explain.grad_cam(predictor.model, x, 1, 1)[0], atol=1e-6)
    with pytest.raises(vitrail.VitrailError, match="there is no layer 5"):
        predictor.explain(PHOTO, layer=5)


def test_the_attention_of_swin_is_that_of_the_block_that_is_named():
    predictor = vitrail.Predictor(swin(), Preprocessing(size=(64, 64)), LABELS, device="cpu")
    found = predictor.explain(PHOTO, faithfulness=False)
    assert found.layer == 1 and found.maps["attention"].shape == (16, 16)  # of four: the last of the first stage
    named = predictor.explain(PHOTO, layer=found.layer, methods=["attention"], faithfulness=False)
    assert torch.equal(found.maps["attention"], named.maps["attention"])


def test_classes_are_found_by_label_or_index(predictor):
    assert [predictor.class_index(t) for t in ("cat", "dog", 3, "3")] == [0, 1, 3, 3]
    with pytest.raises(vitrail.VitrailError, match="'crane' is the name of classes 2 and 3: give the index"):
        predictor.class_index("crane")
    with pytest.raises(vitrail.VitrailError, match='Did you mean "cat"'):
        predictor.class_index("cats")
    with pytest.raises(vitrail.VitrailError, match="no class 4: the model has 4"):
        predictor.class_index(4)
    digits = vitrail.Predictor(lively(), Preprocessing(size=(32, 32)), ["3", "2", "1", "0"], device="cpu")
    assert digits.class_index("3") == 0 and digits.class_index(3) == 3  # a label first, where it is a word


def test_a_class_outside_the_five_likeliest_is_shown_with_its_probability():
    model = lively(num_classes=8)
    predictor = vitrail.Predictor(model, Preprocessing(size=(48, 48)), [*"abcdefgh"], device="cpu")
    rest = predictor.predict(PHOTO, top=8)[0]
    found = predictor.explain(PHOTO, rest[6].label, faithfulness=False)
    assert [label for label, _ in found.classes] == [p.label for p in (*rest[:5], rest[6])]
    assert found.share == pytest.approx(rest[6].probability, abs=1e-6)
    words = rf"<li style=[^>]* class=asked><span>{rest[6].label}</span><span>{percent(found.share)}</span>"
    assert re.search(words, section(found).body) and percent(found.share) in found._repr_html_()
    assert f"explained: {rest[6].label} {percent(found.share)}; maps: relevance, " in repr(found)
    assert [percent(share) for share in (0.5126, 0.00031, 2e-9)] == ["51.3%", "0.03%", "<0.0001%"]


def test_an_explanation_is_printed_as_one_line(predictor):
    found = predictor.explain(PHOTO, faithfulness=False)
    line = rf"Explanation\(picture, 48×48: {found.target} \d+\.\d%; maps: relevance, grad_cam, rollout, attention\)"
    assert re.fullmatch(line, str(found))


def test_the_charts_of_one_picture_have_the_line_of_attending_to_all_alike(predictor):
    found = predictor.explain(PHOTO, faithfulness=False)
    steps = torch.cdist(*[torch.cartesian_prod(torch.arange(3.0), torch.arange(3.0)) * 16] * 2)
    assert found.farthest == pytest.approx(steps.mean().item()) and found.most == pytest.approx(math.log(10))
    for name, level in (("attention_distance", found.farthest), ("attention_entropy", found.most)):
        (axes,) = found.figures()[name].axes
        assert level in [line.get_ydata()[0] for line in axes.lines if line.get_linestyle() != "-"]
        assert axes.get_xlabel() == "block" and axes.get_xticks().tolist() == [1, 2, 3]


def test_a_notebook_is_given_a_picture_and_html(predictor):
    found = predictor.explain(PHOTO)
    assert Image.open(io.BytesIO(found._repr_png_())).width > 500
    html = found._repr_html_()
    assert 'src="data:image/png;base64,' in html and "alt=" in html and found.target in html


def check_page(text: str) -> None:
    """Complete in itself, and every picture has words for those who can't see it."""
    assert "http" not in text.replace("http-equiv", "")
    assert "default-src 'none'" in text and "prefers-color-scheme: dark" in text
    code = [script for script in re.findall(r"<script([^>]*)>", text) if "application/json" not in script]
    assert code == [""]  # the page's own, which its policy names
    images = re.findall(r"<img[^>]*>", text)
    assert images and all(re.search(r'alt="[^"]{10,}"', image) for image in images)
    assert all(re.search(r'src="data:image/(png|jpeg);base64,', image) for image in images)
    assert all('aria-hidden="true"' in svg for svg in re.findall(r"<svg[^>]*>", text))
    charts = re.findall(r"<figure[^>]* data-chart[^>]*>", text)
    assert len(charts) == 2 * text.count("Which explanation to believe") + 2 * text.count('<section id="model"')
    assert all(re.search(r'role="group" aria-label="[^"]{30,}"', chart) for chart in charts)
    sections = re.findall(r'<section id="([^"]+)"', text)
    assert len(sections) == len(set(sections))


def test_saving_writes_pngs_and_one_page(predictor, tmp_path):
    explained = predictor.explain(PHOTO)
    page = explained.save(tmp_path / "new" / "folder")
    names = {path.stem for path in page.parent.glob("*.png")}
    assert names == {
        "picture", "relevance", "grad_cam", "rollout", "attention", "tokens", "overview", "faithfulness",
        "attention_heads", "attention_distance", "attention_entropy",
    }  # fmt: skip
    small, large = explained.overlays(), explained.overlays(zoom=9)
    for name, drawn in large.items():  # 48 pixels in a size to look at
        assert drawn.shape == (432, 432, 3) and np.array_equal(
            np.asarray(Image.open(page.parent / f"{name}.png")), drawn
        )
    assert np.array_equal(large["tokens"], small["tokens"].repeat(9, axis=0).repeat(9, axis=1))
    again = np.asarray(Image.fromarray(large["picture"]).resize((48, 48), Image.Resampling.BOX))
    assert np.abs(again.astype(int) - small["picture"]).mean() < 0.15 * np.ptp(small["picture"])
    wide = vitrail.Predictor(lively(), Preprocessing(size=(320, 400)), LABELS, device="cpu")
    wide.explain(PHOTO, methods=["attention"], faithfulness=False).save(tmp_path / "wide")
    assert Image.open(tmp_path / "wide" / "attention.png").size == (400, 320)  # large enough as it is
    check_page(page.read_text(encoding="utf-8"))
    (tmp_path / "file").write_text("")
    found = predictor.explain(PHOTO, methods=["grad_cam"], faithfulness=False)
    with pytest.raises(vitrail.VitrailError, match="can't be written: File exists"):
        found.save(tmp_path / "file")


def test_files_appear_whole_or_not_at_all(predictor, tmp_path, monkeypatch):
    path = write(tmp_path / "deep" / "er" / "a.html", "caf\udce9")  # a name that is no UTF-8, as Linux hands it over
    assert path.read_bytes() == b"caf?"

    def full(self, content):
        with self.open("wb") as file:
            file.write(content[: len(content) // 2])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(vitrail.VitrailError, match="can't be written: No space left on device"):
        write(path, b"something else")
    assert path.read_bytes() == b"caf?" and [*path.parent.iterdir()] == [path]


def test_a_class_that_is_not_there_is_refused_whatever_is_drawn(predictor):
    x = prepare(PHOTO, predictor.preprocessing)
    for target in (4, -1):
        with pytest.raises(vitrail.VitrailError, match=f"classes 0 to 3; there is no class {target}"):
            explain_picture(predictor.model, np.asarray(PHOTO), x, LABELS, target, ["attention"], steps=0)


def test_pictures_of_several_sizes_are_called_so_and_have_no_figure_of_attending_to_all_alike(
    predictor, tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    predictor.save("model.safetensors")
    for name, size in (("a", (48, 32)), ("b", (64, 48))):
        PHOTO.resize(size).save(f"{name}.png")
    options = ["--model", "model.safetensors", "--fit", "native", "--methods", "grad_cam", "--device", "cpu"]
    assert tyro.cli(cli_explain, args=["a.png", "b.png", "--out", "out", *options]) == 0
    assert "2 pictures of several sizes." in capsys.readouterr().out
    page = Path("out/explain.html").read_text(encoding="utf-8")
    check_page(page)
    assert "2 pictures of several sizes." in page and "alike: log N" not in page
    assert tyro.cli(cli_explain, args=["b.png", "--out", "one", *options]) == 0
    assert "1 picture of 48×64." in capsys.readouterr().out
    assert "alike: log N" in Path("one/explain.html").read_text(encoding="utf-8")
    assert portrait(predictor.model, None).positions.shape == (2, 2, 2, 2)


def test_names_can_hold_no_markup(tmp_path):
    labels = ['<script>"x"</script>', "b", "c", "d"]
    predictor = vitrail.Predictor(lively(), Preprocessing(size=(32, 32)), labels, device="cpu", name="<i>mine")
    text = predictor.explain(PHOTO, 0).save(tmp_path).read_text(encoding="utf-8")
    check_page(text)
    assert "&lt;script&gt;" in text and "As &lt;i&gt;mine sees it." in text


@pytest.mark.parametrize(
    ("model", "maps", "size"),
    [
        (swin, ["grad_cam", "attention"], (60, 76)),
        (lambda: lively(num_classes=0), ["rollout", "attention"], (48, 40)),
        (lambda: lively(stem=(1, 1), patch_size=2), ["relevance", "grad_cam", "rollout", "attention"], (40, 40)),
        (lambda: lively(channels=1), ["relevance", "grad_cam", "rollout", "attention"], (32, 32)),
        (
            lambda: shake(
                MaskedAutoencoder(**{**SIZE, "num_classes": 0}, decoder_width=16, decoder_depth=1, decoder_heads=2)
            ),
            ["rollout", "attention"],
            (48, 48),
        ),
    ],
    ids=["swin", "features", "hybrid", "grey", "mae"],
)
def test_every_family_is_explained_by_what_it_has(model, maps, size, tmp_path):
    model = model()
    grey = {"mean": (0.5,), "std": (0.5,)} if model.settings.channels == 1 else {}
    predictor = vitrail.Predictor(model, Preprocessing(size=size, **grey), device="cpu")
    found = predictor.explain(PHOTO)
    assert [*found.maps] == maps
    assert (found.reconstruction is not None) == isinstance(model, MaskedAutoencoder)
    check_page(found.save(tmp_path).read_text(encoding="utf-8"))
    assert (tmp_path / "reconstruction.png").exists() == isinstance(model, MaskedAutoencoder)
