from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from synthetic_runs import LENGTH, PROBES, write_probes, write_run

from evenflow.lab.report import heatmap
from evenflow.lab.report.profiles import profiles
from evenflow.lab.report.run_record import read_runs

STEP = np.arange(3) * 100


def run_with(tmp_path: Path, norm: np.ndarray, name: str = "a") -> Path:
    folder = write_run(tmp_path / name)
    write_probes(folder, STEP[: len(norm)], norm)
    return folder


def test_one_scale_for_all_runs(four: list[Path]) -> None:
    runs = read_runs(four)
    scale = heatmap.shared_scale(runs)
    assert scale is not None
    # The plain RNN dies to 1e-27: the scale ends 8 decades under the usual last-step gradient and says there is more.
    assert scale.high - scale.low == pytest.approx(9, abs=1)
    assert scale.beyond == "min"
    bars = [panel.svg.count("10⁻⁷") for panel in heatmap.heat_maps(runs) if panel.svg]
    assert bars == [1, 1, 1, 1]


def test_an_exploding_run_leaves_colours_for_the_others(tmp_path: Path) -> None:
    grows = 1.5 ** np.arange(LENGTH)[::-1][None].repeat(3, 0)
    runs = read_runs([run_with(tmp_path, grows, "a"), run_with(tmp_path, np.full((3, LENGTH), 0.3), "b")])
    scale = heatmap.shared_scale(runs)
    assert scale is not None
    assert scale.high <= heatmap.ABOVE + 1
    assert scale.beyond == "max"


def test_the_map_says_how_far_the_gradient_reaches(four: list[Path]) -> None:
    panels = heatmap.heat_maps(read_runs(four))
    assert f"{PROBES} probes by {LENGTH} time steps" in panels[0].alt
    assert "before falling under a thousandth" in panels[0].alt
    assert "reaches back all 199 steps" in panels[3].alt
    white = [panel.svg is not None and "stroke: #ffffff" in panel.svg for panel in panels]
    assert white == [True, True, False, False]


@pytest.mark.parametrize(
    ("norm", "note"),
    [
        pytest.param(np.zeros((3, 5)), "No gradient is a finite number above zero", id="all zero"),
        pytest.param(np.full((3, 5), np.nan), "No gradient is a finite number above zero", id="all nan"),
    ],
)
def test_nothing_to_draw_is_said(tmp_path: Path, norm: np.ndarray, note: str) -> None:
    runs = read_runs([run_with(tmp_path, norm)])
    (panel,) = heatmap.heat_maps(runs)
    assert panel.svg is None
    assert note in " ".join(panel.notes)
    assert all(p.svg is None and p.notes for p in profiles(runs))


@pytest.mark.parametrize(
    ("norm", "note"),
    [
        pytest.param(np.array([[0.0, 0, 0, 1, 1]] * 3), "60 % of the gradients are exactly zero", id="zeros"),
        pytest.param(np.array([[1.0] * 5, [1.0] * 5, [np.nan] * 5]), "33 % of the gradients are not finite", id="nan"),
        pytest.param(np.array([[np.inf, 1, 1, 1]] * 3), "25 % of the gradients are not finite", id="inf"),
        pytest.param(np.ones((1, 5)), "", id="one probe"),
        pytest.param(np.ones((3, 1)), "", id="one time step"),
        pytest.param(np.ones((3, 5)), "", id="all equal"),
        pytest.param(np.full((3, 5), 1e-320), "", id="denormal"),
        pytest.param(np.exp(np.random.default_rng(0).standard_normal((3, 5000))), "", id="more steps than pixels"),
    ],
)
def test_odd_probes_are_drawn(tmp_path: Path, norm: np.ndarray, note: str) -> None:
    runs = read_runs([run_with(tmp_path, norm)])
    (panel,) = heatmap.heat_maps(runs)
    assert panel.svg is not None
    assert note in " ".join(panel.notes)
    assert profiles(runs)[0].svg is not None


def test_the_mesh_is_an_image_and_small(tmp_path: Path) -> None:
    noise = np.exp(np.random.default_rng(0).standard_normal((3, 5000)))
    (panel,) = heatmap.heat_maps(read_runs([run_with(tmp_path, noise)]))
    assert panel.svg is not None
    assert "data:image/png;base64" in panel.svg
    assert len(panel.svg) < 300_000


def test_a_run_without_probes_keeps_its_place(tmp_path: Path) -> None:
    bare = write_run(tmp_path / "bare", "rnn")
    (bare / "probes.npz").unlink()
    runs = read_runs([bare, write_run(tmp_path / "b", "urnn")])
    first, second = heatmap.heat_maps(runs)
    assert first.svg is None
    assert first.notes == ["No gradient probes were recorded in this run."]
    assert second.svg is not None
    assert profiles(runs)[0].notes == ["rnn has no probes."]
