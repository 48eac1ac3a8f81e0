"""Captures with CUDA left out: the work around a graph runs on a CPU too, once, and a replay does nothing."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from evenflow import init
from evenflow.lab.training import captured_update
from evenflow.layers import layer_graphs
from evenflow.layers.named import LSTM, RNN
from evenflow.layers.recurrent import Recurrent
from evenflow.maps import MAPS
from evenflow.optim import GeodesicAdam, GeodesicSGD
from evenflow.optim.step_graphs import CapturedStep
from evenflow.runtime import cuda_graphs
from evenflow.runtime.captured_function import CapturedFunction, capturing, in_capturing
from evenflow.runtime.cuda_graphs import GraphCache


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
    monkeypatch.setattr(cuda_graphs, "_end_failed_capture", lambda: None)


class Pass:
    """What owns the memory of a capture."""


def capture(layer: Recurrent, inputs: Sequence[Tensor], taps: int = 0) -> CapturedFunction:
    weights = list(layer.parameters())
    run = partial(layer_graphs.run_with_weights, layer, len(inputs), taps)
    requires_grad = [v.requires_grad for v in (*inputs, *weights)]
    return CapturedFunction(run, inputs, weights, requires_grad=requires_grad, taps=taps)


@pytest.mark.parametrize("grad", [True, False], ids=["training", "no_grad"])
@pytest.mark.parametrize("inference", [False, True], ids=["", "inference"])
def test_a_captured_layer(grad: bool, inference: bool) -> None:
    layer = RNN(2, 4, map="householder", initial_state="learned")
    x, h = torch.randn(5, 3, 2), torch.randn(1, 3, 4)
    with torch.inference_mode(inference), torch.set_grad_enabled(grad and not inference):
        captured = capture(layer, (x, h))
    expected = layer(x, h)
    results, serial = captured.forward((x, h), Pass())
    for one, other in zip(results, expected, strict=True):
        torch.testing.assert_close(one, other)
    assert len(captured._backward) == (2 if grad and not inference else 0)
    if captured._backward:
        gradients = captured.backward(serial, [torch.ones_like(results[0]), None])
        assert gradients is not None
        assert gradients[:2] == [None, None], "no gradient by x and h is wanted"
        named = dict(zip([name for name, _ in layer.named_parameters()], gradients[2:], strict=True))
        assert named["h0_l0"] is None, "it plays no part where a state is given"
        assert all(gradient is not None for name, gradient in named.items() if name != "h0_l0")
        assert captured.backward(serial, [None, None]) is None


def test_a_layer_with_two_states() -> None:
    layer, x = LSTM(2, 4), torch.randn(5, 3, 2)
    captured = capture(layer, (x,))
    results, serial = captured.forward((x,), Pass())
    assert [r.shape for r in results] == [(5, 3, 4), (1, 3, 4), (1, 3, 4)]
    assert captured.backward(serial, [None, torch.ones(1, 3, 4), None]) is not None


def test_a_capture_is_available_when_no_pass_waits_for_its_backward_pass() -> None:
    layer, x, owner = RNN(2, 4), torch.randn(5, 3, 2), Pass()
    captured = capture(layer, (x,))
    results, serial = captured.forward((x,), owner)
    assert not captured.available
    captured.backward(serial, [torch.ones_like(results[0]), None])
    assert captured.available
    captured.forward((x,), owner)
    assert not captured.available
    del owner
    assert captured.available


@pytest.mark.parametrize("frozen", [False, True], ids=["", "frozen weights"])
def test_taps_are_neither_copied_in_nor_put_together(frozen: bool) -> None:
    layer, x = LSTM(2, 4, num_layers=2).requires_grad_(not frozen), torch.randn(5, 3, 2)
    taps = [torch.zeros(()).expand(layer_graphs._states_shape(layer, x)).requires_grad_() for _ in range(2)]
    assert [tap.shape for tap in taps] == [(5, 3, 4)] * 2
    captured = capture(layer, (x, *taps), taps=2)
    assert len(captured.inputs) == 1
    weights = 0 if frozen else sum(p.numel() for p in layer.parameters())
    assert [flat.numel() for _, flat, _ in captured._backward] == [weights] * 2
    results, serial = captured.forward((x, *taps), Pass())
    gradients = captured.backward(serial, [torch.zeros_like(results[0]), None, None])
    assert gradients is not None
    assert gradients[0] is None
    assert [gradient.shape for gradient in gradients[1:3] if gradient is not None] == [(5, 3, 4)] * 2
    assert sum(gradient is not None for gradient in gradients[3:]) == 6 * (not frozen)


@pytest.mark.parametrize("inference", [False, True], ids=["", "inference"])
@pytest.mark.parametrize("name", MAPS)
def test_a_captured_map(name: str, inference: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    map = MAPS[name](8)
    monkeypatch.setattr(torch, "zeros_like", partial(_unpinned, torch.zeros_like))
    raw = map.start()
    with torch.inference_mode(inference):
        captured = map._capture(raw)
    (W,), serial = captured.forward(raw, Pass())
    torch.testing.assert_close(W, map(*raw))
    gradients = captured.backward(serial, [torch.ones_like(W)])
    assert gradients is not None
    assert [gradient.shape for gradient in gradients if gradient is not None] == [r.shape for r in raw]
    assert not any(tensor.is_inference() for tensor in (*captured.inputs, *captured.outputs, *captured._grads))


def test_many_gradients_of_a_map_side_by_side() -> None:
    map = MAPS["householder"](4)
    raw = tuple(r.requires_grad_() for r in map.start(torch.Generator().manual_seed(0)))
    (W,), plain = map._capture(raw)(map._compute_tuple, raw), map.compute(*raw)
    pulls = torch.randn(3, *W.shape, generator=torch.Generator().manual_seed(1))
    one, other = (torch.autograd.grad(each, raw, pulls, is_grads_batched=True) for each in (W, plain))
    torch.testing.assert_close(one, other)


def test_second_derivatives_and_a_second_backward_pass_of_a_map() -> None:
    map = MAPS["householder"](4)
    raw = tuple(r.requires_grad_() for r in map.start(torch.Generator().manual_seed(0)))
    found = []
    for W in (map._capture(raw)(map._compute_tuple, raw)[0], map.compute(*raw)):
        torch.autograd.grad(W[0].sum(), raw, retain_graph=True)  # the replay, which computes nothing here
        again = torch.autograd.grad(W[0].sum(), raw, retain_graph=True)
        slopes = torch.autograd.grad(W[0].sum(), raw, create_graph=True)
        found.append((*again, *torch.autograd.grad(slopes[0].square().sum(), raw)))
    torch.testing.assert_close(*found)


def _unpinned(make: Callable[..., Tensor], like: Tensor, **options: Any) -> Tensor:
    return make(like, **{name: value for name, value in options.items() if name != "pin_memory"})


@pytest.mark.parametrize("method", [partial(GeodesicSGD, lr=0.1, momentum=0.9), partial(GeodesicAdam, lr=0.01)])
def test_a_captured_step(method: Callable[..., Any]) -> None:
    p = torch.nn.Parameter(init.orthogonal(12, 3))
    optimizer = method([p])
    seen: list[Tensor] = []
    for _ in range(3):
        p.grad = torch.randn(12, 3)
        optimizer.step()
    states = [optimizer.state[p]]
    before = {name: value.clone() for name, value in states[0].items() if isinstance(value, Tensor)}

    def move(grads: list[Tensor], states: list[dict[str, Any]], numbers: tuple[Any, ...]) -> Tensor:
        seen.append(numbers[0])
        for state in states:
            for value in state.values():
                if isinstance(value, Tensor):
                    value.add_(1)
        return grads[0] * numbers[0]

    grad = torch.randn(12, 3)
    captured = CapturedStep(move, [grad], states, (0.5,))
    for name, value in before.items():  # the capture itself, which runs here; not the warm-up before it
        torch.testing.assert_close(states[0][name], value + 1)
    torch.testing.assert_close(captured.replay([grad], (0.5,)), grad * 0.5)
    captured.replay([grad], (0.25,))
    assert float(captured.numbers[0]) == 0.25


def test_a_captured_update() -> None:
    model = torch.nn.Linear(1, 1)
    update = captured_update.CapturedUpdate(lambda key, x: x * 2, model)
    versions, before = [], model.weight._version
    for _ in range(captured_update.WARM_UP + 2):
        torch.testing.assert_close(update((), torch.ones(3)), torch.full((3,), 2.0))
        versions.append(model.weight._version - before)
    assert versions == [0] * captured_update.WARM_UP + [1, 2], "a replay changes weights without torch's knowledge"


def test_a_failed_capture_is_a_warning_and_runs_plainly() -> None:
    def fails() -> None:
        raise RuntimeError("operation not permitted when stream is capturing\nMore.")

    cache: GraphCache[None] = GraphCache("a layer runs", 1, 4)
    device = torch.device("cuda")
    assert cache.get("shape", device, fails) is None
    with pytest.warns(RuntimeWarning, match="a layer runs without a CUDA graph, .* capturing$"):
        assert cache.get("shape", device, fails) is None
    assert cache.get("shape", device, fails) is None, "not tried again"


def test_collection_pauses_during_a_capture_alone() -> None:
    assert not in_capturing()
    with capturing():
        assert in_capturing()
        assert not gc.isenabled()
    assert gc.isenabled()
    assert not in_capturing()


DEVICE = torch.device("cuda")


def test_a_key_is_captured_when_it_has_come_up_often_enough() -> None:
    cache: GraphCache[str] = GraphCache("it runs", 2, 4)
    made: list[str] = []

    def make() -> str:
        made.append("captured")
        return made[-1]

    assert [cache.get("shape", DEVICE, make) for _ in range(5)] == [None, None, *["captured"] * 3]
    assert made == ["captured"]


def test_no_more_than_a_few_are_captured() -> None:
    cache: GraphCache[str] = GraphCache("it runs", 0, 2)
    found = [cache.get(shape, DEVICE, lambda shape=shape: f"of {shape}") for shape in range(4)]  # type: ignore[misc]
    assert found == ["of 0", "of 1", None, None]
    assert cache.get(1, DEVICE, lambda: "another") == "of 1"


def test_what_failed_does_not_count() -> None:
    def fails() -> str:
        raise RuntimeError("no")

    cache: GraphCache[str] = GraphCache("it runs", 0, 1)
    with pytest.warns(RuntimeWarning):
        assert cache.get("broken", DEVICE, fails) is None
    assert cache.get("sound", DEVICE, lambda: "captured") == "captured"


@pytest.mark.parametrize(("recapture", "expected"), [(True, ["b"]), (False, [None, "b"])])
def test_other_assumptions_end_captures(recapture: bool, expected: list[str | None]) -> None:
    cache: GraphCache[str] = GraphCache("it runs", 1, 2, recapture)
    for key in ("x", "y"):
        assert [cache.get(key, DEVICE, lambda: "a", lambda: 1) for _ in range(2)] == [None, "a"]
    assert cache.get("z", DEVICE, lambda: "a", lambda: 1) is None
    assert [cache.get("x", DEVICE, lambda: "b", lambda: 2) for _ in expected] == expected
    assert cache.captured == ["b"], "the capture of y ended too"
    assert cache.get("z", DEVICE, lambda: "c", lambda: 2) == "c", "calls before count"


def test_what_a_capture_assumes_is_known_when_it_ends() -> None:
    cache: GraphCache[str] = GraphCache("it runs", 0, 4, recapture=True)
    ranges = [1]

    def capture() -> str:
        ranges.append(ranges[-1] + 1)
        return f"for {ranges[-1]}"

    for _ in range(2):
        assert cache.get("x", DEVICE, capture, lambda: ranges[-1]) == "for 2"
    assert cache.get("y", DEVICE, capture, lambda: ranges[-1]) == "for 3"
    assert cache.get("x", DEVICE, capture, lambda: ranges[-1]) == "for 4"


def test_cleared_but_for_one_key() -> None:
    cache: GraphCache[str] = GraphCache("it runs", 2, 4)
    for _ in range(3):
        cache.get("x", DEVICE, lambda: "a")
    cache.clear(ready="x")
    assert cache.captured == []
    assert cache.get("x", DEVICE, lambda: "b") == "b"
    assert cache.get("y", DEVICE, lambda: "b") is None


def test_a_copy_of_a_cache_is_empty() -> None:
    cache: GraphCache[object] = GraphCache("it runs", 0, 4)
    cache.get("x", DEVICE, object)
    for other in (copy.copy(cache), copy.deepcopy(cache)):
        assert len(other) == 0
        assert (other.subject, other.limit) == ("it runs", 4)
    assert len(cache) == 1
