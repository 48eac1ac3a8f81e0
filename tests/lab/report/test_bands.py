from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from synthetic_runs import LENGTH, PROBES, STEPS, write_run

from evenflow.lab.report import bands
from evenflow.lab.report.run_record import read_runs

SAME = 1e-5  # float32 logarithms


def with_arrays(folder: Path, **changed: np.ndarray | None) -> Path:
    """A run whose probes hold these arrays in place of its own; None takes one out."""
    arrays: dict[str, Any] = dict(np.load(write_run(folder) / "probes.npz")) | changed
    np.savez(folder / "probes.npz", **{name: array for name, array in arrays.items() if array is not None})
    return folder


def read_out(panel: bands.Panel) -> dict[str, np.ndarray]:
    """The values behind the lines of a panel."""
    assert panel.hover is not None
    logs = {s["name"]: np.frombuffer(base64.b64decode(s["y"]), "<f4") for s in panel.hover["series"]}
    return {name: 10.0 ** values.astype(float) for name, values in logs.items()}


def test_the_band_is_drawn_around_what_was_measured(tmp_path: Path) -> None:
    runs = read_runs([write_run(tmp_path / "a", decay=0.97)])
    for panel, lag in ((bands.band_panels(runs)[0][1], LENGTH - 1), (bands.band_panels(runs)[1][1], np.arange(LENGTH))):
        assert panel.svg is not None
        assert "stroke-dasharray" in panel.svg
        found = read_out(panel)
        expected = {"at most": 0.99, "measured": 0.99 * 0.97, "at least": 0.95}
        for name, rate in expected.items():
            np.testing.assert_allclose(found[name], 8 * rate**lag * np.ones(len(found[name])), rtol=SAME)
        assert (found["at least"] <= found["measured"] * (1 + SAME)).all()
        assert (found["measured"] <= found["at most"] * (1 + SAME)).all()


def test_a_band_far_away_leaves_the_plot_to_the_measured_line(tmp_path: Path) -> None:
    wide = np.tile([0.0, 2.0], (PROBES, 1))
    (_, panel), *_ = bands.band_panels(read_runs([with_arrays(tmp_path / "a", band=wide)]))
    assert panel.notes == ["The lower bound is zero.", "The upper bound lies above the plot, at 6.43 × 10⁶⁰."]
    assert panel.hover is not None
    low, high = panel.hover["y"]
    assert high / low < 10


def test_powers_beyond_all_floats_are_drawn(tmp_path: Path) -> None:
    runs = read_runs([with_arrays(tmp_path / "a", band=np.tile([1e-9, 1e9], (PROBES, 1)))])
    (_, panel), *_ = bands.band_panels(runs)
    assert "at over 10³⁰⁰" in panel.notes[-1]
    assert bands.band_panels(runs)[1][1].svg is not None


def test_a_cell_without_a_band_is_measured_all_the_same(tmp_path: Path) -> None:
    (_, panel), *_ = bands.band_panels(read_runs([with_arrays(tmp_path / "a", band=None)]))
    assert panel.notes == ["No theorem here gives a band for this cell."]
    assert read_out(panel).keys() == {"measured"}
    assert f"at update {STEPS:,}" in panel.alt


def test_lags_that_no_sequence_has_are_left_out(tmp_path: Path) -> None:
    norms = np.full((PROBES, LENGTH), 8.0)
    norms[:, 50:] = np.nan
    runs = read_runs([with_arrays(tmp_path / "a", jacobian_norm=norms)])
    assert "49 steps back" in bands.band_panels(runs)[0][1].alt
    assert "at lag 49" in bands.band_panels(runs)[1][1].alt


@pytest.mark.parametrize(
    ("norms", "note"),
    [
        pytest.param(None, "No Jacobians were recorded.", id="none"),
        pytest.param(np.zeros((PROBES, LENGTH)), "No Jacobian is a finite number above zero.", id="zero"),
        pytest.param(np.full((PROBES, LENGTH), np.inf), "No Jacobian is a finite number above zero.", id="infinite"),
        pytest.param(np.full((PROBES, LENGTH), np.nan), "No Jacobian is a finite number above zero.", id="nan"),
    ],
)
def test_nothing_to_draw_is_said(tmp_path: Path, norms: np.ndarray | None, note: str) -> None:
    runs = read_runs([with_arrays(tmp_path / "a", jacobian_norm=norms)])
    for _, panel in bands.band_panels(runs):
        assert panel.svg is None
        assert panel.notes[0] == note


def test_single_zeros_leave_a_hole_and_a_sentence(tmp_path: Path) -> None:
    norms = np.full((PROBES, LENGTH), 8.0)
    norms[3] = 0
    (_, panel), *_ = bands.band_panels(read_runs([with_arrays(tmp_path / "a", jacobian_norm=norms, band=None)]))
    assert panel.svg is not None
    assert panel.notes[-1] == "Where the line is missing the norm is zero or not finite."
