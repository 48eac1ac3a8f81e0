"""Which way a recurrence is run, and what is said where a fast one is missing."""

from __future__ import annotations

import warnings
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from evenflow.scan import choice, native


class OnGpu:
    """A tensor as far as the choice looks at it."""

    is_cuda, dtype, device = True, torch.float32, torch.device("cuda", 0)

    def numel(self) -> int:
        return 4


COMPILED, PLAIN = SimpleNamespace(), SimpleNamespace()


def choose(engine: str, weight: Any, gpu: Any) -> Any:
    return choice.choose(engine, weight, (weight,), cast(Any, COMPILED), gpu, cast(Any, PLAIN))


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "_said", set())
    monkeypatch.delenv("EVENFLOW_NATIVE", raising=False)


def kernels(why: str | None) -> Any:
    return SimpleNamespace(missing=lambda *_: why)


def test_a_cpu_takes_compiled_code(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = torch.zeros(2, 2)
    assert choose("auto", weight, kernels("never asked")) is (COMPILED if native.runs(weight) else PLAIN)
    assert choose("torch", weight, kernels("never asked")) is PLAIN
    monkeypatch.setenv("EVENFLOW_NATIVE", "0")
    assert choose("auto", weight, kernels("never asked")) is PLAIN


def test_a_gpu_takes_its_kernels() -> None:
    gpu = kernels(None)
    assert choose("auto", OnGpu(), gpu) is gpu
    assert choose("torch", OnGpu(), gpu) is PLAIN


def test_a_gpu_without_them_says_why_once() -> None:
    for why in ("no NVRTC", "too many units"):
        with pytest.warns(RuntimeWarning, match=f"step by step.*: {why}$"):
            assert choose("auto", OnGpu(), kernels(why)) is PLAIN
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert choose("auto", OnGpu(), kernels(why)) is PLAIN
