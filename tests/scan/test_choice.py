"""Which way a recurrence is run, and what is said where a fast one is missing."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch._dynamo.testing import CompileCounter

from evenflow import RNN, create
from evenflow.activations import Identity
from evenflow.cells import Elman
from evenflow.scan import choice, native
from evenflow.systems import SYSTEMS


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


class OtherElman(Elman):
    """Another equation, for all that is known."""


def forward_mode(layer: RNN) -> None:
    torch.func.jvp(lambda x: layer(x)[0], (torch.zeros(3, 2, 2),), (torch.ones(3, 2, 2),))


def tapped(layer: RNN) -> None:
    with layer.taps():
        layer(torch.zeros(3, 2, 2))


def with_another_cell(layer: RNN) -> None:
    layer.cell.__class__ = OtherElman
    layer(torch.zeros(3, 2, 2))


class OtherIdentity(Identity):
    """Of one's own."""


def with_another_activation(layer: RNN) -> None:
    layer.cell.activation = OtherIdentity()
    layer(torch.zeros(3, 2, 2))


def in_half_precision(layer: RNN) -> None:
    layer.bfloat16()(torch.zeros(3, 2, 2, dtype=torch.bfloat16))


@pytest.mark.parametrize(
    ("name", "run", "why"),
    [
        ("rnn", forward_mode, "none for torch.func and forward mode"),
        ("scrn", tapped, "there is none of SCRN with taps"),
        ("rnn", with_another_cell, "there is none of the cell OtherElman"),
        ("rnn", with_another_activation, "there is none of the activation OtherIdentity"),
        ("full-urnn", in_half_precision, "complex_modrelu runs in no fused scan with weights of torch.bfloat16"),
    ],
)
def test_the_plain_loop_is_said_once(name: str, run: Callable[[Any], None], why: str) -> None:
    with pytest.warns(RuntimeWarning, match=f"plain loop.*: .*{why}$"):
        run(create(name, 2, 4))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(create(name, 2, 4))


@pytest.mark.parametrize("name", SYSTEMS)
def test_no_system_says_anything_of_its_own(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        create(name, 2, 4)(torch.zeros(3, 2, 2, requires_grad=True))[0].sum().backward()
        create(name, 2, 4, engine="reference")(torch.zeros(3, 2, 2))


def test_what_is_said_compiles_nothing_anew() -> None:
    layer, compiler = create("rnn", 2, 4), CompileCounter()
    layer.cell.__class__ = OtherElman
    compiled = torch.compile(layer, backend=compiler)
    for why in ("one reason", "another"):
        compiled(torch.zeros(3, 2, 2))
        with pytest.warns(RuntimeWarning):
            choice.say("slowly", why)
    compiled(torch.zeros(3, 2, 2))
    assert compiler.frame_count == 1


@pytest.mark.parametrize("weight", [torch.zeros(2, 2, device="meta"), torch.zeros(0, 0)], ids=["meta", "empty"])
def test_nothing_is_said_of_what_does_not_run(weight: torch.Tensor) -> None:
    gpu = SimpleNamespace(is_cuda=True, device=torch.device("cuda", 0), dtype=torch.float32, numel=weight.numel)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert choose("auto", weight if weight.is_meta else gpu, kernels("too small")) is PLAIN


def test_a_gpu_of_another_make_says_why() -> None:
    other = OnGpu()
    other.is_cuda, other.device = False, torch.device("mps", 0)
    with pytest.warns(RuntimeWarning, match="step by step.*: there are none for mps$"):
        assert choose("auto", other, kernels("never asked")) is PLAIN
