"""Replays on a CPU: a stand-in for CUDA graphs notes the operations of a capture and runs them again at a replay."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as tree
from torch.utils._python_dispatch import TorchDispatchMode

from evenflow import create, init, systems
from evenflow.lab.training.captured_update import WARM_UP, CapturedUpdate
from evenflow.layers import captured_step, layer_graphs
from evenflow.layers.named import GRU, LSTM, RNN
from evenflow.layers.recurrent import Recurrent
from evenflow.maps import MAPS, make
from evenflow.optim import GeodesicAdam, GeodesicSGD
from evenflow.optim.step_graphs import CapturedStep
from evenflow.runtime.captured_function import CapturedFunction, in_capturing

SAME = {"rtol": 1e-5, "atol": 1e-6}


class Graph(TorchDispatchMode):
    """The operations of a capture, which write their results to the same tensors at every replay."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, ...]] = []
        self.before: dict[
            int, tuple[Tensor, Tensor]
        ] = {}  # what the capture has changed in place, which CUDA's does not

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        for i, argument in enumerate(func._schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                for value in tree.tree_leaves(args[i] if i < len(args) else kwargs.get(argument.name)):
                    if isinstance(value, Tensor):
                        self.before.setdefault(value.data_ptr(), (value, value.clone()))
        out = func(*args, **kwargs)
        self.calls.append((func, args, kwargs, out))
        return out

    def pool(self) -> None:
        return None

    @torch.no_grad()
    def replay(self) -> None:
        for func, args, kwargs, out in self.calls:
            again = func(*args, **kwargs)
            if any(returned.alias_info is not None for returned in func._schema.returns):
                continue  # a view, or a change in place
            for before, after in zip(tree.tree_leaves(out), tree.tree_leaves(again), strict=True):
                if isinstance(before, Tensor) and before is not after:
                    before.copy_(after)


@contextmanager
def capture(graph: Graph, **options: Any) -> Iterator[None]:
    with graph:
        yield
    with torch.no_grad():
        for value, before in graph.before.values():
            with torch.autograd._unsafe_preserve_version_counter(value):
                value.detach().copy_(before)


@pytest.fixture(autouse=True)
def graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = SimpleNamespace(wait_stream=lambda other: None)
    parts: dict[str, Callable[..., Any]] = {
        "CUDAGraph": Graph,
        "graph": capture,
        "stream": lambda stream: nullcontext(),
        "device": lambda device: nullcontext(),
        "Stream": lambda *given: stream,
        "current_stream": lambda *given: stream,
        "is_current_stream_capturing": lambda: False,
    }
    for name, part in parts.items():
        monkeypatch.setattr(torch.cuda, name, part)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: 0, raising=False)


@pytest.mark.parametrize("name", [name for name in MAPS if name not in ("exponential", "unitary")])
def test_a_map(name: str) -> None:
    """All but those that need the pinned memory of a GPU's host."""
    map = make(name, 6)
    first = tuple(r.requires_grad_() for r in map.start(torch.Generator().manual_seed(0)))
    captured = map._capture(first)
    for seed in range(3):
        raw = tuple(r.requires_grad_() for r in map.start(torch.Generator().manual_seed(seed)))
        (W,), plain = captured(map._compute_tuple, raw), map.compute(*raw)
        torch.testing.assert_close(W, plain, **SAME)
        weight = torch.randn(plain.shape, dtype=plain.dtype)
        found, expected = (torch.autograd.grad((each * weight).sum().abs(), raw) for each in (W, plain))
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other, **SAME)


@pytest.mark.parametrize("final", [False, True], ids=["output", "final states"])
@pytest.mark.parametrize("tapped", [False, True], ids=["", "taps"])
@pytest.mark.parametrize("kind", [RNN, GRU, LSTM])
def test_a_layer(kind: type[Recurrent], tapped: bool, final: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layer_graphs, "WARM_UP", 0)
    layer = kind(2, 4)
    for _ in range(4):
        x, found = torch.randn(5, 3, 2, requires_grad=True), []
        for run in (partial(layer_graphs.replay_layer, layer), layer._forward):
            with layer.taps() if tapped else nullcontext([]) as taps:
                output, ends = run(x, None)
            results = [output, *([ends] if isinstance(ends, Tensor) else ends)]
            loss = sum(((k + 1) * r.square().sum() for k, r in enumerate(results[: None if final else 1])), x.sum())
            found.append([*results, *torch.autograd.grad(loss, [x, *taps, *layer.parameters()])])
        for one, other in zip(*found, strict=True):
            torch.testing.assert_close(one, other, **SAME)
        with torch.no_grad():
            for p in layer.parameters():
                p.add_(0.1 * torch.randn_like(p))  # read at its address
    assert layer.graphs is not None
    assert len(layer.graphs.cache.captured) == 1


def test_a_second_pass_before_the_first_is_differentiated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layer_graphs, "WARM_UP", 0)
    layer, replays = RNN(2, 4), []
    replay = CapturedFunction.replay
    monkeypatch.setattr(CapturedFunction, "replay", lambda self, inputs: replays.append(1) or replay(self, inputs))
    for _ in range(3):
        x, y = (torch.randn(5, 3, 2, requires_grad=True) for _ in range(2))
        first, second = layer_graphs.replay_layer(layer, x, None), layer_graphs.replay_layer(layer, y, None)
        assert second is None
        found = []
        for output in (first[0], layer(x)[0]):
            loss = output.square().sum() + layer(y)[0].sum()
            found.append(torch.autograd.grad(loss, [x, y, *layer.parameters()]))
        for one, other in zip(*found, strict=True):
            torch.testing.assert_close(one, other, **SAME)
    assert len(replays) == 3


@pytest.mark.parametrize("method", [partial(GeodesicSGD, lr=0.1, momentum=0.9), partial(GeodesicAdam, lr=0.01)])
def test_steps_of_an_optimiser(method: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    ours, plain = (torch.nn.Parameter(init.orthogonal(12, 3, generator=torch.Generator().manual_seed(0))) for _ in "ab")
    optimizer, other = method([ours]), method([plain])
    steps: list[CapturedStep] = []

    def replay(move: Any, parameters: Any, grads: Any, states: Any, numbers: Any, settings: Any) -> Tensor | None:
        if states[0]["step"] < 3:
            return None
        if not steps:
            steps.append(CapturedStep(move, grads, states, numbers))
        return steps[0].replay(grads, numbers)

    monkeypatch.setattr(optimizer._graphs, "replay", replay)
    for step in range(8):
        for p, each in ((ours, optimizer), (plain, other)):
            p.grad = torch.randn(12, 3, generator=torch.Generator().manual_seed(step))
            each.param_groups[0]["lr"] = 0.05 / (1 + step)
            each.step()
        torch.testing.assert_close(ours.detach(), plain.detach(), **SAME)
    assert steps


def test_updates() -> None:
    torch.manual_seed(0)
    models = [torch.nn.Linear(3, 2) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    optimizers = [torch.optim.SGD(model.parameters(), 0.1) for model in models]

    def work(which: int, x: Tensor, nested: tuple[Tensor, ...]) -> dict[str, Tensor]:
        optimizers[which].zero_grad()
        loss = (models[which](x) - nested[0]).square().mean()
        loss.backward()
        optimizers[which].step()
        return {"loss": loss.detach()}

    update = CapturedUpdate(work, models[0])
    for _ in range(WARM_UP + 4):
        x, y = torch.randn(4, 3), torch.randn(4, 2)
        version = models[0].weight._version
        assert torch.equal(update(0, x, (y,))["loss"], work(1, x, (y,))["loss"])
        assert models[0].weight._version > version
        for one, other in zip(models[0].parameters(), models[1].parameters(), strict=True):
            torch.testing.assert_close(one, other, **SAME)
    assert len(update.graphs.captured) == 1
    assert not in_capturing()


@pytest.mark.parametrize("batch", [(3,), ()], ids=["batch", "no batch"])
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("name", systems())
def test_a_single_step(name: str, layers: int, batch: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps by one capture are those of the layer, also after changes to its weights."""
    monkeypatch.setattr(captured_step, "WARM_UP", 0)
    layer = (create(name, 2, 4) if name == "esn" else create(name, 2, 4, num_layers=layers)).eval()
    steps = captured_step.CapturedSteps(layer)
    if not steps.possible:
        assert not layer.layers_run_in_turn
        return
    with torch.no_grad():
        for _ in range(3):
            x = torch.randn(*batch, 2)
            hx = layer(torch.randn(2, *batch, 2))[1]
            assert steps.is_current(layer)
            found = steps.run(layer, x, (hx,) if isinstance(hx, Tensor) else hx)
            output, state = layer(x.unsqueeze(0), hx)
            for one, other in zip(tree.tree_leaves(found), [output[0], *tree.tree_leaves(state)], strict=True):
                torch.testing.assert_close(one, other, **SAME)
            for p in layer.parameters():
                p.add_(0.1 * torch.randn_like(p))
    assert len(steps._cache.captured) == 1


def test_changes_end_single_steps() -> None:
    for change in (
        lambda layer: setattr(layer.cell, "gain", 2.0),
        lambda layer: setattr(layer, "bias_l0", torch.nn.Parameter(torch.ones(4))),
        lambda layer: setattr(layer, "cell", type(layer.cell)()),
        lambda layer: setattr(layer.parametrizations.weight_hh_l0[0].spectrum, "margin", 0.5),
    ):
        layer = RNN(2, 4, map="svd", margin=0.1)
        steps = captured_step.CapturedSteps(layer)
        assert steps.is_current(layer)
        change(layer)
        assert not steps.is_current(layer)
