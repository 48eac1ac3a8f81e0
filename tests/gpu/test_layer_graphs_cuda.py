"""Recorded passes of layers give what the passes themselves give. `make test-gpu` runs these; elsewhere they skip."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn

from evenflow import create, systems
from evenflow.lab.training.captured_update import CapturedUpdate
from evenflow.layers import layer_graphs
from evenflow.layers.layer_graphs import TensorLayer
from evenflow.layers.named import LSTM, RNN
from evenflow.layers.recurrent import Recurrent
from evenflow.maps import MAPS
from evenflow.scan import can_capture

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

CLOSE = 2e-5  # of ‖expected‖: float32, and a captured exponential map takes more squarings
PASSES = layer_graphs.WARM_UP + 4


def captures(layer: nn.Module) -> int:
    return 0 if layer.graphs is None else len(layer.graphs.cache.captured)  # type: ignore[union-attr, operator, arg-type]


def assert_same(found: Sequence[Tensor], expected: Sequence[Tensor], where: str = "") -> None:
    for n, (one, other) in enumerate(zip(found, expected, strict=True)):
        off = ((one - other).norm() / other.norm().clamp(min=1e-6)).item()
        assert off < CLOSE, f"{where} item {n} is off by {off:.1e}"


def slopes(results: tuple[Tensor, ...], layer: nn.Module, weights: list[Tensor], *more: Tensor) -> list[Tensor]:
    loss = sum((r * w).sum() for r, w in zip(results, weights, strict=True))
    found = torch.autograd.grad(loss, [*layer.parameters(), *more], allow_unused=True)
    return [f for f in found if f is not None]


def check(layer: Recurrent, shape: tuple[int, ...], *states: tuple[int, ...], final: bool = True) -> None:
    """Passes with other inputs and weights each time, beside the same passes run plainly."""
    for n in range(PASSES):
        given = [torch.randn(s, device="cuda", requires_grad=True) for s in (shape, *states)]
        hx = None if not states else given[1] if len(states) == 1 else tuple(given[1:])
        output, ends = layer(given[0], hx)
        found = (output, *((ends,) if isinstance(ends, Tensor) else ends))
        plain = TensorLayer(layer)(*given)
        count = len(plain) if final else 1
        weights = [torch.randn_like(r) for r in plain[:count]]
        assert_same(found, plain, f"pass {n}")
        one, other = (slopes(r[:count], layer, weights, *given) for r in (found, plain))
        assert_same(one, other, f"way back {n}")
        with torch.no_grad():
            for p in layer.parameters():
                p.add_(0.01 * torch.randn_like(p))
    assert captures(layer) == 1


@pytest.mark.parametrize("final", [False, True], ids=["output", "output and final state"])
@pytest.mark.parametrize("name", systems())
def test_every_system(name: str, final: bool) -> None:
    layer = create(name, 3, 16).cuda()
    if not isinstance(layer, Recurrent) or not can_capture(layer.cell, 7):
        pytest.skip(f"{name} is not captured")
    check(layer, (7, 5, 3), final=final)


@pytest.mark.parametrize("name", systems())
def test_taps_of_every_system(name: str) -> None:
    """The gradient by every state out of a capture is that of a plain pass; what was given stays."""
    layer = create(name, 3, 16).cuda()
    if not isinstance(layer, Recurrent) or not can_capture(layer.cell, 7):
        pytest.skip(f"{name} is not captured with taps")
    given = []
    for _ in range(PASSES):
        x, weights = torch.randn(7, 5, 3, device="cuda"), torch.randn(7, 5, 16, device="cuda")
        found = []
        for run in (layer, lambda x: layer._forward(x, None)):
            with layer.taps() as taps:
                loss = (run(x)[0] * weights).sum()
            found.append(torch.autograd.grad(loss, [*taps, *layer.parameters()], allow_unused=True))
        one, other = ([f for f in each if f is not None] for each in found)
        assert_same(one, other)
        given.append((one[0], one[0].clone()))
    assert captures(layer) == 1
    assert all(torch.equal(a, b) for a, b in given)


@pytest.mark.parametrize(
    "options",
    [{"num_layers": 2, "bidirectional": True}, {"batch_first": True}, {"initial_state": "learned"}, {"bias": False}],
    ids=["stacked both ways", "batch first", "learned start", "no bias"],
)
@pytest.mark.parametrize("kind", [RNN, LSTM])
def test_forms_of_layers(kind: type[Recurrent], options: dict[str, object]) -> None:
    check(kind(3, 16, **options).cuda(), (7, 5, 3))


def test_a_linear_layer() -> None:
    check(RNN(3, 16, activation="identity").cuda(), (7, 5, 3))


def test_initial_states_and_no_batch() -> None:
    check(RNN(3, 16, map="rotations", activation="abs").cuda(), (7, 5, 3), (1, 5, 16))
    check(LSTM(3, 16).cuda(), (7, 5, 3), (1, 5, 16), (1, 5, 16))
    check(LSTM(3, 16).cuda(), (7, 3), (1, 16), (1, 16))


def test_training_is_that_of_plain_passes() -> None:
    """An optimiser's steps, gradients cleared and accumulated, an evaluation between."""
    torch.manual_seed(0)
    layer = RNN(2, 32, map="householder", activation="abs").cuda()
    twin = copy.deepcopy(layer)
    optimizers = [torch.optim.Adam(m.parameters(), 1e-2) for m in (layer, twin)]
    for n in range(3 * PASSES):
        x = torch.randn(20, 6, 2, device="cuda")
        for model, run, optimizer in zip((layer, twin), (layer, twin._forward), optimizers, strict=True):
            run(x, None)[0][-1].square().sum().backward()
            if n % 3 == 2:
                optimizer.step()
                optimizer.zero_grad()
                with torch.no_grad():
                    model(x)
    for one, other in zip(layer.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-3)
    assert captures(layer) == 2


def test_two_passes_before_one_way_back() -> None:
    layer = RNN(2, 16).cuda()
    for _ in range(PASSES):
        x, y = (torch.randn(9, 4, 2, device="cuda", requires_grad=True) for _ in range(2))
        found = layer(x)[0].square().sum() + layer(y)[0].sum()
        plain = layer._forward(x, None)[0].square().sum() + layer._forward(y, None)[0].sum()
        one, other = (torch.autograd.grad(v, [x, y, *layer.parameters()]) for v in (found, plain))
        assert_same(one, other)
    assert captures(layer) == 1


def test_moved_loaded_and_in_inference_mode() -> None:
    layer, other = RNN(2, 16).cuda(), RNN(2, 16)
    x = torch.randn(9, 4, 2, device="cuda")
    for _ in range(PASSES):
        with torch.inference_mode():
            found = layer(x)[0]
    layer.load_state_dict(other.state_dict())
    with torch.no_grad():
        assert_same(layer(x)[:1], layer._forward(x, None)[:1])
        with torch.inference_mode():
            assert_same(layer(x)[:1], layer._forward(x, None)[:1])
        layer.cpu().cuda()
        assert_same(layer(x)[:1], layer._forward(x, None)[:1])
    assert found.shape == (9, 4, 16)


def test_what_is_given_stays() -> None:
    """Results and gradients are copies: the next pass does not write over them."""
    layer, kept = RNN(2, 16).cuda(), []
    for n in range(PASSES + 3):
        layer.zero_grad(set_to_none=True)
        output, final = layer(torch.full((9, 4, 2), float(n), device="cuda"))
        output.sum().backward()
        tensors = [output.detach(), final.detach(), *(p.grad for p in layer.parameters())]
        kept.append((tensors, [t.clone() for t in tensors]))
    for tensors, copies in kept:
        assert all(torch.equal(a, b) for a, b in zip(tensors, copies, strict=True))


def test_long_sequences_are_not_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layer_graphs, "MOST_NUMBERS", 9 * 4 * 16 - 1)
    layer = RNN(2, 16).cuda()
    for _ in range(PASSES):
        layer(torch.randn(9, 4, 2, device="cuda"))[0].sum().backward()
    assert captures(layer) == 0


def test_captures_follow_an_angle_that_grows() -> None:
    layer = RNN(2, 16, map="exponential", init="identity").cuda()
    x = torch.randn(9, 4, 2, device="cuda")
    raw = next(p for p in layer.parameters() if p.dim() == 1 and p.numel() == 16 * 15 // 2)
    reached = set()
    for _ in range(150):  # by about 0.2 a step, with nothing that waits in between
        with torch.no_grad():
            raw.add_(0.02)
        found = layer(x)[0]
        reached.add(layer.parametrizations.weight_hh_l0[0].angle_range)  # type: ignore[union-attr, index]
        assert_same([found], [copy.deepcopy(layer)(x)[0]])
    assert captures(layer) >= 1
    assert len(reached - {None}) >= 3, "captured anew for larger angles"


def test_captured_work_follows_an_angle_that_grows() -> None:
    map = MAPS["exponential"](16).cuda()
    raw = torch.zeros(map.raw_shapes[0], device="cuda")

    def work(key: object) -> Tensor:
        raw.add_(0.02)
        return map(raw)

    model = nn.ParameterList([raw])
    model.map = map
    captured = CapturedUpdate(work, model)
    with torch.no_grad():
        for _ in range(150):
            found = captured(())
            assert_same([found], [copy.deepcopy(map)(raw)])
    assert captured.graphs.captured
    assert map.angle_range.largest > 20


def test_loaded_angles_beyond_a_capture_are_not_met_by_it() -> None:
    layer, turned = (RNN(2, 16, map="exponential", init=init).cuda() for init in ("identity", "haar"))
    x = torch.randn(9, 4, 2, device="cuda")
    for _ in range(PASSES):
        layer(x)
    assert captures(layer) == 1
    with torch.no_grad():
        for p in turned.parameters():
            p.mul_(5)
    layer.load_state_dict(turned.state_dict())
    for _ in range(PASSES):
        assert_same([layer(x)[0]], [copy.deepcopy(turned)(x)[0]])


@pytest.mark.parametrize("name", systems())
def test_single_steps_of_every_system(name: str) -> None:
    """A loop over steps, captured after a few, gives the states of the layer, also after a change to the weights."""
    layer = create(name, 3, 16).cuda().eval()
    if not isinstance(layer, Recurrent):
        pytest.skip(f"{name} is no recurrent layer")
    with torch.no_grad():
        for _ in range(2):
            x, state, outputs = torch.randn(12, 5, 3, device="cuda"), None, []
            for x_t in x:
                output, state = layer.step(x_t, state)
                outputs.append(output)
            whole, last = layer(x)
            ends = (state, last) if isinstance(state, tuple) else ((state,), (last,))
            assert_same([torch.stack(outputs), *ends[0]], [whole, *ends[1]])
            for p in layer.parameters():
                p.add_(0.01 * torch.randn_like(p))
