"""What is drawn is what was computed: colours, places, sizes."""

import io
import json
import math
import re

import matplotlib
import numpy as np
import pytest
import torch
from PIL import Image

from tests.explain.small import lively, swin
from tests.parity.peers import pictures
from vitrail import explain
from vitrail.explain import figures
from vitrail.explain.charts import curve_charts, heads_chart
from vitrail.explain.drawing import encoded, filter_mosaic, head_mosaic, mosaic, overlay, position_mosaic

GREY = np.full((40, 48, 3), 100, np.uint8)


def test_an_overlay_has_the_size_of_the_picture_and_one_colour_per_patch():
    drawn = overlay(GREY, torch.tensor([[0.0, 1.0, 2.0], [4.0, 0.0, 0.0], [0.0, 0.0, 1.0]]), (16, 16))
    assert drawn.shape == (40, 48, 3)  # the third row of patches is half a row
    cells = drawn[:32].reshape(2, 16, 3, 16, 3)
    assert (cells == cells[:, :1, :, :1]).all()
    brightness = drawn[::16, ::16].astype(int).sum(axis=-1)
    assert brightness.argmax() == 3 and brightness[0, 0] < brightness[0, 1] < brightness[0, 2] < brightness[1, 0]


def test_the_largest_value_has_the_brightest_colour_and_zero_the_picture_itself_in_grey():
    drawn = overlay(GREY, torch.tensor([[0.0, 5.0]]), (48, 24), strength=1.0)
    assert drawn[0, 40].tolist() == [round(255 * c) for c in matplotlib.colormaps["inferno"](1.0)[:3]]
    assert np.ptp(drawn[0, 0].astype(int)) <= 2  # grey, but for the colour map's own black
    assert overlay(GREY, torch.zeros(1, 1), (40, 48)).max() < 100  # a map of nothing divides by nothing


def test_scale_does_not_change_an_overlay():
    values = torch.rand(3, 3)
    assert np.array_equal(overlay(GREY, values, (16, 16)), overlay(GREY, 1000 * values, (16, 16)))


def test_grey_pictures_are_drawn_too():
    assert overlay(GREY[..., :1], torch.rand(3, 3), (16, 16)).shape == (40, 48, 3)


def test_mosaics_put_tiles_in_their_places():
    tiles = [[np.full((4, 5, 3), 10 * r + c, np.uint8) for c in range(3)] for r in range(2)]
    drawn = mosaic(tiles, gap=1)
    assert drawn.shape == (9, 17, 3)
    assert drawn[0, 0, 0] == 0 and drawn[5, 6, 0] == 11 and drawn[8, 16, 0] == 12 and drawn[4, 0, 0] == 255


def test_position_and_head_mosaics_have_a_tile_for_each():
    similarity = explain.position_similarity(lively(), (3, 4))
    drawn = position_mosaic(similarity, gap=2, side=1)
    assert drawn.shape == (3 * (3 + 2) - 2, 4 * (4 + 2) - 2, 3)
    yellow = [round(255 * c) for c in matplotlib.colormaps["viridis"](1.0)[:3]]
    assert drawn[5 + 1, 12 + 2].tolist() == yellow  # the patch (1, 2) is like itself
    layers = [one[0] for one in explain.attention_by_layer(swin(), pictures(64, 64))]
    drawn = head_mosaic(np.zeros((64, 64, 3), np.uint8), layers, [(4, 4), (4, 4), (8, 8), (8, 8)])
    assert drawn.shape == (64, 4 * 68 - 4, 3)  # four layers across; their heads differ, so the mean alone
    same = head_mosaic(np.zeros((64, 64, 3), np.uint8), layers[2:], [(8, 8), (8, 8)])
    assert same.shape == (4 * 68 - 4, 2 * 68 - 4, 3)  # three heads, and the mean at the end
    assert np.array_equal(same[3 * 68 :, 68:], drawn[:, 3 * 68 :])


def test_filters_are_grey_where_they_are_zero():
    filters = torch.zeros(2, 3, 4, 4)
    filters[0, 0, 0, 0], filters[1, :, 1, 1] = 2.0, -3.0
    drawn = filter_mosaic(filters, across=2, zoom=1, gap=0)
    assert drawn[0, 0].tolist() == [255, 128, 128] and drawn[1, 5].tolist() == [0, 0, 0] and drawn[3, 3, 0] == 128


def test_every_figure_is_a_png_of_some_ink():
    model, x = lively(), pictures(48, 48)
    picture = np.random.default_rng(0).integers(0, 255, (48, 48, 3), dtype=np.uint8)
    maps = {name: method(model, x, None)[0] for name, method in explain.METHODS.items()}
    drawn = [
        figures.saliency_figure(picture, maps, dict.fromkeys(maps, (16, 16))),
        figures.heads_figure(picture, [one[0] for one in explain.attention_by_layer(model, x)], [(16, 16)] * 3),
        figures.distance_figure(explain.attention_distance(swin(), pictures(64, 64)), 20.0),
        figures.entropy_figure(explain.attention_entropy(model, x), math.log(10)),
        figures.position_figure(explain.position_similarity(model)),
        figures.filters_figure(*explain.patch_filters(model)),
        figures.pca_figure(picture, explain.token_pca(model, x)[0], (16, 16)),
        figures.similarity_figure(picture, explain.token_similarity(model, x, (1, 1))[0], (16, 16), (1, 1)),
        figures.curves_figure({"relevance": explain.faithfulness(model, x, explain.relevance(model, x), steps=3)}),
        figures.comparison_figure(explain.compare(model, [x], ["rollout", "random"], steps=3)),
    ]
    for figure in drawn:
        pixels = np.asarray(Image.open(io.BytesIO(figures.png(figure, dpi=40))).convert("L"))
        assert pixels.std() > 5 and min(pixels.shape) > 30


def test_curves_in_a_figure_are_the_curves():
    curves = explain.Curves(torch.tensor([[1.0, 0.5, 0.0]]), torch.tensor([[0.0, 0.0, 1.0]]))
    left, right = figures.curves_figure({"relevance": curves}).axes
    assert left.lines[0].get_ydata().tolist() == [1, 0.5, 0] and left.lines[0].get_xdata().tolist() == [0, 50, 100]
    assert right.lines[0].get_label() == "Relevance  0.25"


def test_the_legend_of_curves_lies_outside_of_them():
    line = torch.linspace(1, 0, 5)
    for count in (1, 5):
        figure = figures.mean_curves_figure(*[dict.fromkeys([*figures.COLOURS][:count], line)] * 2)
        figure.draw_without_rendering()
        for ax in figure.axes:
            legend, label = ax.get_legend().get_window_extent(), ax.xaxis.label.get_window_extent()
            assert legend.y0 >= 0 and legend.y1 <= label.y0 < ax.get_window_extent().y0


def test_a_map_that_is_bright_all_over_is_told_from_one_that_says_something():
    picture, even = np.full((32, 32, 3), 128, np.uint8), torch.tensor([[0.25, 0.24], [0.25, 0.26]])
    maps = {"attention": even, "rollout": torch.tensor([[0.1, 0.2], [0.3, 0.4]])}
    axes = figures.saliency_figure(picture, maps, dict.fromkeys(maps, (16, 16))).axes
    assert [ax.get_title() for ax in axes] == ["Picture", "Attention, nearly even", "Rollout"]


def test_a_chart_of_heads_has_a_dot_for_each_and_reads_their_mean():
    table = torch.tensor([[1.0, 3.0], [2.0, 2.0], [math.nan, 4.0]])
    chart = heads_chart("Reach", table, limit=5.0, limit_words="all alike")
    dots = re.findall(r'class="points" d="([^"]*)"', chart)
    assert [path.count("M") for path in dots] == [2, 2, 1] and ">all alike</text>" in chart
    data = json.loads(re.search(r"<script[^>]*>(.*?)</script>", chart).group(1))
    assert data["labels"] == ["block 1", "block 2", "block 3"]
    mean, heads = data["series"]
    assert mean["text"] == ["2", "2", "4"] and heads["text"] == ["1 to 3", "2 to 2", "4 to 4"]
    assert mean["y"][0] == mean["y"][1] > mean["y"][2]
    assert "http" not in chart


def test_charts_of_curves_are_the_curves_on_axes_of_one_height():
    down, up = torch.tensor([1.0, 0.5, 0.0]), torch.tensor([0.0, 0.1, 0.2])
    charts = curve_charts({"relevance": down, "random": down}, {"relevance": up, "random": up})
    first, second = (json.loads(re.search(r"<script[^>]*>(.*?)</script>", chart).group(1)) for chart in charts)
    assert [line["text"] for line in second["series"]] == [["0.0\u202f%", "10.0\u202f%", "20.0\u202f%"]] * 2
    assert first["series"][0]["y"][2] == second["series"][0]["y"][0]  # nothing, at the floor of both
    assert second["series"][0]["y"][2] > first["series"][0]["y"][0] + 100  # a fifth is no full height
    assert "--hue:var(--relevance)" in charts[0] and charts[0].count('class="line plain"') == 2  # with its sample


@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
def test_encoded_pictures_can_be_read_back(kind):
    picture = overlay(GREY, torch.rand(3, 3), (16, 16))
    read = np.asarray(Image.open(io.BytesIO(encoded(picture, kind))).convert("RGB"))
    assert np.abs(read.astype(int) - picture).mean() < (0.01 if kind == "PNG" else 6)
