from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from synthetic_runs import PROBES, write_run

from evenflow.lab.report.run_record import read_runs
from evenflow.lab.report.singular import MOST, singular_values


def with_matrices(folder: Path, values: np.ndarray, names: list[str]) -> Path:
    """A run whose probes hold these singular values, (K, N, 4)."""
    arrays = dict(np.load(write_run(folder) / "probes.npz"))
    np.savez(folder / "probes.npz", **arrays | {"singular_values": values, "matrix": np.array(names)})
    return folder


def test_the_four_curves_are_named_with_their_ends(tmp_path: Path) -> None:
    ((index, panel),) = singular_values(read_runs([write_run(tmp_path / "a")]))
    assert (index, panel.title) == (0, "sgornn")
    assert "from 1 to 1 with mean 1 at update 0, from 0.7 to 1.5 with mean 1 at update 1,200." in panel.alt
    assert panel.hover is not None
    assert [line["name"] for line in panel.hover["series"]] == ["largest", "mean", "deviation", "smallest"]


def test_an_orthogonal_matrix_is_a_level_line_and_no_storm_of_rounding(tmp_path: Path) -> None:
    noise = 1 + 1e-7 * np.random.default_rng(0).standard_normal((PROBES, 1, 4))
    ((_, panel),) = singular_values(read_runs([with_matrices(tmp_path / "a", noise, ["weight_hh_l0"])]))
    assert panel.hover is not None
    low, high = panel.hover["y"]
    assert high - low == pytest.approx(0.02)


@pytest.mark.parametrize(
    ("values", "log"),
    [
        pytest.param([1.0, 0.2, 0.5, 2.0], False, id="near one"),
        pytest.param([1.0, 2.0, 1e-6, 9.0], True, id="over many decades"),
        pytest.param([1.0, 2.0, 0.0, 9.0], False, id="down to zero"),
    ],
)
def test_the_axis_fits_the_values(tmp_path: Path, values: list[float], log: bool) -> None:
    folder = with_matrices(tmp_path / "a", np.tile(values, (PROBES, 1, 1)), ["weight_hh_l0"])
    ((_, panel),) = singular_values(read_runs([folder]))
    assert panel.svg is not None
    assert panel.hover is not None
    assert panel.hover["log"] == log


def test_matrices_have_a_panel_each_up_to_a_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"weight_hh_l{i}" for i in range(MOST + 2)]
    folder = with_matrices(tmp_path / "a", np.ones((PROBES, len(names), 4)), names)
    panels = singular_values(read_runs([folder]))
    assert len(panels) == MOST
    assert panels[1][1].title == "sgornn, weight_hh_l1"
    assert panels[-1][1].notes == ["2 more matrices of this run: see probes.npz."]
    monkeypatch.setattr("evenflow.lab.report.singular.PAGE_MOST", 9)
    (run,) = read_runs([folder])
    assert len(singular_values([run] * 3)) == 9


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    bad = with_matrices(tmp_path / "a", np.full((PROBES, 1, 4), np.nan), ["weight_hh_l0"])
    other = with_matrices(tmp_path / "b", np.ones((PROBES, 2, 4)), ["one name for two"])
    panels = [panel for _, panel in singular_values(read_runs([bad, other]))]
    assert [panel.svg for panel in panels] == [None, None]
    assert panels[0].notes == ["No singular value is a finite number."]
    assert panels[1].notes == ["No singular values were recorded."]
