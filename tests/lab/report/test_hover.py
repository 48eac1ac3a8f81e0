from __future__ import annotations

import base64

import numpy as np
import pytest

from evenflow.lab.report import hover
from evenflow.lab.report.svg import drawing, inline

NEAR = 0.5  # SVG units between a tick label's middle and where the read-out believes the tick is


def test_the_plane_is_where_the_axes_are_drawn() -> None:
    with drawing(480, 300) as figure:
        axes = figure.add_subplot()
        axes.plot([0, 10], [1, 3])
        axes.set_xlim(0, 10)
        axes.set_ylim(1, 3)
        axes.set_xticks([5], ["half"])
        svg = inline(figure, "a", "a line")
        plane = hover.lines(axes, "update", [])
    left, top, right, bottom = plane["box"]
    at = float(svg[: svg.index(">half<")].rpartition(' x="')[2].partition('"')[0])
    assert at == pytest.approx((left + right) / 2, abs=NEAR)
    assert 0 <= left < right <= 480
    assert 0 <= top < bottom <= 300
    assert (plane["x"], plane["y"], plane["log"]) == ([0, 10], [1, 3], False)


def test_values_of_a_log_axis_are_kept_however_small() -> None:
    x, y = np.array([1, 2, 3]), np.array([1e-60, 0.5, 0.0])
    with drawing() as figure:
        axes = figure.add_subplot()
        axes.set_yscale("log")
        axes.plot(x, y)
        inline(figure, "a", "a line")
        (line,) = hover.lines(axes, "step", [hover.HoverSeries("a", "", x, y)])["series"]
    logs = np.frombuffer(base64.b64decode(line["y"]), "<f4")
    assert logs[:2] == pytest.approx(np.log10(y[:2]))
    assert np.isneginf(logs[2])
    assert np.frombuffer(base64.b64decode(line["x"]), "<u4").tolist() == [1, 2, 3]
