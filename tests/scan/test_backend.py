"""Which way a recurrence is run, and what is said where a fast one is missing."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounter

from evenflow import LSTM, RNN, create
from evenflow.activations import make
from evenflow.cells import Elman
from evenflow.scan import backend, cpu, torch_operations
from evenflow.scan.compiled_step import CompiledStep, compiled_step
from evenflow.systems import SYSTEMS


class OnGpu:
    """A tensor as far as the choice looks at it."""

    is_cuda, dtype, device = True, torch.float32, torch.device("cuda", 0)

    def numel(self) -> int:
        return 4


def elman() -> CompiledStep:
    text = Elman().program(3, [3], {"weight_hh": torch.zeros(3, 3)})
    assert isinstance(text, str)
    return compiled_step(text)


def choose(engine: str, weight: Any) -> Any:
    return backend.choose(elman(), engine, weight, [weight])


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    backend._warn_once.cache_clear()
    monkeypatch.delenv("EVENFLOW_NATIVE", raising=False)


def test_a_cpu_takes_compiled_code(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = torch.zeros(2, 2)
    assert choose("auto", weight) is (cpu if cpu.accepts(weight) else torch_operations)
    assert choose("linearized", weight) is choose("auto", weight)
    assert choose("torch", weight) is torch_operations
    assert choose("auto", weight.bfloat16()) is torch_operations
    monkeypatch.setenv("EVENFLOW_NATIVE", "0")
    assert choose("auto", weight) is torch_operations


def test_a_gpu_takes_its_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "unsupported", lambda *_: None)
    assert choose("auto", OnGpu()) is backend.gpu
    assert choose("linearized", OnGpu()) is backend.gpu
    assert choose("torch", OnGpu()) is torch_operations
    monkeypatch.setenv("EVENFLOW_NATIVE", "0")
    assert choose("auto", OnGpu()) is torch_operations


def test_a_gpu_without_them_says_why_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for why in ("no NVRTC", "too many units"):
        monkeypatch.setattr(backend, "unsupported", lambda *_, why=why: why)
        with pytest.warns(RuntimeWarning, match=f"step by step.*: {why}$"):
            assert choose("auto", OnGpu()) is torch_operations
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert choose("auto", OnGpu()) is torch_operations


def test_whoever_does_without_compiled_code_gets_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for value in ("1", "0"):
        monkeypatch.setenv("EVENFLOW_NATIVE", value)
        layer = LSTM(2, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        x = torch.randn(7, 3, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        output, _ = layer(x)
        output.sin().sum().backward()
        found.append([output.detach(), *(p.grad for p in layer.parameters())])
    torch.testing.assert_close(*found, rtol=1e-12, atol=1e-12)


def forward_mode(layer: RNN) -> None:
    torch.func.jvp(lambda x: layer(x)[0], (torch.zeros(3, 2, 2),), (torch.ones(3, 2, 2),))


def summed(a: Tensor) -> Tensor:
    """An operation that is not known."""
    return a.cumsum(-1)


class InTheLoop(Elman):
    """A step that cannot be translated."""

    def step(self, a: Tensor, h: Tensor, U: Tensor, p: Tensor | None = None) -> Tensor:
        return summed(super().step(a, h, U, p))


def with_another_cell(layer: RNN) -> None:
    layer.cell.__class__ = InTheLoop
    layer(torch.zeros(3, 2, 2))


def with_another_activation(layer: RNN) -> None:
    layer.cell.activation = lambda a, p: summed(a)
    layer(torch.zeros(3, 2, 2))


@pytest.mark.parametrize(
    ("name", "run", "why"),
    [
        ("rnn", forward_mode, "none for torch.func and forward mode"),
        ("rnn", with_another_cell, r"of InTheLoop, the operation cumsum \(line \d+ of .*\) cannot be translated; .*"),
        ("rnn", with_another_activation, r"of Elman, the operation cumsum \(line \d+ of .*\) cannot be translated; .*"),
    ],
)
def test_the_plain_loop_is_said_once(name: str, run: Callable[[Any], None], why: str) -> None:
    with pytest.warns(RuntimeWarning, match=f"plain loop.*: .*{why}$"):
        run(create(name, 2, 4))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(create(name, 2, 4))


def tapped(layer: RNN) -> None:
    with layer.taps():
        layer(torch.zeros(3, 2, 2))


class Doubled(Elman):
    """Another equation."""

    def step(self, a: Tensor, h: Tensor, U: Tensor, p: Tensor | None = None) -> Tensor:
        return 2 * super().step(a, h, U, p)


def with_another_equation(layer: RNN) -> None:
    layer.cell.__class__ = Doubled
    layer(torch.zeros(3, 2, 2))


def in_half_precision(layer: RNN) -> None:
    layer.bfloat16()(torch.zeros(3, 2, 2, dtype=torch.bfloat16))


@pytest.mark.parametrize(
    ("name", "run"), [("scrn", tapped), ("rnn", with_another_equation), ("full-urnn", in_half_precision)]
)
def test_what_ran_in_the_loop_once_is_fused(name: str, run: Callable[[Any], None], operators: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert "evenflow::recurrence" in operators(lambda: run(create(name, 2, 4)))


def test_a_cell_that_is_changed_runs_as_it_is_now() -> None:
    """Its program is kept, and is one of the step as it was."""
    layer, x = RNN(2, 4), torch.randn(3, 2, 2)
    layer(x)
    layer.cell.activation = make("relu")
    wanted = RNN(2, 4, activation="relu")
    wanted.load_state_dict(layer.state_dict())
    assert torch.equal(layer(x)[0], wanted(x)[0])
    layer.cell.__class__ = Doubled
    assert not torch.equal(layer(x)[0], wanted(x)[0])
    layer.engine = "auto"
    fused, _ = layer(x)
    layer.engine = "reference"
    torch.testing.assert_close(fused, layer(x)[0])


@pytest.mark.parametrize("name", SYSTEMS)
def test_no_system_says_anything_of_its_own(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        create(name, 2, 4)(torch.zeros(3, 2, 2, requires_grad=True))[0].sum().backward()
        create(name, 2, 4, engine="reference")(torch.zeros(3, 2, 2))


def test_what_is_said_compiles_nothing_anew() -> None:
    layer, compiler = create("rnn", 2, 4), CompileCounter()
    layer.cell.__class__ = InTheLoop
    compiled = torch.compile(layer, backend=compiler)
    for why in ("one reason", "another"):
        compiled(torch.zeros(3, 2, 2))
        with pytest.warns(RuntimeWarning):
            backend.warn_slow("slowly", why)
    compiled(torch.zeros(3, 2, 2))
    assert compiler.frame_count == 1


@pytest.mark.parametrize("weight", [torch.zeros(2, 2, device="meta"), torch.zeros(0, 0)], ids=["meta", "empty"])
def test_nothing_is_said_of_what_does_not_run(weight: torch.Tensor) -> None:
    other = SimpleNamespace(is_cuda=False, device=torch.device("mps", 0), dtype=torch.float32, numel=weight.numel)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert choose("auto", weight if weight.is_meta else other) is torch_operations


def test_a_gpu_of_another_make_says_why() -> None:
    other = OnGpu()
    other.is_cuda, other.device = False, torch.device("mps", 0)
    with pytest.warns(RuntimeWarning, match="step by step.*: there are none for mps$"):
        assert choose("auto", other) is torch_operations
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert choose("auto", other) is torch_operations
