"""Charts: places are those of the values, and what can be read is what is drawn."""

import json
import math
import re

import numpy as np
import pytest

from vitrail.report.axes import Axes, Scale, factor_ticks, whole_ticks
from vitrail.report.charts import MOST_POINTS, Series, line_chart, reliability_chart, residual_chart, scatter_chart
from vitrail.tasks.classify import metrics


def data_of(chart):
    return json.loads(re.search(r"<script[^>]*>(.*?)</script>", chart).group(1))


def test_a_scale_puts_values_on_pixels_and_what_lies_beyond_on_the_edge():
    scale = Scale(0, 10, 100, 200)
    assert [scale(value) for value in (0, 5, 10, -3, 12)] == [100, 150, 200, 100, 200]
    up = Scale(1, 100, 200, 0, math.log10)
    assert [up(value) for value in (1, 10, 100, 0)] == [200, 100, 0, 200]
    assert Scale(3, 3, 0, 50)(3) == 25  # a single value is in the middle


def test_words_on_axes_can_hold_no_markup():
    axes = Axes.within((200, 100), (0, 1), (0, 1))
    axes.text("tick", "<b>a & b</b>", 0, 0)
    assert ">&lt;b&gt;a &amp; b&lt;/b&gt;</text>" in axes.marks[0]


def test_ticks_of_factors_and_of_whole_numbers():
    assert factor_ticks(0.8, 30) == [1, 2, 5, 10, 20]
    assert factor_ticks(0.5, 5000) == [1, 10, 100, 1000]
    assert whole_ticks(1, 12, 5) == [1, 5, 10]
    assert whole_ticks(1, 1, 5) == [1]


def test_on_a_scale_of_factors_equal_factors_are_equal_heights_and_nothing_is_a_gap():
    chart = line_chart("Size", [1, 2, 3, 4], [Series("", [1.0, 10.0, 0.0, 100.0])], x_name="block", factors=True)
    heights = data_of(chart)["series"][0]["y"]
    assert heights[0] - heights[1] == pytest.approx(heights[1] - heights[3], abs=0.2) and heights[2] is None
    assert line_chart("Size", [1], [Series("", [-1.0])], factors=True) == ""
    level = data_of(line_chart("Size", [1, 2], [Series("", [1.0, 1.1])], factors=True))["series"][0]["y"]
    assert abs(level[0] - level[1]) < 10  # of 196: a level line looks level


def test_a_line_chart_can_have_room_for_values_that_it_does_not_draw():
    free, wide = (data_of(line_chart("A", [1, 2], [Series("a", [0.4, 0.5])], covering=c)) for c in ((), (0, 1)))
    assert free["series"][0]["y"] != wide["series"][0]["y"]
    assert wide["series"][0]["y"][1] == 108  # half-way between 10 and 206


def test_every_filled_bin_of_a_reliability_chart_has_its_bar_and_interval():
    chances = np.array([[0.95, 0.05]] * 8 + [[0.55, 0.45]] * 4)
    chart = reliability_chart(metrics.reliability(chances, np.array([0] * 6 + [1] * 2 + [0, 1, 0, 1])))
    assert chart.count('class="bar"') == chart.count('class="whisker"') == chart.count('class="count"') == 2
    claimed, right, count = (line["text"] for line in data_of(chart)["series"])
    assert (claimed, right) == (["55.0\u202f%", "95.0\u202f%"], ["50.0\u202f%", "75.0\u202f%"]) and count == ["4", "8"]
    whiskers = [sorted(map(float, pair)) for pair in re.findall(r'class="whisker"[^>]*y1="(.+?)" y2="(.+?)"', chart)]
    bars = [float(y) for y in re.findall(r'class="bar"[^>]* y="(.+?)"', chart)]
    assert all(top < bar < bottom for (top, bottom), bar in zip(whiskers, bars, strict=True))


def test_a_scatter_chart_has_a_dot_for_every_pair_that_is_known_and_reads_them_from_left_to_right():
    chart = scatter_chart("Age", [30, 10, 20, math.nan], [31, 12, 18, 5], "true", "predicted", diagonal=True)
    data = data_of(chart)
    assert data["labels"] == ["true 10", "true 20", "true 30"] and data["scattered"]
    assert data["series"][0]["text"] == ["12", "18", "31"] and data["x"] == sorted(data["x"])
    assert re.search(r'class="points" d="([^"]*)"', chart).group(1).count("M") == 3
    assert "3 points; true from 10 to 30, predicted from 12 to 31." in chart
    line = re.search(r'class="diagonal" x1="(.+?)" x2="(.+?)" y1="(.+?)" y2="(.+?)"', chart).groups()
    assert [float(end) for end in line] == [52, 448, 254, 10]  # from corner to corner: both axes are the same
    assert scatter_chart("Age", [math.nan], [1], "true", "predicted") == ""


def test_a_scatter_chart_of_many_points_draws_some_and_says_so():
    chart = scatter_chart("Many", np.arange(5000), np.arange(5000), "x", "y")
    assert len(data_of(chart)["x"]) == MOST_POINTS and f"{MOST_POINTS:,} of 5,000 are drawn." in chart


def test_residuals_are_how_far_predictions_lie_above_the_truth():
    chart = residual_chart("Residuals", [1.0, 2.0, 4.0], [1.5, 1.0, 4.0])
    assert data_of(chart)["series"][0]["text"] == ["0.5", "-1", "0"]
    level = re.search(r'class="diagonal"[^>]*y1="(.+?)" y2="(.+?)"', chart).groups()
    assert level[0] == level[1] == f"{data_of(chart)['series'][0]['y'][2]:.1f}"
