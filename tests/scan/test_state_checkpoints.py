"""Checkpointed layers: the same outputs and gradients, from memory for one piece."""

from __future__ import annotations

import subprocess
import sys
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import pack_padded_sequence

from evenflow import GRU, LSTM, RNN, SCRN, ComplexRNN, GatedFeedbackRNN, ScalarGatedRNN
from evenflow.layers.recurrent import Recurrent
from evenflow.scan import cpu, recurrence, state_checkpoints, torch_operations

# The same sums in another order, in double precision.
SAME = {"rtol": 1e-10, "atol": 1e-10}
# What T = 20,000, B = 16, H = 128 needs in float32: the output and its gradient are 164 MB each, and a piece is small.
# The projected input or the gradient by it would be another 164 MB.
STEPS, MEGABYTES = 20_000, 2 * 164 + 60

LAYERS: dict[str, Any] = {
    "elman": lambda **o: RNN(3, 6, activation="abs", **o),
    "elman-mapped": lambda **o: RNN(3, 6, map="exponential", activation="modrelu", **o),
    "gated": lambda **o: ScalarGatedRNN(3, 6, activation="prelu", **o),
    "gru": lambda **o: GRU(3, 6, map="cayley", **o),
    "lstm": lambda **o: LSTM(3, 6, **o),
    "lstm-peephole": lambda **o: LSTM(3, 6, form="peephole", **o),
    "lstm-1997": lambda **o: LSTM(3, 6, form="1997", **o),
    "scrn": lambda **o: SCRN(3, 6, rates="learned", **o),
    "complex": lambda **o: ComplexRNN(3, 6, **o),
    "gated-feedback": lambda **o: GatedFeedbackRNN(3, 6, 2, **o),
    "gated-feedback-lstm": lambda **o: GatedFeedbackRNN(3, 6, 2, unit="lstm", **o),
}
ONE_WAY = ("gated-feedback", "gated-feedback-lstm")
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "learned start": {"initial_state": "learned"},
    "two layers, both ways": {"num_layers": 2, "bidirectional": True},
    "torch": {"engine": "torch"},
    "reference": {"engine": "reference"},
}


def make(name: str, **options: Any) -> Recurrent:
    generator = torch.Generator().manual_seed(1)
    layer = LAYERS[name](dtype=torch.float64, generator=generator, **options)
    if not layer.bias_l0.is_meta:  # some weights, peepholes and biases, start at zero, where they do nothing
        with torch.no_grad():
            for p in layer.parameters():
                p.add_(torch.randn(p.shape, generator=generator, dtype=p.dtype), alpha=0.1)
    return layer


def given(steps: int = 11) -> Tensor:
    return torch.randn(steps, 4, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


def run(layer: Recurrent, x: Any, hx: Any = None) -> list[Tensor | None]:
    """Outputs, final states, and every gradient of a loss of both, the taps' among them."""
    source = x.data if hasattr(x, "batch_sizes") else x
    leaves = [source, *(() if hx is None else hx if isinstance(hx, tuple) else (hx,))]
    for leaf in leaves:
        leaf.requires_grad_().grad = None
    layer.zero_grad()
    with layer.taps() as taps:
        output, final = layer(x, hx)
    output = output.data if hasattr(output, "batch_sizes") else output
    finals = final if isinstance(final, tuple) else (final,)
    (output.sin().sum() + sum((f * (i + 1)).sum() for i, f in enumerate(finals))).backward()
    seen = [*leaves, *layer.parameters(), *taps]
    return [output.detach(), *(f.detach() for f in finals), *(None if v.grad is None else v.grad for v in seen)]


def assert_same(found: list[Tensor | None], wanted: list[Tensor | None]) -> None:
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        assert (one is None) == (other is None)
        if one is not None and other is not None:
            torch.testing.assert_close(one, other, **SAME)


@pytest.mark.parametrize("every", [1, 3, 10, 11, 50])
@pytest.mark.parametrize("name", LAYERS)
def test_gives_the_same(name: str, every: int) -> None:
    x = given()
    assert_same(run(make(name, checkpoint_every=every), x), run(make(name), x))


@pytest.mark.parametrize("name", LAYERS)
def test_all_states_in_pieces(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where every state is kept the way back goes in pieces as well, of three steps here."""
    monkeypatch.setitem(state_checkpoints.NUMBERS, "cpu", 3 * 24 + 5)
    monkeypatch.setattr(state_checkpoints, "LEAST_STEPS", 1)
    packed = pack_padded_sequence(given(9), torch.tensor([2, 9, 5, 3]), enforce_sorted=False)
    for x in (given(), packed):
        assert_same(run(make(name, checkpoint_every=1), x), run(make(name), x))


@pytest.mark.parametrize("name", LAYERS)
def test_states_and_nothing_else_are_kept(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of every step: h, of an LSTM c as well, and the input, which is the caller's. And no step is run twice."""
    monkeypatch.setitem(state_checkpoints.NUMBERS, "cpu", 1)  # as for a large state: pieces are as short as they get
    layer, x, kept = make(name, checkpoint_every=1), given(200), {}

    def pack(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes() // tensor.element_size()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output, _ = layer(x)
    long = sorted(numbers for numbers in kept.values() if numbers >= 200)
    size = output.numel() * (layer.num_layers if name in ONE_WAY else 1)
    assert long == sorted([x.numel(), *[size] * layer.cell.state_size])
    for engine in (cpu, torch_operations):
        monkeypatch.setattr(engine, "forward", lambda *given: pytest.fail("ran again"))
    output.sum().backward()


def test_half_precision_runs_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The states are stored with eight bits, and the steps went on from more."""
    monkeypatch.setattr(recurrence, "outputs_from_states", lambda *given: pytest.fail("was found from rounded states"))
    found = []
    for every in (1, None):
        layer = ScalarGatedRNN(3, 6, generator=torch.Generator().manual_seed(1), checkpoint_every=every).bfloat16()
        layer(given().bfloat16())[0].float().sin().sum().backward()
        found.append([p.grad for p in layer.parameters()])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("every", [1, 4])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("name", ["elman", "gru", "lstm"])
def test_gives_the_same_with_every_option(name: str, options: dict[str, Any], every: int) -> None:
    x = given()
    assert_same(run(make(name, checkpoint_every=every, **options), x), run(make(name, **options), x))


@pytest.mark.parametrize("every", [1, 2, 4])
@pytest.mark.parametrize("name", LAYERS)
def test_gives_the_same_on_packed_input(name: str, every: int) -> None:
    results = []
    for checkpoint_every in (every, None):
        packed = pack_padded_sequence(given(9), torch.tensor([2, 9, 5, 3]), enforce_sorted=False)
        both = name not in ONE_WAY
        results.append(run(make(name, bidirectional=both, checkpoint_every=checkpoint_every), packed))
    assert_same(*results)


@pytest.mark.parametrize("options", [o for n, o in OPTIONS.items() if "both" not in n])
@pytest.mark.parametrize("name", ONE_WAY)
def test_gives_the_same_with_every_option_of_one_way(name: str, options: dict[str, Any]) -> None:
    x = given()
    assert_same(run(make(name, checkpoint_every=4, **options), x), run(make(name, **options), x))


@pytest.mark.parametrize("name", ONE_WAY)
def test_dropout_between_layers_of_a_step_is_drawn_once(name: str) -> None:
    found = []
    for every in (3, None):
        torch.manual_seed(5)
        found.append(run(make(name, checkpoint_every=every, dropout=0.5), given()))
    assert_same(*found)


@pytest.mark.parametrize("every", [1, 4])
@pytest.mark.parametrize("name", ["elman", "gated", "gru", "lstm", "lstm-peephole", *ONE_WAY])
def test_gives_the_same_from_an_initial_state(name: str, every: int) -> None:
    generator = torch.Generator().manual_seed(3)
    size, layers = 2 if "lstm" in name else 1, 2 if name in ONE_WAY else 1
    states = tuple(torch.randn(layers, 4, 6, generator=generator, dtype=torch.float64) for _ in range(size))
    hx = states if size == 2 else states[0]
    assert_same(run(make(name, checkpoint_every=every), given(), hx), run(make(name), given(), hx))


@pytest.mark.parametrize("part", ["output", "final"])
def test_a_loss_of_one_part_alone(part: str) -> None:
    gradients = []
    for every in (3, 1, None):
        layer = make("lstm", checkpoint_every=every)
        output, (_, c_n) = layer(given())
        (output[4] if part == "output" else c_n).sum().backward()
        gradients.append([p.grad for p in layer.parameters()])
    for found in gradients[:2]:
        assert_same(found, gradients[2])


@pytest.mark.parametrize("every", [1, 3])
def test_frozen_weights_stay_without_gradient(every: int) -> None:
    layer = make("elman", checkpoint_every=every)
    layer.bias_l0.requires_grad_(False)  # type: ignore[union-attr, operator]
    layer(given())[0].sum().backward()
    assert layer.bias_l0.grad is None  # type: ignore[union-attr]
    assert layer.weight_ih_l0.grad is not None  # type: ignore[union-attr]


def test_autocast_is_the_same_both_times() -> None:
    found = []
    for every in (3, None):
        layer = RNN(3, 6, generator=torch.Generator().manual_seed(1), checkpoint_every=every)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            output, _ = layer(given().float())
        output.sum().backward()
        found.append([output.detach(), *(p.grad for p in layer.parameters())])
    # The gradient by the input matrix is a sum in bfloat16, eight bits, taken piece by piece.
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("every", [1, 3])
def test_a_second_derivative_is_refused(every: int) -> None:
    layer, x = make("elman", checkpoint_every=every), given().requires_grad_()
    with pytest.raises(RuntimeError, match="cannot be differentiated again"):
        torch.autograd.grad(layer(x)[0].sum(), x, create_graph=True)


@pytest.mark.parametrize("pieces", [1, 4])
@pytest.mark.parametrize("tapped", [False, True])
@pytest.mark.parametrize("name", LAYERS)
def test_many_gradients_side_by_side(name: str, tapped: bool, pieces: int) -> None:
    """As a Jacobian by `torch.autograd.functional.jacobian(..., vectorize=True)` asks for them."""
    found = []
    for every in (pieces, None):
        layer, x = make(name, checkpoint_every=every), given().requires_grad_()
        with layer.taps() if tapped else nullcontext([]) as taps:
            output = layer(x)[0][-1, :2]
        rows = torch.eye(output.numel(), dtype=output.dtype).view(-1, *output.shape)
        seen = [x, *layer.parameters(), *taps]
        found.append(list(torch.autograd.grad(output, seen, rows, is_grads_batched=True, allow_unused=True)))
    assert_same(*found)


@pytest.mark.parametrize("name", LAYERS)
def test_under_vmap_all_is_kept(name: str) -> None:
    xs, found = torch.stack([given(), -given()]), []
    for every in (4, None):
        layer, x = make(name, checkpoint_every=every), xs.clone().requires_grad_()
        output = torch.vmap(lambda one, layer=layer: layer(one)[0])(x)
        found.append([output.detach(), *torch.autograd.grad(output.sin().sum(), [x, *layer.parameters()])])
    assert_same(*found)


@pytest.mark.parametrize("name", LAYERS)
def test_on_no_device(name: str) -> None:
    layer = make(name, checkpoint_every=4, device="meta")
    output, _ = layer(given().to("meta"))
    assert output.is_meta
    assert output.shape == (11, 4, 6)


@pytest.mark.parametrize("every", [1, 3])
def test_compiles(every: int) -> None:
    torch._dynamo.reset()
    layer, x = make("elman", checkpoint_every=every), given()
    gradients = []
    for way in (layer, torch.compile(layer, backend="aot_eager")):
        layer.zero_grad()
        way(x)[0].sin().sum().backward()
        gradients.append([p.grad for p in layer.parameters()])
    assert_same(*gradients)


@pytest.mark.parametrize("every", [0, -1, 2.5, True])
def test_bad_pieces_are_refused(every: Any) -> None:
    with pytest.raises(ValueError) as refused:
        RNN(3, 6, checkpoint_every=every)
    assert str(refused.value) == f"checkpoint_every must be a whole number of at least 1, got {every!r}"


def test_memory_of_a_long_sequence() -> None:
    text = f"""
import resource, torch
from evenflow import RNN
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
def train(layer, steps):
    output, _ = layer(torch.randn(steps, 16, 2))
    output[-1].sum().backward()
torch.set_num_threads(1)
layer = RNN(2, 128, checkpoint_every=150)
train(layer, 300)
before = peak()
train(layer, {STEPS})
print(peak() - before)
"""
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert float(done.stdout) < MEGABYTES
