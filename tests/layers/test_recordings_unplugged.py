"""The recorders with CUDA's part left out: what is done around a graph runs on a CPU too, once, and is not replayed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from evenflow import init
from evenflow.lab.training import captured
from evenflow.layers import recording, replayed
from evenflow.layers.named import LSTM, RNN
from evenflow.maps import MAPS
from evenflow.optim import GeodesicAdam, GeodesicSGD
from evenflow.optim.recorded_step import RecordedStep
from evenflow.runtime import recorded


class Graph:
    """Replays nothing: what was computed when it was made stays."""

    replays = 0

    def replay(self) -> None:
        self.replays += 1

    def pool(self) -> None:
        return None


@pytest.fixture(autouse=True)
def unplugged(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = SimpleNamespace(wait_stream=lambda other: None)
    parts: dict[str, Callable[..., Any]] = {
        "CUDAGraph": Graph,
        "graph": lambda *given, **options: nullcontext(),
        "stream": lambda stream: nullcontext(),
        "device": lambda device: nullcontext(),
        "Stream": lambda *given: stream,
        "current_stream": lambda *given: stream,
        "is_current_stream_capturing": lambda: False,
        "synchronize": lambda: None,
    }
    for name, part in parts.items():
        monkeypatch.setattr(torch.cuda, name, part)


@pytest.mark.parametrize("grad", [True, False], ids=["training", "no_grad"])
@pytest.mark.parametrize("inference", [False, True], ids=["", "inference"])
def test_a_layers_recording(grad: bool, inference: bool) -> None:
    layer = RNN(2, 4, map="householder", initial_state="learned")
    x, h = torch.randn(5, 3, 2), torch.randn(1, 3, 4)
    with torch.inference_mode(inference), torch.set_grad_enabled(grad and not inference):
        made = recording.Recording(partial(replayed.passed, layer), (x, h), list(layer.parameters()))
    expected = layer(x, h)
    results, serial = made.run((x, h), recording._Ticket())
    for one, other in zip(results, expected, strict=True):
        torch.testing.assert_close(one, other)
    assert len(made._backward) == (2 if grad and not inference else 0)
    if made._backward:
        slopes = made.pull(serial, [torch.ones_like(results[0]), None])
        assert slopes is not None
        named = dict(zip([name for name, _ in layer.named_parameters()], slopes, strict=True))
        assert named["h0_l0"] is None, "it plays no part where a state is given"
        assert all(slope is not None for name, slope in named.items() if name != "h0_l0")
        assert made.pull(serial, [None, None]) is None


def test_a_layer_with_two_states() -> None:
    layer, x = LSTM(2, 4), torch.randn(5, 3, 2)
    made = recording.Recording(partial(replayed.passed, layer), (x,), list(layer.parameters()))
    results, serial = made.run((x,), recording._Ticket())
    assert [r.shape for r in results] == [(5, 3, 4), (1, 3, 4), (1, 3, 4)]
    assert made.pull(serial, [None, torch.ones(1, 3, 4), None]) is not None


@pytest.mark.parametrize("frozen", [False, True], ids=["", "frozen weights"])
def test_taps_are_neither_copied_in_nor_put_together(frozen: bool) -> None:
    layer, x = LSTM(2, 4, num_layers=2).requires_grad_(not frozen), torch.randn(5, 3, 2)
    taps = [torch.zeros(()).expand(replayed._states(layer, x)).requires_grad_() for _ in range(2)]
    assert [tap.shape for tap in taps] == [(5, 3, 4)] * 2
    run = partial(replayed.passed, layer, taps=2)
    made = recording.Recording(run, (x, *taps), list(layer.parameters()), taps=2)
    assert len(made._given) == 1
    weights = 0 if frozen else sum(p.numel() for p in layer.parameters())
    assert [flat.numel() for _, flat, _ in made._backward] == [weights] * 2
    results, serial = made.run((x, *taps), recording._Ticket())
    slopes = made.pull(serial, [torch.zeros_like(results[0]), None, None])
    assert slopes is not None
    assert len(slopes) == 2 + 6 * (not frozen)
    assert [slope.shape for slope in slopes[:2] if slope is not None] == [(5, 3, 4)] * 2


@pytest.mark.parametrize("inference", [False, True], ids=["", "inference"])
@pytest.mark.parametrize("name", MAPS)
def test_a_maps_recording(name: str, inference: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    map = MAPS[name](8)
    monkeypatch.setattr(torch, "zeros_like", partial(_unpinned, torch.zeros_like))
    raw = map.start()
    with torch.inference_mode(inference):
        made = recorded.Recording(map, raw)
    torch.testing.assert_close(made.value(raw), map(*raw))
    assert [slope.shape for slope in made.slope(torch.ones_like(made.W))] == [r.shape for r in raw]
    assert made.recorded_for == map.recorded_for
    assert not any(r.is_inference() for r in (*made.raw, made.W, made.G))


def test_many_gradients_of_a_map_side_by_side() -> None:
    map = MAPS["householder"](4)
    raw = [r.requires_grad_() for r in map.start(torch.Generator().manual_seed(0))]
    W, plain = recorded._Replayed.apply(map, recorded.Recording(map, tuple(raw)), *raw), map.compute(*raw)
    pulls = torch.randn(3, *W.shape, generator=torch.Generator().manual_seed(1))
    one, other = (torch.autograd.grad(each, raw, pulls, is_grads_batched=True) for each in (W, plain))
    torch.testing.assert_close(one, other)


def _unpinned(make: Callable[..., Tensor], like: Tensor, **options: Any) -> Tensor:
    return make(like, **{name: value for name, value in options.items() if name != "pin_memory"})


@pytest.mark.parametrize("method", [partial(GeodesicSGD, lr=0.1, momentum=0.9), partial(GeodesicAdam, lr=0.01)])
def test_a_steps_recording(method: Callable[..., Any]) -> None:
    p = torch.nn.Parameter(init.orthogonal(12, 3))
    optimizer = method([p])
    seen: list[Tensor] = []
    for _ in range(3):
        p.grad = torch.randn(12, 3)
        optimizer.step()
    states = [optimizer.state[p]]
    before = {name: value.clone() for name, value in states[0].items() if isinstance(value, Tensor)}

    def moved(grads: list[Tensor], states: list[dict[str, Any]], numbers: tuple[Any, ...]) -> Tensor:
        seen.append(numbers[0])
        for state in states:
            for value in state.values():
                if isinstance(value, Tensor):
                    value.add_(1)
        return grads[0] * numbers[0]

    grad = torch.randn(12, 3)
    made = RecordedStep(moved, [grad], states, (0.5,))
    for name, value in before.items():  # the recording itself, which runs here; not what was tried before it
        torch.testing.assert_close(states[0][name], value + 1)
    torch.testing.assert_close(made.move([grad], (0.5,)), grad * 0.5)
    made.move([grad], (0.25,))
    assert float(made.numbers[0]) == 0.25


def test_recorded_work() -> None:
    work = captured.Captured(lambda key, x: x * 2)
    before = recorded.Moves.count
    for _ in range(captured.CALLS_BEFORE + 2):
        torch.testing.assert_close(work((), torch.ones(3)), torch.full((3,), 2.0))
    assert recorded.Moves.count == before + 2
