"""Where Triton's kernels cannot run, products of matrices do, and it is said once."""

from __future__ import annotations

import warnings
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from evenflow.maps import make
from evenflow.maps.blocks import Blocks
from evenflow.runtime import triton_kernels

NAME = "evenflow.maps.map"  # any module


class OnCuda:
    """As much of a tensor on a GPU as is looked at."""

    is_cuda, device = True, torch.device("cuda", 0)


@pytest.fixture(autouse=True)
def untried(monkeypatch: pytest.MonkeyPatch) -> None:
    triton_kernels._triton_works.cache_clear()
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.delenv("EVENFLOW_NATIVE", raising=False)


def found(like: Any) -> bool:
    return triton_kernels.triton_module(NAME, like) is not None


def test_not_on_a_cpu() -> None:
    assert not found(torch.zeros(1))


def test_where_triton_cannot_make_them_it_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_kernels, "find_spec", lambda name: SimpleNamespace())

    def fails(name: str) -> Any:
        raise RuntimeError("Failed to find C compiler.\nMore.")

    monkeypatch.setattr(triton_kernels, "import_module", fails)
    with pytest.warns(RuntimeWarning, match="could not make: Failed to find C compiler.$"):
        assert not found(OnCuda())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not found(OnCuda())


def test_where_they_work_they_are_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[torch.device] = []
    monkeypatch.setattr(triton_kernels, "find_spec", lambda name: SimpleNamespace())
    monkeypatch.setattr(triton_kernels, "import_module", lambda name: SimpleNamespace(run=tried.append))
    assert found(OnCuda())
    assert found(OnCuda())
    assert len(tried) == 1
    monkeypatch.setenv("EVENFLOW_NATIVE", "0")
    assert not found(OnCuda())


def test_not_tried_while_a_graph_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_kernels, "find_spec", lambda name: SimpleNamespace())
    monkeypatch.setattr(triton_kernels, "import_module", lambda name: SimpleNamespace(run=lambda device: None))
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert not found(OnCuda())
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    assert found(OnCuda())


def test_a_map_of_maps_speaks_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    outer = Blocks(make("exponential", 4), 3, (2,))
    assert not outer.needs_recapture()
    assert outer.captured_range == (None,)
    monkeypatch.setattr(type(outer.map), "needs_recapture", lambda self, *raw: True)
    monkeypatch.setattr(type(outer.map), "captured_range", 12.8)
    assert outer.needs_recapture()
    assert outer.captured_range == (12.8,)
