"""The last state by one product is the one that the recurrence ends in, and so are all gradients."""

from __future__ import annotations

import pytest
import torch

from evenflow import RNN, ScalarGatedRNN, SequenceModel, fit
from evenflow.activations import Activation
from evenflow.lab import tasks
from evenflow.layers.last_state import last_state
from evenflow.layers.recurrent import Recurrent
from evenflow.probes.model_layer import record_runs
from evenflow.scan.linear_final_state import final_state, pays

MAPS = [
    ("rotations", {}),
    ("exponential", {}),
    ("householder", {"reflectors": 3}),
    ("svd", {"margin": 0.1}),
    ("free", {"init": "glorot_normal"}),
]


def identity(a):
    """An activation of somebody's own."""
    return a + 1


class Loud(RNN):
    """A layer of somebody's own."""

    def forward(self, input, hx=None):
        return super().forward(2 * input, hx)


def by_steps(x, h0, weight_ih, bias, weight_hh):
    """The recurrence, as it is written."""
    h = x.new_zeros(x.shape[1], len(weight_hh)) if h0 is None else h0
    for each in x:
        h = each @ weight_ih.mT + h @ weight_hh.mT + (0 if bias is None else bias)
    return h


@pytest.mark.parametrize("steps", [1, 2, 3, 7, 8, 33])
@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize("with_start", [True, False])
def test_the_sum_is_what_the_steps_end_in(steps, with_bias, with_start):
    generator = torch.Generator().manual_seed(steps)
    draw = lambda *shape: torch.randn(*shape, dtype=torch.float64, generator=generator).requires_grad_()  # noqa: E731
    x, weight_ih, weight_hh = draw(steps, 3, 2), draw(5, 2), (draw(5, 5) / 3).detach().requires_grad_()
    bias, h0 = draw(5) if with_bias else None, draw(3, 5) if with_start else None
    members = [each for each in (x, h0, weight_ih, bias, weight_hh) if each is not None]
    found, expected = (way(x, h0, weight_ih, bias, weight_hh) for way in (final_state, by_steps))
    assert torch.allclose(found, expected, rtol=1e-11, atol=1e-12)
    gradients = [torch.autograd.grad(h.square().sum(), members, allow_unused=True) for h in (found, expected)]
    for one, other in zip(*gradients, strict=True):
        other = torch.zeros_like(one) if other is None else other
        assert torch.allclose(torch.zeros_like(other) if one is None else one, other, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize(("map", "options"), MAPS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(
    ("settings", "given"),
    [({}, False), ({"gain": 1.05}, True), ({"bias": False, "initial_state": "learned"}, False)],
    ids=["plain", "gain, given", "no bias, learned"],
)
def test_a_model_answers_as_its_layer_does(monkeypatch, map, options, dtype, settings, given):
    layer = RNN(2, 10, map=map, activation="identity", dtype=dtype, **options, **settings)
    model = SequenceModel(layer, 3, readout_units=7).to(dtype)
    x = torch.randn(61, 40, 2, dtype=dtype, requires_grad=True)
    h0 = torch.randn(1, 40, 10, dtype=dtype, requires_grad=True) if given else None
    if settings.get("initial_state"):
        with torch.no_grad():
            layer.h0_l0.normal_()

    def answered() -> list[torch.Tensor]:
        outputs, state = model(x, h0)
        wanted = [x, *([h0] if given else []), *model.parameters()]
        return [outputs, state, *torch.autograd.grad(outputs.square().mean() + state.mean(), wanted)]

    found = answered()
    monkeypatch.setattr("evenflow.models.sequence_model.last_state", lambda *_: None)
    expected = answered()
    off = 1e-10 if dtype == torch.float64 else 2e-5
    for one, other in zip(found, expected, strict=True):
        assert (one - other).norm() <= off * other.norm()


def test_no_step_is_run(monkeypatch):
    model = SequenceModel(RNN(1, 8, map="rotations", activation="identity"), 2)

    def refuse(*_):
        raise AssertionError("the layer was run")

    monkeypatch.setattr(Recurrent, "_forward", refuse)
    outputs, state = model(torch.randn(100, 50, 1))
    assert (outputs.shape, state.shape) == ((50, 2), (1, 50, 8))


def test_single_precision_is_as_exact_as_the_recurrence():
    layer = RNN(1, 64, map="rotations", activation="identity")
    exact = RNN(1, 64, map="rotations", activation="identity").double()
    exact.load_state_dict(layer.state_dict())
    x = torch.rand(1000, 30, 1)
    reference = exact(x.double())[1]
    summed, run = ((h - reference).norm() / reference.norm() for h in (last_state(layer, x), layer(x)[1]))
    assert summed <= max(1e-5, 2 * run)


@pytest.mark.parametrize(
    "made",
    [
        lambda: RNN(1, 8, activation="tanh"),
        lambda: RNN(1, 8, 2, activation="identity"),
        lambda: RNN(1, 8, activation="identity", bidirectional=True),
        lambda: RNN(1, 8, activation="identity", engine="reference"),
        lambda: RNN(1, 8, activation="identity", checkpoint_every=10),
        lambda: RNN(1, 8, activation="identity", storage="bfloat16"),
        lambda: RNN(1, 8, activation="identity", leak=0.5),
        lambda: RNN(1, 8, activation=Activation(identity)),
        lambda: Loud(1, 8, activation="identity"),
        lambda: ScalarGatedRNN(1, 8, activation="identity"),
        lambda: torch.nn.RNN(1, 8),
        lambda: RNN(1, 8, activation="identity", dtype=torch.bfloat16),
    ],
)
def test_other_layers_are_run(made):
    layer = made()
    assert last_state(layer, torch.randn(100, 50, 1, dtype=next(layer.parameters()).dtype)) is None


def test_whoever_counts_on_the_steps_has_them():
    layer, x = RNN(1, 8, activation="identity"), torch.randn(100, 50, 1)
    model = SequenceModel(layer, 1)
    assert last_state(layer, x) is not None
    with layer.taps() as taps:
        model(x)[0].sum().backward()
    assert taps[0].grad.shape == (100, 50, 8)
    with record_runs(model) as runs:
        model(x)
    assert len(runs) == 1
    assert last_state(layer, x.double()) is None
    with torch.autocast("cpu", torch.bfloat16):
        assert last_state(layer, x) is None
    asked = []
    torch.func.vmap(lambda part: asked.append(last_state(layer, part)) or part)(x.unsqueeze(0))
    assert asked == [None]


@pytest.mark.parametrize("everywhere", [True, False])
def test_hooks_see_the_layer_called(everywhere):
    layer, seen = RNN(1, 8, activation="identity"), []
    hook = lambda module, *_: seen.append(module)  # noqa: E731
    register = torch.nn.modules.module.register_module_forward_hook if everywhere else layer.register_forward_hook
    with register(hook):
        SequenceModel(layer, 1)(torch.randn(100, 50, 1))
    assert layer in seen


def test_a_penalty_of_the_states_finds_them():
    model = SequenceModel(RNN(2, 8, activation="identity"), 1)
    task, settings = tasks.Adding(length=100), {"steps": 2, "batch_size": 50, "lr": 1e-3, "progress": False}
    assert last_state(model.layer, task.batch(50, torch.Generator()).inputs) is not None
    fit(model, task, penalty="stabilizer(1.0)", **settings)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_where_powers_overflow_the_steps_are_run(dtype):
    """Of what grows only zeros are left in the first steps, as in an image that is dark at the top."""
    layer = RNN(1, 4, activation="identity", dtype=dtype)
    with torch.no_grad():
        layer.weight_hh_l0.copy_(torch.eye(4) * (1.2 if dtype == torch.float32 else 3.0))
    x = torch.zeros(784, 50, 1, dtype=dtype)
    x[-20:] = 1
    assert last_state(layer, x) is None
    model = SequenceModel(layer, 3).to(dtype)
    outputs, _ = model(x)
    outputs.sum().backward()
    assert outputs.isfinite().all()
    assert model.output.weight.grad.isfinite().all()


def test_a_state_of_another_precision_is_taken():
    layer, x = RNN(1, 8, activation="identity"), torch.randn(100, 50, 1)
    h0 = torch.randn(1, 50, 8)
    assert torch.allclose(last_state(layer, x, h0.double()), last_state(layer, x, h0), atol=1e-6)


def test_wrong_input_is_refused_as_the_layer_does():
    layer = RNN(1, 8, activation="identity")
    for x, hx in ((torch.randn(100, 50, 2), None), (torch.randn(100, 50, 1), torch.zeros(1, 3, 8))):
        sentences = []
        for ask in (last_state, lambda layer, x, hx: layer(x, hx)):
            with pytest.raises(ValueError) as refused:
                ask(layer, x, hx)
            sentences.append(str(refused.value))
        assert sentences[0] == sentences[1]


@pytest.mark.parametrize(
    ("steps", "rows", "inputs", "units", "expected"),
    [
        (784, 100, 1, 256, True),
        (1000, 20, 1, 128, True),
        (784, 1, 1, 128, False),
        (784, 50, 28, 128, False),
        (8, 100, 1, 64, False),
    ],
)
def test_it_is_done_where_it_pays(steps, rows, inputs, units, expected):
    assert pays(steps, rows, inputs, units) is expected
