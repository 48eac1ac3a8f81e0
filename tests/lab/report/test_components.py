from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

from evenflow.lab.report.components import (
    RADII,
    ComponentNorms,
    component_norms,
    component_panel,
    scaled_model,
    write_components,
)
from evenflow.lab.tasks import TemporalOrder
from evenflow.probes import spectrum, temporal_components

TASK = TemporalOrder(length=30)
SAME = 1e-5  # float32


@pytest.fixture(scope="module")
def found() -> ComponentNorms:
    return component_norms(TASK, hidden_size=20, sequences=20)


def test_a_smaller_radius_lets_the_gradient_vanish_sooner(found: ComponentNorms) -> None:
    assert found.radii == RADII
    assert found.norms.shape == (len(RADII), 30)
    left = found.norms[:, 0] / found.norms[:, -2]  # the last step has the readout in it too
    assert (np.diff(left) > 0).all()
    assert left[0] < 1e-2 < left[-1]


@pytest.mark.parametrize("radius", RADII)
def test_the_norms_are_those_of_a_model_of_that_radius(found: ComponentNorms, radius: float) -> None:
    model = scaled_model(TASK, radius, hidden_size=20)
    assert spectrum(model)[0].radius == pytest.approx(radius, rel=SAME)
    batch = TASK.batch(20, torch.Generator().manual_seed(0))
    components = temporal_components(model, *batch[:2], TASK.loss)
    np.testing.assert_allclose(found.norms[RADII.index(radius)], components.norms.detach().numpy(), rtol=SAME)
    # They add up to the gradient.
    total = components.combine(torch.ones(30))
    for part, gradient in zip(total, components.gradient, strict=True):
        np.testing.assert_allclose(part.numpy(), gradient.numpy(), atol=SAME)


def test_the_figure_has_a_line_for_each_radius(found: ComponentNorms) -> None:
    panel = component_panel(found)
    assert panel.svg is not None
    assert {f"radius {radius:g}" for radius in RADII} <= set(re.findall(r">([^<>]*)</text>", panel.svg))
    assert panel.hover is not None
    assert [s["name"] for s in panel.hover["series"]] == [f"radius {radius:g}" for radius in RADII]


def test_the_file_stands_alone_and_follows_the_scheme(found: ComponentNorms, tmp_path: Path) -> None:
    out = write_components(found, tmp_path / "components.svg")
    text = out.read_text()
    root = ElementTree.fromstring(text)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert "prefers-color-scheme: dark" in text
    assert set(re.findall(r"var\((--[\w-]+)\)", text)) <= set(re.findall(r"(--[\w-]+):", text))
    assert 'href="http' not in text


def test_bad_input_is_refused_in_one_sentence(found: ComponentNorms, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^radii must be numbers above 0, at least one, got \(\)$"):
        component_norms(TASK, ())
    with pytest.raises(ValueError, match=r"^radii must be numbers above 0, at least one, got \(1.0, -1\)$"):
        component_norms(TASK, (1.0, -1))
    with pytest.raises(ValueError, match=r"^out must end in .svg, got '.*png'$"):
        write_components(found, tmp_path / "components.png")
    (tmp_path / "a file").touch()
    with pytest.raises(ValueError, match=r"^out must be a file that can be written, got '.*' \(.*\)$"):
        write_components(found, tmp_path / "a file" / "components.svg")
    empty = ComponentNorms("adding", (1.0,), np.zeros((1, 5)))
    assert component_panel(empty).svg is None
    with pytest.raises(ValueError, match=r"^components must hold a norm that is a finite number above zero, got none$"):
        write_components(empty, tmp_path / "components.svg")
