"""Captured passes of layers: what is kept, for how long, and when a pass runs plainly. A stand-in takes the place of a
capture and runs the same work again; captures on a GPU are tested in tests/gpu."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest
import torch
import torch.utils.checkpoint
from torch import Tensor

import evenflow
from evenflow.cells import Elman
from evenflow.layers import layer_graphs
from evenflow.layers.feedback_stack import GatedFeedbackRNN
from evenflow.layers.layer_graphs import TensorLayer
from evenflow.layers.named import LSTM, RNN
from evenflow.layers.recurrent import Recurrent
from evenflow.reservoir import EchoState
from evenflow.runtime.captured_function import CapturedFunction
from evenflow.scan import can_capture

SAME = 1e-6


class Rerun(CapturedFunction):
    """Runs the pass in place of a replay, and saves what its backward pass needs as a capture does: once."""

    def __init__(
        self,
        function: partial[tuple[Tensor, ...]],
        inputs: Sequence[Tensor],
        weights: Sequence[Tensor],
        requires_grad: Sequence[bool],
        taps: int,
    ) -> None:
        self._serial, self._owner, self._taps = 0, lambda: None, taps
        self._layer, self._weights = weakref.ref(function.args[0]), weights  # a capture does not keep its layer alive
        self.inputs = [v.detach().clone().requires_grad_(flag) for v, flag in zip(inputs, requires_grad, strict=False)]

    def forward(self, inputs: Sequence[Tensor], owner: object) -> tuple[tuple[Tensor, ...], int]:
        with torch.no_grad():
            for own, value in zip(self.inputs, inputs, strict=True):
                own.copy_(value)
        with torch.enable_grad():
            layer = self._layer()
            assert layer is not None
            self._results = layer_graphs.run_with_weights(layer, len(inputs), self._taps, *self.inputs, *self._weights)
        self._serial += 1
        self._owner = weakref.ref(owner)
        return tuple(result.detach().clone() for result in self._results), self._serial

    def backward(self, serial: int, grads: Sequence[Tensor | None]) -> list[Tensor | None] | None:
        if serial != self._serial:
            return None
        self._serial += 1
        self._owner = lambda: None
        members = [*self.inputs, *self._weights]
        moving = [v for v in members if v.requires_grad]
        pairs = [(r, g) for r, g in zip(self._results, grads, strict=True) if g is not None]
        results, slopes = zip(*pairs, strict=True)
        gradients = iter(torch.autograd.grad(results, moving, slopes, materialize_grads=True))
        return [next(gradients) if v.requires_grad else None for v in members]


@pytest.fixture(autouse=True)
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layer_graphs, "CapturedFunction", Rerun)
    monkeypatch.setattr(layer_graphs, "WARM_UP", 0)
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: 0, raising=False)


def captures(layer: Recurrent) -> list[CapturedFunction]:
    return [] if layer.graphs is None else layer.graphs.cache.captured


def passed(layer: Recurrent, *given: Tensor) -> tuple[Tensor, ...] | None:
    found = layer_graphs.replay(layer, 1, given)
    return None if found is None else found[0]


def x(*shape: int, grad: bool = False) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape))).requires_grad_(grad)


def gradients(layer: Recurrent, results: Sequence[Tensor], inputs: Sequence[Tensor], of: slice) -> list[Tensor]:
    loss = sum((result.square().sum() for result in results[of]), torch.zeros(()))
    return list(torch.autograd.grad(loss, [*inputs, *layer.parameters()], allow_unused=True, retain_graph=True))


@pytest.mark.parametrize("of", [slice(0, 1), slice(1, None), slice(None)], ids=["output", "final state", "both"])
@pytest.mark.parametrize("kind", [RNN, LSTM])
def test_a_replay_gives_what_the_pass_gives(kind: type[Recurrent], of: slice) -> None:
    layer = kind(2, 4, num_layers=2)
    given = [x(5, 3, 2, grad=True)] + [torch.randn(2, 3, 4, requires_grad=True) for _ in range(layer.cell.state_size)]
    plain, found = TensorLayer(layer)(*given), passed(layer, *given)
    assert found is not None
    for one, other in zip(
        (*plain, *gradients(layer, plain, given, of)), (*found, *gradients(layer, found, given, of)), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=SAME, atol=SAME)


@pytest.mark.parametrize(
    "options",
    [{}, {"num_layers": 2, "bidirectional": True}, {"batch_first": True}],
    ids=["", "stacked both ways", "batch first"],
)
@pytest.mark.parametrize("kind", [RNN, LSTM, GatedFeedbackRNN])
def test_taps_of_a_replay(kind: type[Recurrent], options: dict[str, Any]) -> None:
    """The gradients by every state are those of the plain pass, and no other taps are left with whoever listens."""
    if kind is GatedFeedbackRNN and "bidirectional" in options:
        options = {"num_layers": 2}
    layer, found = kind(2, 4, **options), []
    for run in (lambda a: layer_graphs.replay_layer(layer, a, None), lambda a: layer._forward(a, None)):
        for shape in ((5, 3, 2), (5, 2)):
            with layer.taps() as taps:
                output = run(x(*shape))[0]
                output.square().sum().backward()
            assert len(taps) == len(layer.suffixes)
            found.append([tap.grad for tap in taps])
    (captured, alone, plain, plain_alone) = found
    for one, other in zip((*captured, *alone), (*plain, *plain_alone), strict=True):
        assert one is not None
        assert one.abs().sum() > 0
        torch.testing.assert_close(one, other, rtol=SAME, atol=SAME)
    assert all(isinstance(entry, Rerun) for entry in captures(layer))
    assert len(captures(layer)) == 2


def test_a_replay_with_taps_is_run_again_without_leaving_more() -> None:
    layer, a = RNN(2, 4), x(5, 3, 2)
    with layer.taps() as taps:
        found = layer_graphs.replay_layer(layer, a, None)
        loss = found[0].square().sum()
        (first,) = torch.autograd.grad(loss, taps, retain_graph=True)
        (second,) = torch.autograd.grad(loss, taps)
        assert len(taps) == 1
    torch.testing.assert_close(first, second, rtol=SAME, atol=SAME)
    with torch.no_grad(), layer.taps() as taps:
        assert layer_graphs.replay_layer(layer, a, None) is not None
    assert [tap.shape for tap in taps] == [(5, 3, 4)]


@pytest.mark.parametrize("transform", [torch.func.grad, torch.vmap], ids=["grad", "vmap"])
def test_taps_under_a_transform_are_those_of_the_plain_pass(transform: Any) -> None:
    layer, a = RNN(2, 4), x(5, 3, 2)

    def loss(given: Tensor) -> Tensor:
        with layer.taps() as taps:
            assert layer_graphs.replay_layer(layer, given, None) is None
            assert not taps
            return layer(given)[0].sum()

    transform(loss)(a.unsqueeze(0) if transform is torch.vmap else a)


def test_a_tap_is_of_the_layers_dtype_whoever_asks_first() -> None:
    layer_graphs._zero.cache_clear()
    torch.set_default_dtype(torch.float64)
    try:
        assert layer_graphs._zero(torch.device("cpu")).dtype == torch.float32
    finally:
        torch.set_default_dtype(torch.float32)


class InTheLoop(Elman):
    """A step that cannot be translated."""

    def step(self, a: Tensor, h: Tensor, U: Tensor, p: Tensor | None = None) -> Tensor:
        return super().step(a, h, U, p).cumsum(-1)


def test_a_plain_loop_is_too_long_to_record() -> None:
    a = x(5, 3, 2)
    for cell, captured in ((Elman(), True), (InTheLoop(), False)):
        layer = Recurrent(cell, 2, 4)
        assert (layer_graphs.replay_layer(layer, a, None) is not None) == captured


def test_a_second_pass_does_not_spoil_the_first() -> None:
    """The capture's memory is the first pass's until its way back, or until it is dropped."""
    layer, a = RNN(2, 4), x(5, 3, 2)
    first = passed(layer, a)
    assert first is not None
    assert passed(layer, a) is None
    first[0].sum().backward()
    assert passed(layer, a) is not None
    gc.collect()
    assert passed(layer, a) is not None  # the last one was dropped


def test_what_was_written_over_is_computed_again() -> None:
    layer, a, b = RNN(2, 4), x(5, 3, 2, grad=True), torch.randn(5, 3, 2)
    found = passed(layer, a)
    assert found is not None
    (capture,) = captures(layer)
    assert isinstance(capture, Rerun)
    capture.forward([b], layer)
    plain = TensorLayer(layer)(a)
    for one, other in zip(
        gradients(layer, plain, [a], slice(None)), gradients(layer, found, [a], slice(None)), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=SAME, atol=SAME)


def test_pulled_twice_and_differentiated_again() -> None:
    layer, a = RNN(2, 4), x(5, 3, 2, grad=True)
    found = passed(layer, a)
    assert found is not None
    first, second = (torch.autograd.grad(found[0].sum(), a, retain_graph=True)[0] for _ in range(2))
    torch.testing.assert_close(first, second, rtol=SAME, atol=SAME)
    layer_again = copy.deepcopy(layer)
    layer_again.engine = "reference"
    curved = []
    for results in (found, TensorLayer(layer)(a), TensorLayer(layer_again)(a)):
        (slope,) = torch.autograd.grad(results[0].square().sum(), a, create_graph=True)
        curved.append(torch.autograd.grad(slope.square().sum(), a)[0])
    for one in curved[:2]:
        torch.testing.assert_close(one, curved[2], rtol=1e-5, atol=1e-5)


def test_many_gradients_side_by_side() -> None:
    layer, a = RNN(2, 4), x(5, 3, 2, grad=True)
    found, plain = passed(layer, a), TensorLayer(layer)(a)
    assert found is not None
    grads = torch.randn(6, *plain[0].shape)
    one, other = (
        torch.autograd.grad(results[0], a, grads, is_grads_batched=True, retain_graph=True)[0]
        for results in (found, plain)
    )
    torch.testing.assert_close(one, other, rtol=SAME, atol=SAME)


def test_weights_changed_before_the_way_back_are_an_error() -> None:
    layer, a = RNN(2, 4), x(5, 3, 2, grad=True)
    found = passed(layer, a)
    assert found is not None
    with torch.no_grad():
        layer.bias_l0.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        found[0].sum().backward()


def test_values_of_the_weights_may_change_and_their_place_may_not() -> None:
    layer, a = RNN(2, 4), x(5, 3, 2)
    with torch.no_grad():
        assert passed(layer, a) is not None
        known = layer.graphs
        layer.bias_l0.add_(1)
        found = passed(layer, a)
        assert found is not None
        torch.testing.assert_close(found[0], TensorLayer(layer)(a)[0])
        assert layer.graphs is known
        layer.bias_l0 = torch.nn.Parameter(layer.bias_l0 + 1)
        found = passed(layer, a)
        assert found is not None
        torch.testing.assert_close(found[0], TensorLayer(layer)(a)[0])
        assert layer.graphs is not known


def test_when_a_pass_runs_plainly(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, a = RNN(2, 4), x(5, 3, 2)
    assert layer_graphs.replay(layer, layer_graphs.MOST_NUMBERS + 1, (a,)) is None
    assert passed(layer.double(), a.double()) is None
    layer = layer.float()
    with torch.nn.utils.parametrize.cached():
        assert passed(layer, a) is None
    with torch.autograd.detect_anomaly(check_nan=False):
        assert passed(layer, a) is None
    with torch.autograd.graph.save_on_cpu():
        assert passed(layer, a) is None
    with layer.record_runs() as runs:
        assert layer_graphs.replay_layer(layer, a, None) is None
        layer(a)
    assert len(runs) == 1
    assert [layer_graphs.replay_layer(layer, a, None) is None for _ in range(layer_graphs.WARM_UP + 1)][-1] is False
    hook = layer.register_forward_pre_hook(lambda module, given: None)
    assert passed(layer, a) is None
    hook.remove()
    assert passed(layer, a) is not None
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert passed(layer, a) is None


def test_another_cell_is_another_pass() -> None:
    layer, a = RNN(2, 4, leak=0.5), x(5, 3, 2)
    for leak in (0.5, 0.2):
        layer.cell.alpha, layer.cell.beta = leak, 1 - leak
        with torch.no_grad():
            found = layer_graphs.replay_layer(layer, a, None)
            torch.testing.assert_close(found[0], layer._forward(a, None)[0])
    assert len(layer.graphs.cache) == 2


@evenflow.cell(matrices=("W",))
def leaky(a: Tensor, h: Tensor, W: Tensor, *, rate: float = 0.5) -> Tensor:
    return (1 - rate) * h + rate * torch.tanh(a + h @ W.mT)


def test_a_cell_of_the_users_own_and_its_successor() -> None:
    layer, a = Recurrent(leaky(), 2, 4), x(5, 3, 2)
    for rate in (0.5, 0.2):
        layer.cell = leaky(rate=rate)
        with torch.no_grad():
            found = layer_graphs.replay_layer(layer, a, None)
            torch.testing.assert_close(found[0], layer._forward(a, None)[0])
        assert len(captures(layer)) == 1


@pytest.mark.parametrize("name", evenflow.systems())
def test_every_system_is_captured(name: str) -> None:
    layer, a = evenflow.create(name, 2, 4), x(5, 3, 2)
    layer.eval()
    with torch.no_grad():
        found = layer_graphs.replay_layer(layer, a, None)
        if found is None:
            assert not can_capture(layer.cell, 5) or layer.cell.draws
            return
        torch.testing.assert_close(found[0], layer._forward(a, None)[0])


def test_another_margin_is_another_pass() -> None:
    layer, a = RNN(2, 4, map="svd", margin=0.1), x(5, 3, 2)
    spectrum = layer.parametrizations.weight_hh_l0[0].spectrum
    with torch.no_grad():
        layer.parametrizations.weight_hh_l0.original2.normal_()
        for spectrum.margin in (0.1, 0.5):
            found = layer_graphs.replay_layer(layer, a, None)
            torch.testing.assert_close(found[0], layer._forward(a, None)[0])
    assert len(layer.graphs.cache) == 2


def test_checkpointed_by_torch() -> None:
    """Both times it runs it must save the same tensors."""
    layer, a = RNN(2, 4), x(5, 3, 2, grad=True)

    def run(a: Tensor) -> Tensor:
        return (layer_graphs.replay_layer(layer, a, None) or layer._forward(a, None))[0]

    for _ in range(3):
        (found,) = torch.autograd.grad(torch.utils.checkpoint.checkpoint(run, a, use_reentrant=False).sum(), a)
        (plain,) = torch.autograd.grad(layer._forward(a, None)[0].sum(), a)
        torch.testing.assert_close(found, plain)


def test_a_few_calls_are_made_first_and_a_few_shapes_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layer_graphs, "WARM_UP", 2)
    layer = RNN(2, 4)
    for steps in range(1, layer_graphs.LIMIT + 2):
        a = x(steps, 3, 2)
        with torch.no_grad():
            found = [passed(layer, a) is not None for _ in range(4)]
        assert found == [False, False] + [steps <= layer_graphs.LIMIT] * 2


def test_captures_end_with_their_layer_and_are_not_copied() -> None:
    layer = RNN(2, 4)
    assert passed(layer, x(5, 3, 2)) is not None
    assert len(captures(layer)) == 1
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert other.graphs is None
    (captured,) = map(weakref.ref, captures(layer))
    del layer
    gc.collect()
    assert captured() is None


def test_layers_that_share_their_captures_do_not_read_each_others_weights() -> None:
    layer, a = RNN(2, 4), x(5, 3, 2)
    with torch.no_grad():
        assert passed(layer, a) is not None
        other = copy.copy(layer)
        assert other.graphs is layer.graphs
        other._parameters = {name: torch.nn.Parameter(2 * p) for name, p in layer.named_parameters()}
        results = passed(other, a)
        assert results is not None
        torch.testing.assert_close(results[0], TensorLayer(other)(a)[0])


@pytest.mark.parametrize("map", ["free", "householder", "svd"])
def test_a_pass_with_other_weights(map: str) -> None:
    """What a capture runs: the layer's own pass, its parameters in other hands."""
    layer, a = RNN(2, 4, map=map), x(5, 3, 2)
    weights = [p.detach().requires_grad_() for p in layer.parameters()]
    results = layer_graphs.run_with_weights(layer, 1, 0, a, *weights)
    torch.testing.assert_close(results, TensorLayer(layer)(a))
    found = torch.autograd.grad(results[0].sum(), weights)
    torch.testing.assert_close(found, torch.autograd.grad(layer(a)[0].sum(), list(layer.parameters())))
    with torch.no_grad():
        weights[0].add_(1)  # the same memory
    torch.testing.assert_close(layer_graphs.run_with_weights(layer, 1, 0, a, *weights), TensorLayer(layer)(a))


def test_a_map_that_leaves_its_range_ends_captures(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = RNN(2, 4, map="exponential")
    given = x(5, 3, 2)
    assert layer_graphs.replay_layer(layer, given, None) is not None
    assert captures(layer)
    map = layer.parametrizations.weight_hh_l0[0]  # type: ignore[union-attr, index]
    monkeypatch.setattr(type(map), "needs_recapture", lambda self, *raw: True)
    assert layer_graphs.replay_layer(layer, given, None) is None
    assert not captures(layer)
    monkeypatch.setattr(type(map), "needs_recapture", lambda self, *raw: False)
    monkeypatch.setattr(type(map), "captured_range", 12.8)
    assert layer_graphs.replay_layer(layer, given, None) is not None
    (first,) = captures(layer)
    assert layer_graphs.replay_layer(layer, given, None) is not None
    assert captures(layer) == [first]
    monkeypatch.setattr(type(map), "captured_range", 25.6)  # as after other numbers were loaded
    assert layer_graphs.replay_layer(layer, given, None) is not None
    assert first not in captures(layer)
    assert len(captures(layer)) == 1


def test_weights_of_a_transformation_are_left_alone() -> None:
    layer = RNN(2, 4)
    weights = {name: torch.stack([w.detach(), 2 * w.detach()]) for name, w in layer.named_parameters()}
    given = x(5, 3, 2)

    def run(weights: dict[str, Tensor]) -> Tensor:
        with pytest.MonkeyPatch.context() as patch:
            seen: list[object] = []
            patch.setattr(layer, "forward", lambda v: (seen.append(layer_graphs.replay_layer(layer, v, None)), v)[1])
            out = torch.func.functional_call(layer, weights, (given,))
            assert seen == [None]
        return out

    torch.func.vmap(run)(weights)
    assert layer.graphs is None
    computed = {name: 2 * w for name, w in layer.named_parameters()}  # of a caller's own autograd graph
    run(computed)
    assert layer.graphs is None
    assert layer_graphs.replay_layer(layer, given, None) is not None


def test_a_parameter_that_comes_later_is_noticed() -> None:
    layer = RNN(2, 4)
    given = x(5, 3, 2)
    assert layer_graphs.replay_layer(layer, given, None) is not None
    before = layer.graphs
    layer.register_parameter("extra", torch.nn.Parameter(torch.zeros(1)))
    assert layer_graphs.replay_layer(layer, given, None) is not None
    assert layer.graphs is not before


def test_a_layer_of_buffers_alone() -> None:
    layer = EchoState(2, 6)
    given = x(5, 3, 2)
    results = layer_graphs.replay_layer(layer, given, None)
    assert results is not None
    torch.testing.assert_close(results, layer(given))
    before = layer.graphs
    layer.weight_hh_l0 = layer.weight_hh_l0.clone()
    assert layer_graphs.replay_layer(layer, given, None) is not None
    assert layer.graphs is not before


def test_a_buffer_that_wants_a_gradient_is_heard() -> None:
    layer, given = EchoState(2, 6), x(5, 3, 2)
    assert layer_graphs.replay_layer(layer, given, None) is not None
    layer.weight_hh_l0.requires_grad_()
    assert layer_graphs.replay_layer(layer, given, None) is None
    layer.weight_hh_l0.requires_grad_(False)
    assert layer_graphs.replay_layer(layer, given, None) is not None


def test_calls_before_a_map_prepared_itself_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layer_graphs, "WARM_UP", 2)
    layer, given = RNN(2, 4, map="exponential"), x(5, 3, 2)
    map = layer.parametrizations.weight_hh_l0[0]  # type: ignore[union-attr, index]
    assert layer_graphs.replay_layer(layer, given, None) is None
    monkeypatch.setattr(type(map), "captured_range", 12.8)
    assert layer_graphs.replay_layer(layer, given, None) is None
    assert layer_graphs.replay_layer(layer, given, None) is not None


def test_a_dispatch_mode_hears_the_pass_and_leaves_no_mark() -> None:
    from torch.utils.flop_counter import FlopCounterMode

    layer = RNN(2, 4)
    with FlopCounterMode(display=False):
        assert layer_graphs.replay_layer(layer, x(5, 3, 2), None) is None
    assert layer_graphs.replay_layer(layer, x(5, 3, 2), None) is not None


def test_weights_computed_elsewhere_do_not_take_the_layers_place() -> None:
    layer = RNN(2, 4)
    given = x(5, 3, 2)
    assert layer_graphs.replay_layer(layer, given, None) is not None
    before = layer.graphs
    with torch.no_grad():
        others = {name: 2 * w for name, w in layer.named_parameters()}
    seen: list[object] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layer, "forward", lambda v: (seen.append(layer_graphs.replay_layer(layer, v, None)), v)[1])
        torch.func.functional_call(layer, others, (given,))
    assert seen == [None]
    assert layer_graphs.replay_layer(layer, given, None) is not None
    assert layer.graphs is before


def test_a_buffer_in_another_place_is_noticed() -> None:
    layer = RNN(2, 4, map="rotations")
    given = x(5, 3, 2)
    assert layer_graphs.replay_layer(layer, given, None) is not None
    before = layer.graphs
    map = layer.parametrizations.weight_hh_l0[0]  # type: ignore[union-attr, index]
    map.permutations = map.permutations.clone()
    assert layer_graphs.replay_layer(layer, given, None) is not None
    assert layer.graphs is not before
