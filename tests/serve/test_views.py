"""What the Studio computes: maps that survive their journey, stages of true shape, hidden patches, bounded memory."""

import json
import os
import warnings
from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from PIL import Image

import vitrail
from vitrail import explain
from vitrail.models import Preprocessing
from vitrail.serve.answers import Asked, AskedLayers, AskedOverlay, Studio
from vitrail.serve.maps import NOWHERE, packed, packed_bytes, unpacked
from vitrail.serve.pictures import MOST_SAMPLES, Gone, ImageSet, find_samples
from vitrail.serve.run import opened, samples_of
from vitrail.serve.strip import principal, stages, turned
from vitrail.serve.views import KEPT_VIEWS, Lens, Request, View, Views
from vitrail.training.run_folder import Record


def lens(name: str = "vit_ti16", size: int = 64, **settings) -> Lens:
    model = vitrail.create_model(name, image_size=size, num_classes=4, **settings)
    return Lens(vitrail.Predictor(model, Preprocessing(size=(size, size)), device="cpu"))


@pytest.fixture(scope="module")
def image() -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 255, (90, 130, 3), np.uint8))


def test_a_packed_row_is_within_a_255th_of_its_largest_value():
    attention = torch.randn(1, 2, 50, 50).mul(3).softmax(-1)
    small, top = packed(attention)
    assert small.dtype == torch.uint8 and small.shape == attention.shape
    error = (unpacked(small, top) - attention).abs()
    assert (error <= top[..., None] / 255).all()
    tiny = attention < top[..., None] / 100
    assert error[tiny].max() < 0.12 * top.max() / 255


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("vit_ti16", {"depth": 2, "registers": 2}),
        ("deit_ti16_distilled", {"depth": 2}),
        ("swin_t", {"width": 24, "depths": (2, 2), "heads": (2, 4), "window": 3}),
        ("swinv2_t", {"width": 24, "depths": (2, 2), "heads": (2, 4), "window": 3}),
    ],
)
def test_what_the_page_reads_is_what_capture_gives_on_the_grid(name, settings, image):
    """Also where windows are shifted and padded: 80 pixels are 20 tokens of 4, in windows of 3."""
    one = lens(name, 80, **settings)
    view = View(one, one.fit(image, 80, "trained"), ())
    layers = list(range(len(one.heads)))
    found = view.attention(layers)
    with torch.inference_mode(), vitrail.capture(one.net) as maps:
        one.net(view.x)
    assert sum(found[f"map/{i}"].numel() for i in layers) == packed_bytes(one.net, view.grids)
    for layer in layers:
        values, place = unpacked(found[f"map/{layer}"], found[f"top/{layer}"]), found[f"place/{layer}"]
        assert maps.grid(layer) == view.grids[layer]
        h, w = view.grids[layer]
        real = place[(place > NOWHERE) & (place >= 0)]
        assert sorted(real.tolist()) == list(range(h * w))
        for patch in (0, w + 1, h * w - 1):
            window, at = (place == patch).nonzero()[0].tolist()
            row = torch.zeros(one.heads[layer], h * w)
            inside = place[window] >= 0
            row[:, place[window][inside].long()] = values[window, :, at][:, inside]
            truth = maps.row(layer, patch)[0].flatten(1)
            assert (row - truth).abs().max() <= truth.max() / 200


def test_stages_have_the_shapes_of_the_tensors(image):
    one = lens(depth=3)
    view = View(one, one.fit(image, 64, "trained"), ())
    assert [(s.key, s.shape) for s in view.stages] == [
        ("image", [1, 3, 64, 64]),
        ("patches", [1, 16, 768]),
        ("embeddings", [1, 16, 192]),
        ("positions", [1, 17, 192]),
        *[("block", [1, 17, 192])] * 3,
        ("class", [1, 192]),
    ]
    tokens, _ = one.net.embed(view.x)
    assert torch.equal(view.stages[-1].vector, one.net.pool(one.net.encode(tokens, (4, 4)))[0])
    swin = lens("swin_t", 64, width=24, depths=(1, 1), heads=(2, 4))
    found = stages(swin.net, swin.fit(image, 64, "trained").x)
    assert [s.shape for s in found if s.key == "block"] == [[1, 256, 24], [1, 64, 48]]
    assert [tuple(s.colours.shape) for s in found if s.key == "block"] == [(16, 16, 3), (8, 8, 3)]


def test_principal_components_are_those_of_a_full_decomposition():
    torch.manual_seed(1)
    tokens = torch.randn(14, 14, 6) @ (torch.randn(6, 64) * torch.tensor([9.0, 5, 3, 1, 0.5, 0.2])[:, None])
    x = tokens.flatten(0, 1) - tokens.flatten(0, 1).mean(0)
    u, s, _ = torch.linalg.svd(x, full_matrices=False)
    ours = principal(tokens).flatten(0, 1)
    for i in range(3):
        assert abs(torch.cosine_similarity(ours[:, i], u[:, i], dim=0)) > 0.999
        assert ours[:, i].norm() == pytest.approx(float(s[i]), rel=1e-3)


@pytest.mark.parametrize("name", ["vit_ti16", "swin_t"])
def test_explain_and_the_studio_draw_the_same_colours(image, name):
    one = lens(depth=2) if name == "vit_ti16" else lens(name, 64, width=24, depths=(1, 1), heads=(2, 4))
    view = View(one, one.fit(image, 64, "trained"), ())
    blocks = [stage for stage in stages(one.net, view.x) if stage.key == "block"]
    expected = explain.token_pca(one.net, view.x)[0] * 255
    found = blocks[one.net.default_layer].colours
    assert (found - expected).abs().max() <= 0.5 + 1e-3 and found.float().std(dim=(0, 1)).min() > 5
    ours = principal(one.net.features(view.x, layers=[1])["map/1"][0].permute(1, 2, 0).detach()).flatten(0, 1)
    assert (ours.pow(3).sum(0) > 0).all() and ours.norm(dim=0).diff().max() < 0
    assert principal(torch.zeros(2, 3, 8)).abs().max() == 0 and principal(torch.rand(1, 2, 2)).shape == (1, 2, 3)


def test_colours_keep_their_meaning_when_components_swap_and_flip():
    before = torch.randn(8, 8, 3)
    swapped = torch.stack([before[..., 2], -before[..., 0], before[..., 1]], dim=-1)
    assert torch.allclose(turned(swapped, before), before)


def test_a_hidden_patch_is_zero_for_the_model_and_the_mean_colour_for_the_eye(image):
    one = lens(depth=2)
    fitted = one.fit(image, 64, "trained")
    view = View(one, fitted, (5,))
    assert (view.x[0, :, 16:32, 16:32] == 0).all()
    assert torch.equal(view.x[0, :, :16], fitted.x[0, :, :16])
    assert (view.pixels[16:32, 16:32] == fitted.mean).all() and fitted.mean == [124, 116, 104]
    x = fitted.x.clone()
    x[0, :, 16:32, 16:32] = 0
    with torch.inference_mode():
        assert torch.allclose(view.probabilities, one.net(x)[0].softmax(-1))


def test_answers_are_those_of_predict_at_every_size(image):
    one = lens(depth=2)
    for size in (64, 96):
        view = View(one, one.fit(image, size, "trained"), ())
        other = vitrail.Predictor(one.predictor.model, Preprocessing(size=(size, size)), device="cpu")
        assert torch.allclose(view.probabilities, other.probabilities(image)[0], atol=1e-6)
        assert view.grid == (size // 16, size // 16)
    whole = View(one, one.fit(image, 96, "whole"), ())
    assert whole.grid == (5, 7) and tuple(whole.x.shape[2:]) == (80, 112)  # 130×90 over about 6×6 patches
    long = one.fit(image.resize((1000, 20)), 96, "whole")
    assert long.x.shape[2:] == (48, 192)  # 50:1 is squeezed to 4:1


def test_of_a_spoof_run_the_answer_at_the_threshold_comes_first(image):
    one = lens(depth=1)
    view = View(one, one.fit(image, 64, "trained"), ())
    live = float(view.probabilities[0])
    one.predictor.about["task"] = "spoof"
    for threshold, first in ((1 - live + 1e-4, 0), (1 - live - 1e-4, 1 + int(view.probabilities[1:].argmax()))):
        one.predictor.about["threshold"] = threshold
        found = [row["index"] for row in view.classes([])]
        assert found[0] == first and sorted(found) == [0, 1, 2, 3]
        assert found == [p.index for p in one.predictor.ranked(view.probabilities)]


def test_what_the_patch_does_not_divide_is_shown_with_the_margin_that_the_model_adds(image):
    one = lens(size=72, depth=1)
    fitted = one.fit(image, 72, "trained")
    view = View(one, fitted, ())
    assert fitted.x.shape[2:] == (72, 72) and view.grid == (5, 5)
    assert view.pixels.shape == (80, 80, 3)  # so that a patch of the grid lies on its pixels
    assert (view.pixels[72:] == fitted.mean).all() and (view.pixels[:, 72:] == fitted.mean).all()


def test_the_size_slider_ends_where_a_page_could_not_hold_a_layer():
    assert lens("vit_ti16", 224, depth=1).sizes[-1] == 672
    wide = lens("vit_b16", 224, depth=1)
    assert wide.sizes[-1] == 640  # 12 heads × 1601² = 30.8 MB; 656 would be 34 MB
    assert all(size % 16 == 0 for size in wide.sizes)


def test_views_and_pictures_are_forgotten_before_they_grow_too_many(image, monkeypatch, tmp_path):
    one, views = lens(depth=1), Views()
    for patch in range(KEPT_VIEWS + 6):
        views.get(Request("a", 0, 64, "trained", (patch % 16, patch // 16)), one, lambda: image)
    assert len(views.kept) == KEPT_VIEWS
    assert len({id(view.fitted) for view in views.kept.values()}) == 1

    pictures = ImageSet([])
    monkeypatch.setattr("vitrail.serve.pictures.KEPT_BYTES", 3000)
    names = []
    for colour in ("red", "green", "blue", "white"):
        Image.effect_noise((32, 32), 60).convert("RGB").save(tmp_path / f"{colour}.png")
        names.append(pictures.add((tmp_path / f"{colour}.png").read_bytes())[0])
    assert sum(map(len, pictures.files.values())) <= max(3000, len(pictures.files[names[-1]]))
    assert pictures.get(names[-1]).size == (32, 32)
    with pytest.raises(Gone):
        pictures.get(names[0])


def held(views: Views) -> int:
    """Every array that can be reached from the views, once."""
    found: dict[int, int] = {}
    for view in views.kept.values():
        stages = [a for s in view.__dict__.get("stages", []) for a in (s.colours, s.table, s.vector, s.units)]
        maps = [a for layer in view.attentions.values() for a in layer.values()]
        for array in (view.x, view.fitted.x, *view.overlays.values(), *stages, *maps):
            if array is not None:
                found[id(array)] = array.nbytes
        found[id(view.fitted.sharp)] = len(view.fitted.sharp)
        found[id(view.fitted.image)] = 4 * view.fitted.image.width * view.fitted.image.height
    return sum(found.values())


def test_views_hold_no_more_bytes_than_they_may(image, monkeypatch):
    """All that they hold counts: pixels, stages and overlays as well as attention."""
    studio = Studio([lens(depth=3)], [])
    monkeypatch.setattr(studio.pictures, "get", lambda name: image)
    asked = {"picture": "a", "size": 64}
    studio.answer(studio.look, Asked(**asked))
    one = held(studio.views)
    assert studio.views.nbytes == one > 64 * 64 * 3 * 4 + 3 * 16 * 192
    monkeypatch.setattr("vitrail.serve.views.KEPT_BYTES", 4 * one)
    most = 0
    for patch in range(16):
        question = {**asked, "hidden": [patch]}
        studio.answer(studio.look, Asked(**question))
        studio.answer(studio.overlay, AskedOverlay(**question, name="rollout"))
        studio.answer(studio.attention, AskedLayers(**question))
        most = max(most, held(studio.views))
        assert studio.views.nbytes == held(studio.views) <= 4 * one
    assert most > 2 * one and 2 <= len(studio.views.kept) < 16

    # One view alone gives up its oldest layers.
    monkeypatch.setattr("vitrail.serve.views.KEPT_BYTES", 1)
    studio.answer(studio.attention, AskedLayers(**asked, layers=[0, 1, 2]))
    assert [list(view.attentions) for view in studio.views.kept.values()] == [[2]]


def test_samples_are_spread_over_the_classes_of_a_folder(tmp_path):
    for number in range(30):
        (tmp_path / f"class {number:02d}").mkdir()
        for name in "ab":
            Image.new("RGB", (8, 8)).save(tmp_path / f"class {number:02d}" / f"{name}.png")
    found = find_samples(tmp_path)
    assert len(found) == MOST_SAMPLES
    assert found[0].name == "class 00 / a.png" and found[-1].name == "class 27 / a.png"
    (tmp_path / "none" / "@eaDir").mkdir(parents=True)
    Image.new("RGB", (8, 8)).save(tmp_path / "none" / "@eaDir" / "thumb.png")  # a disk station's
    (tmp_path / "none" / "circle").symlink_to(tmp_path / "none")
    with pytest.raises(vitrail.VitrailError, match="holds no pictures"):
        find_samples(tmp_path / "none")


def test_the_samples_of_a_run_are_pictures_that_it_was_not_trained_on(tmp_path):
    for split in ("train", "test"):
        (tmp_path / "data" / split / "owl").mkdir(parents=True)
        Image.new("RGB", (8, 8)).save(tmp_path / "data" / split / "owl" / "a.png")
    (tmp_path / "run").mkdir()
    none = dict.fromkeys((field.name for field in fields(Record)), None)
    saved = none | {"data": str(tmp_path / "data"), "recipe": {}}
    (tmp_path / "run" / "run.json").write_text(json.dumps(saved))
    assert [one.path for one in samples_of([tmp_path / "run"])] == [tmp_path / "data" / "test" / "owl" / "a.png"]
    (tmp_path / "data" / "test").rename(tmp_path / "elsewhere")
    assert [one.name for one in samples_of([str(tmp_path / "run")])] == ["train / owl / a.png"]
    assert samples_of([tmp_path / "elsewhere"]) == [] and samples_of(["deit_ti16"]) == []
    (tmp_path / "run" / "run.json").write_text(json.dumps(saved | {"data": None}))  # an array that had no path
    assert samples_of([tmp_path / "run"]) == []


def test_the_samples_of_a_run_on_plain_folders_are_those_that_it_held_out(tmp_path, monkeypatch):
    data, run = tmp_path / "data", tmp_path / "run"
    run.mkdir()
    rows = ["path,label,split"]
    for number, split in enumerate(["train", "val", "train", "val", "test", "val"]):
        path = data / "owl" / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8)).save(path)
        rows.append(f"{path if number % 2 else os.path.relpath(path, run)},owl,{split}")  # as a table may name it
    table, record = run / "split.csv", Record(str(data), {}, {"refit": "off"}, {}, {}, {})
    table.write_text("\n".join(rows))
    record.write(run)
    assert [one.name for one in samples_of([run])] == ["owl / 4.png"]
    (data / "owl" / "4.png").unlink()
    monkeypatch.chdir(tmp_path)
    assert [one.name for one in samples_of(["run"])] == ["owl / 1.png", "owl / 3.png", "owl / 5.png"]
    replace(record, recipe={"refit": "on"}).write(run)  # which has learned from val in the end, so that none is left
    assert [one.name for one in samples_of([run])] == ["owl / 0.png"]
    table.unlink()
    assert [one.name for one in samples_of([run])] == ["owl / 0.png"]


def test_an_architecture_is_told_to_bare_checkpoints_only(tmp_path):
    model = vitrail.create_model("vit_ti16", depth=1, num_classes=2)
    own = vitrail.save_weights(model, tmp_path / "own.safetensors", name="mine")
    bare = vitrail.save_weights(model, tmp_path / "bare.safetensors", dialect="timm")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert opened(own, "vit_b16", "cpu").name == "mine"
    with pytest.raises(vitrail.VitrailError, match="not a checkpoint of vit_b16"):
        opened(bare, "vit_b16", "cpu")
