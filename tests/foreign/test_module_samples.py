"""The calls that PyTorch's own tests make of `nn.RNN`, `GRU` and `LSTM`, made of the layers here."""

from __future__ import annotations

import copy
import io
import itertools
import pickle

import pytest
import torch
from torch import nn

import evenflow

T, B, I, H, P = 3, 2, 4, 3, 2
ROUNDING = 1e-10  # float64: a few roundings
BOTH = (False, True)
# (layer, positional arguments after the two sizes, batched input, initial state given)
SAMPLES = [
    *(
        ("RNN", (layers, nonlinearity, bias, batch_first, 0.0, bidirectional), batched, state)
        for nonlinearity, bias, batch_first, bidirectional, (layers, batched, state) in itertools.product(
            ("tanh", "relu"), BOTH, BOTH, BOTH, ((1, True, True), (2, True, False), (1, False, True), (2, False, False))
        )
    ),
    *(
        ("GRU", (layers, bias, batch_first, 0.0, bidirectional), batched, state)
        for bias, batch_first, bidirectional, (layers, batched, state) in itertools.product(
            BOTH, BOTH, BOTH, ((1, True, True), (2, True, False), (1, False, True), (2, False, False))
        )
    ),
    *(
        ("LSTM", (layers, bias, batch_first, 0.0, bidirectional, projection), batched, state)
        for bias, batch_first, bidirectional, projection, (layers, batched, state) in itertools.product(
            BOTH, BOTH, BOTH, (0, P), ((1, True, True), (2, False, False))
        )
    ),
]


def pair(kind: str, arguments: tuple) -> tuple[nn.RNNBase, evenflow.Recurrent]:
    """torch's layer and ours, made by the same call and given the same weights."""
    torch.manual_seed(0)
    theirs = getattr(nn, kind)(I, H, *arguments, dtype=torch.float64)
    ours = getattr(evenflow, kind)(I, H, *arguments, dtype=torch.float64)
    assert ours.load_state_dict(theirs.state_dict()) == ours.load_state_dict(ours.state_dict())  # all keys matched
    return theirs, ours


def batch(module: nn.RNNBase, batched: bool, state: bool) -> list:
    """An input and, if asked for, initial states."""
    draw = torch.Generator().manual_seed(1)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=draw, dtype=torch.float64, requires_grad=True)

    middle = (B,) if batched else ()
    lead = (B, T) if batched and module.batch_first else (T, *middle)
    rows = module.num_layers * (2 if module.bidirectional else 1)
    inputs: list = [normal(*lead, I)]
    if state:
        h0 = normal(rows, *middle, module.proj_size or H)
        inputs.append((h0, normal(rows, *middle, H)) if isinstance(module, nn.LSTM) else h0)
    return inputs


def flat(values: object) -> list[torch.Tensor]:
    """All tensors of nested tuples, in order."""
    return [values] if isinstance(values, torch.Tensor) else [t for value in values for t in flat(value)]  # type: ignore[attr-defined]


@pytest.mark.parametrize(("kind", "arguments", "batched", "state"), SAMPLES)
def test_a_sample_behaves_as_torchs(kind, arguments, batched, state):
    theirs, ours = pair(kind, arguments)
    inputs = batch(theirs, batched, state)
    expected, result = flat(theirs(*inputs)), flat(ours(*inputs))
    for one, other in zip(result, expected, strict=True):
        assert one.shape == other.shape
        assert torch.allclose(one, other, atol=ROUNDING)

    # Transposed in memory: the layout of the input is no part of its value.
    strided = inputs[0].detach().mT.contiguous().mT
    assert torch.allclose(flat(ours(strided, *inputs[1:]))[0], expected[0], atol=ROUNDING)

    # Gradients, by the input, the states and all weights.
    weights = dict(ours.named_parameters())
    back = torch.autograd.grad(sum(t.square().sum() for t in result), [*flat(inputs), *weights.values()])
    wanted = torch.autograd.grad(
        sum(t.square().sum() for t in expected), [*flat(inputs), *theirs.parameters()], retain_graph=True
    )
    for one, other in zip(back, wanted[: len(flat(inputs))], strict=False):
        assert torch.allclose(one, other, atol=1e-9)
    by_name = dict(zip((name for name, _ in theirs.named_parameters()), wanted[len(flat(inputs)) :], strict=True))
    for name, gradient in zip(weights, back[len(flat(inputs)) :], strict=True):
        if name.startswith("weight_ih") or name.startswith("weight_hr"):
            assert torch.allclose(gradient, by_name[name], atol=1e-9), name

    # Copies of every kind compute the same.
    saved = io.BytesIO()
    torch.save(ours.state_dict(), saved)
    saved.seek(0)
    loaded = getattr(evenflow, kind)(I, H, *arguments, dtype=torch.float64)
    loaded.load_state_dict(torch.load(saved))
    for layer in (pickle.loads(pickle.dumps(ours)), copy.deepcopy(ours), loaded, evenflow.from_torch(theirs)):
        assert torch.allclose(flat(layer(*inputs))[0], expected[0], atol=ROUNDING)
    again = evenflow.to_torch(ours)
    assert type(again) is type(theirs)
    assert torch.allclose(flat(again(*inputs))[0], expected[0], atol=ROUNDING)

    # Without data.
    hollow = getattr(evenflow, kind)(I, H, *arguments, device="meta")
    shapes = flat(hollow(*(torch.empty_like(v, device="meta", dtype=torch.float32) for v in inputs[:1])))
    assert [t.shape for t in shapes] == [t.shape for t in expected]


@pytest.mark.parametrize(("kind", "arguments", "batched", "state"), SAMPLES)
def test_second_derivatives_of_a_sample(kind, arguments, batched, state):
    theirs, ours = pair(kind, arguments)
    if "relu" in arguments:  # away from the kink, where finite differences mean nothing
        with torch.no_grad():
            for p in ours.parameters():
                p.add_(0.1)
    inputs = batch(theirs, batched, state)
    weights = [p.detach().clone().requires_grad_() for p in ours.parameters()]
    names = [name for name, _ in ours.named_parameters()]

    def run(*values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x, rest = values[0], values[1 : len(flat(inputs))]
        states = (tuple(rest) if len(rest) > 1 else rest[0],) if rest else ()
        parameters = dict(zip(names, values[len(flat(inputs)) :], strict=True))
        return tuple(flat(torch.func.functional_call(ours, parameters, (x, *states))))

    values = (*flat(inputs), *weights)
    assert torch.autograd.gradcheck(run, values, fast_mode=True)
    assert torch.autograd.gradgradcheck(run, values, fast_mode=True)


def test_there_are_as_many_samples_as_torch_has():
    assert len(SAMPLES) >= 112
