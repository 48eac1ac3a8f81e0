"""Layers in scripts that were written for `torch.nn.RNN`: what else torch and its users do with a module."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, vmap
from torch.nn.utils.rnn import pack_sequence
from torch.utils.checkpoint import checkpoint

from evenflow import SequenceModel, create, maps
from evenflow.cells import Elman
from evenflow.layers.recurrent import Recurrent
from evenflow.systems import SYSTEMS

T, B, I, H = 5, 2, 3, 4
# Fused scans and gradients by hand against the loop and torch's own: a few float64 roundings.
ROUNDING = 1e-10
# The same, in float32.
SINGLE = 2e-5

TRAINED = [name for name in SYSTEMS if name != "esn"]


def made(name: str, dtype: torch.dtype = torch.float64, **options):
    return create(name, I, H, generator=torch.Generator().manual_seed(1), dtype=dtype, **options)


def given(dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(T, B, I, generator=torch.Generator().manual_seed(2), dtype=dtype)


def total(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return layer(x)[0].square().sum()


# torch.func and forward mode


@pytest.mark.parametrize("name", SYSTEMS)
def test_forward_mode_is_the_derivative(name):
    layer, x = made(name), given()
    along = torch.randn(x.shape, generator=torch.Generator().manual_seed(3), dtype=x.dtype)
    (wanted,) = torch.autograd.grad(total(layer, x.requires_grad_()), x)
    x = x.detach()
    _, slope = jvp(lambda v: total(layer, v), (x,), (along,))
    with forward_ad.dual_level(), torch.no_grad():
        dual = forward_ad.unpack_dual(total(layer, forward_ad.make_dual(x, along))).tangent
    for found in (slope, dual):
        assert found.item() == pytest.approx((wanted * along).sum().item(), rel=1e-8)


@pytest.mark.parametrize("name", TRAINED)
def test_gradients_of_functions_are_those_of_a_backward_pass(name):
    layer, x = made(name), given()
    weights = dict(layer.named_parameters())
    found = grad(lambda w: functional_call(layer, w, (x,))[0].square().sum())(weights)
    total(layer, x).backward()
    for key, p in layer.named_parameters():
        wanted = torch.zeros_like(p) if p.grad is None else p.grad
        assert torch.allclose(found[key], wanted, atol=ROUNDING, rtol=1e-7), key


@pytest.mark.parametrize("name", ["rnn", "urnn", "sgornn", "spectral", "ugru", "lstm", "gated-feedback"])
def test_each_sequences_own_gradient(name):
    layer, x = made(name), given()
    weights = dict(layer.named_parameters())
    each = vmap(
        grad(lambda w, one: functional_call(layer, w, (one.unsqueeze(1),))[0].square().sum()), in_dims=(None, 1)
    )
    found = each(weights, x)
    total(layer, x).backward()
    for key, p in layer.named_parameters():
        assert torch.allclose(found[key].sum(0), p.grad, atol=ROUNDING, rtol=1e-7), key


@pytest.mark.parametrize("name", ["rnn", "urnn", "scornn", "ornn", "gru"])
def test_jacobians_and_a_hessian(name):
    layer, x = made(name), given()
    back, forth = (way(lambda v: layer(v)[0])(x) for way in (jacrev, jacfwd))
    assert torch.allclose(back, forth, atol=ROUNDING)
    square = hessian(lambda v: total(layer, v))(x).reshape(x.numel(), -1)
    assert torch.allclose(square, square.T, atol=ROUNDING)
    assert square.abs().max() > 0.1


@pytest.mark.parametrize("name", SYSTEMS)
def test_many_inputs_at_once(name):
    layer = made(name, torch.float32)
    x = torch.randn(3, T, B, I, generator=torch.Generator().manual_seed(2))
    found = vmap(lambda v: layer(v)[0], randomness="error")(x)
    wanted = torch.stack([layer(v)[0] for v in x])
    assert torch.allclose(found, wanted, atol=SINGLE)


# Weights of a wrong shape, which compiled code would read beyond their end.


@pytest.mark.parametrize(
    ("name", "weight", "shape"),
    [("lstm", "weight_hh_l0", (4, 4)), ("rnn", "weight_ih_l0", (4, 5)), ("rnn", "bias_l0", (1,)),
     ("exprnn", "activation_l0", (1,)), ("gru", "weight_hh_l0", (4, 4)), ("gated-feedback", "weight_ih_l1", (4, 5))],
)  # fmt: skip
def test_a_weight_of_a_wrong_shape_is_refused(name, weight, shape):
    layer = made(name)
    wanted = tuple(getattr(layer, weight).shape)
    getattr(layer, weight).data = torch.ones(shape, dtype=torch.float64)
    with pytest.raises(ValueError) as error:
        layer(given())
    assert str(error.value) == f"{weight} must have shape {wanted}, got {shape}"


# Checkpoints, tracing, other devices and dtypes


@pytest.mark.parametrize("name", TRAINED)
def test_checkpoints_of_torch(name):
    layer, x = made(name), given()
    total(layer, x).backward()
    wanted = {key: p.grad for key, p in layer.named_parameters()}
    layer.zero_grad()
    checkpoint(lambda v: total(layer, v), x, use_reentrant=False).backward()
    for key, p in layer.named_parameters():
        assert (p.grad is None) == (wanted[key] is None)
        assert p.grad is None or torch.equal(p.grad, wanted[key])


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("name", SYSTEMS)
def test_a_traced_layer(name, tmp_path):
    layer, x = made(name).eval(), given()
    torch.jit.save(torch.jit.trace(layer, (x,), check_trace=False), tmp_path / "traced.pt")
    again = torch.jit.load(tmp_path / "traced.pt")
    assert torch.allclose(again(2 * x)[0], layer(2 * x)[0], atol=ROUNDING)


@pytest.mark.parametrize("assign", [False, True], ids=["copied", "assigned"])
@pytest.mark.parametrize("name", SYSTEMS)
def test_from_no_device_to_one(name, assign):
    """Constants that are not in the state_dict are made anew."""
    layer, x = made(name), given()
    empty = made(name, device="meta")
    if not assign:
        empty = empty.to_empty(device="cpu")
    empty.load_state_dict(layer.state_dict(), assign=assign)
    assert torch.equal(empty(x)[0], layer(x)[0])
    assert all(b.device.type == "cpu" for b in empty.buffers())


@pytest.mark.parametrize("name", SYSTEMS)
def test_made_and_run_on_no_device(name):
    with torch.device("meta"):
        layer = create(name, I, H)
    assert all(t.is_meta for t in [*layer.parameters(), *layer.buffers()])
    output, _ = layer(torch.empty(T, B, I, device="meta"))
    assert output.is_meta
    assert output.shape == (T, B, H)


@pytest.mark.parametrize("name", SYSTEMS)
def test_the_default_dtype_is_that_of_a_layer(name):
    torch.set_default_dtype(torch.float64)
    try:
        layer = create(name, I, H)
        assert {t.dtype for t in [*layer.parameters(), *layer.buffers()] if t.is_floating_point()} == {torch.float64}
        assert layer(torch.randn(T, B, I))[0].dtype == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("name", ["rnn", "sgornn", "lstm"])
def test_packed_input_under_another_default_device(name):
    layer = made(name)
    packed = pack_sequence([torch.randn(n, I, dtype=torch.float64) for n in (2, 4, 1)], enforce_sorted=False)
    wanted = layer(packed)[0].data
    torch.set_default_device("meta")
    try:
        found = layer(packed)[0].data
    finally:
        torch.set_default_device(None)
    assert torch.equal(found, wanted)


# Bad input


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"dropot": 0.5}, "LSTM has no option 'dropot', nor has its map 'free'; did you mean dropout?"),
        ({"proj_size": 9}, "proj_size must be below hidden_size = 4, got 9"),
        ({"dropout": "0.5"}, "dropout must be a finite number, got '0.5'"),
        ({"forget_bias": "a"}, "forget_bias must be a finite number, got 'a'"),
        ({"dtype": torch.int64}, "dtype must be a floating point torch.dtype, got torch.int64"),
        ({"dtype": "float32"}, "dtype must be a floating point torch.dtype, got 'float32'"),
        ({"generator": 5}, "generator must be a torch.Generator, got 5"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)  # fmt: skip
def test_options_that_will_not_do(options, sentence):
    with pytest.raises(ValueError) as error:
        create("lstm", I, H, **options)
    assert str(error.value).startswith(sentence)


@pytest.mark.parametrize(
    ("name", "state", "sentence"),
    [
        ("rnn", torch.zeros(1, B, H) * 1j, "h0 must hold floating point numbers, got torch.complex64"),
        ("rnn", torch.zeros(1, B, H, device="meta"), "h0 must be on cpu as the input is, got meta"),
        ("rnn", "zero", "the initial state must be one tensor h0, got str 'zero'"),
        ("lstm", (None, None), "the initial state must be a pair (h0, c0), got tuple (None, None)"),
    ],
)  # fmt: skip
def test_states_that_will_not_do(name, state, sentence):
    with pytest.raises(ValueError) as error:
        made(name)(given(), state)
    assert str(error.value) == sentence


def test_inputs_that_will_not_do():
    layer = made("rnn", torch.float32)
    with pytest.raises(
        ValueError, match=r"^input must be torch\.float32 as the layer's weights are, got torch\.float64"
    ):
        layer(given())
    with pytest.raises(ValueError, match=r"^input must be a tensor or a PackedSequence, got list$"):
        layer([1.0])
    with pytest.raises(ValueError, match=r"^input must hold floating point numbers, got torch\.int64$"):
        layer(pack_sequence([torch.ones(2, I, dtype=torch.int64)]))


@pytest.mark.parametrize(
    ("lengths", "sentence"),
    [
        (torch.tensor([T]), "lengths must have shape (2,), one for each sequence, got (1,)"),
        (torch.tensor([T, T + 1]), f"lengths must be from 1 to {T}, the steps there are, got [{T}, {T + 1}]"),
        (torch.tensor([T, 0]), f"lengths must be from 1 to {T}, the steps there are, got [{T}, 0]"),
        (torch.tensor([5.0, 2.0]), "lengths must be a tensor of whole numbers, got torch.float32"),
        ([T, T], "lengths must be a tensor of whole numbers, got list"),
    ],
)
def test_lengths_that_will_not_do(lengths, sentence):
    with pytest.raises(ValueError) as error:
        SequenceModel(made("rnn"), 2)(given(), lengths=lengths)
    assert str(error.value) == sentence


def test_a_model_over_a_layer_with_a_projection():
    model = SequenceModel(nn.LSTM(I, H, proj_size=2), 5)
    assert model(torch.randn(T, B, I))[0].shape == (B, 5)


@pytest.mark.parametrize(
    ("name", "told"),
    [("irnn", "activation='relu'"), ("lstm-1997", "form='1997'"), ("sgornn", "gates='bounded'")],
)
def test_a_layers_text_tells_systems_apart(name, told):
    assert told in repr(made(name))


# What is there already


def test_optimisers_find_parameters_in_their_order():
    """Checkpoints keep an optimiser's numbers by position."""
    model = SequenceModel(made("rnn"), 2, vocabulary=5)
    names = [name for name, _ in model.named_parameters()]
    assert names[0] == "embedding.weight"
    assert names[-2:] == ["output.weight", "output.bias"]


def test_a_device_may_be_a_number():
    if torch.cuda.is_available():
        assert made("rnn", device=0).weight_ih_l0.is_cuda
    else:
        with pytest.raises((AssertionError, RuntimeError)):  # torch's own: there is no GPU
            made("rnn", device=0)


def test_a_layer_from_before_shapes_were_kept():
    layer = made("lstm")
    del layer._shapes
    assert layer(given())[0].shape == (T, B, H)


def test_a_cell_without_input_weights():
    class Own(Elman):
        def project(self, x, weights):
            return x @ weights["mine"].mT

        def start(self, input_size, hidden_size, bias, generator):
            return {"mine": torch.ones(hidden_size, input_size)}

    assert Recurrent(Own(), I, H)(torch.randn(T, B, I))[0].shape == (T, B, H)


def test_a_map_with_a_buffer_of_nothing():
    class Own(maps.Free):
        def __init__(self, rows):
            super().__init__(rows)
            self.register_buffer("nothing", None, persistent=False)

    assert create("rnn", I, H, map=Own).double()(given())[0].shape == (T, B, H)


def test_from_no_device_inside_its_own_context():
    with torch.device("meta"):
        layer = create("ornn", I, H).to_empty(device="cpu")
    wanted = create("ornn", I, H)
    layer.load_state_dict(wanted.state_dict())
    x = given(torch.float32)
    assert torch.equal(layer(x)[0], wanted(x)[0])


def test_numpys_numbers_are_numbers():
    layer = create("lstm", I, H, bias=np.bool_(True), bidirectional=0, dropout=np.float32(0.25), num_layers=2)
    assert (layer.bias, layer.bidirectional, layer.dropout) == (True, False, 0.25)
    with pytest.raises(ValueError, match=r"^bias must be True or False, got 'no'$"):
        create("lstm", I, H, bias="no")
