"""The doctor on models with known gradients, and whether its advice helps."""

from __future__ import annotations

import math
from collections import OrderedDict

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

import evenflow
from evenflow import LSTM, RNN, SequenceModel, create
from evenflow.bounds import scalar_gate_gradients
from evenflow.lab.diagnosis import doctor
from evenflow.lab.diagnosis.advice import advise
from evenflow.lab.diagnosis.diagnose import _afford
from evenflow.probes import jacobian_norms
from evenflow.systems import SYSTEMS

ESTIMATED = 0.25  # relative: 16 random vectors for at most 24 numbers, and four sequences
STEPS = 120


def scaled(factor, activation="identity"):
    """An orthogonal matrix times a factor, and nothing else: the gradient changes by the factor each step."""
    layer = RNN(2, 16, activation=activation, dtype=torch.float64)
    with torch.no_grad():
        layer.weight_hh_l0.mul_(factor)
        layer.weight_ih_l0.mul_(1e-3)
    return layer


def inputs(width=2, steps=STEPS):
    return torch.randn(steps, 5, width, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize(
    ("factor", "word", "lag"),
    [
        (0.9, "vanishes", 66),
        (0.5, "vanishes", 10),
        (1.0, "steady", None),
        (1.1, "explodes", 73),
        (0.99, "steady", None),
    ],
)
def test_a_known_factor_is_found(factor, word, lag):
    found = doctor(scaled(factor), inputs().double())
    assert (found.word, found.lag) == (word, lag)  # the first lag with factor^lag beyond a thousandth or a thousand
    assert found.rate == pytest.approx(factor, rel=1e-6)
    np.testing.assert_allclose(found.profile, factor ** np.arange(STEPS), rtol=1e-6)
    assert found.band.lower_rate == pytest.approx(factor)
    assert found.band.upper == pytest.approx(factor ** (STEPS - 1), rel=1e-4)  # orthogonal as float32 has it
    assert found.spectra[0].max == pytest.approx(factor)


def test_a_steady_gradient_that_fades_says_when_it_will_have():
    text = " ".join(str(doctor(scaled(0.99), inputs().double())).split())
    assert f"Measured: gradients are steady over these {STEPS} steps" in text
    assert "over ever more steps it vanishes." in text  # the theorem is about the limit, and no contradiction
    assert f"after about {math.log(1e-3) / math.log(0.99):,.0f} steps" in text


@pytest.mark.parametrize("make", [nn.RNN, nn.GRU, nn.LSTM, LSTM])
def test_the_profile_is_the_jacobians(make):
    layer, x = make(2, 12), inputs(steps=20)
    found = doctor(layer, x)
    exact = jacobian_norms(layer, x[:, :4], of="state", method="exact").frobenius[::-1]
    size = 24 if "LSTM" in type(layer).__name__ else 12
    np.testing.assert_allclose(found.profile, np.sqrt((exact**2).mean(1) / size), rtol=ESTIMATED)


def test_checkpoints_change_nothing():
    model = SequenceModel(create("lstm", 2, 8, checkpoint_every=7), 1)
    plain = SequenceModel(create("lstm", 2, 8), 1)
    plain.load_state_dict(model.state_dict())
    batch = (inputs(steps=30), torch.zeros(5, 1))
    assert str(doctor(model, batch, nn.functional.mse_loss)) == str(doctor(plain, batch, nn.functional.mse_loss))


def test_the_bounds_of_scalar_gates_on_the_gradients_of_weights():
    x = inputs(steps=30)
    model = SequenceModel(create("sgornn", 2, 8), 1)
    limits = scalar_gate_gradients(model, x)
    text = " ".join(str(doctor(model, x)).split())
    assert f"gradients are at most {limits.weight_ih:.3g} for an entry of the input matrix; " in text
    assert f"; {limits.raw_sharp:.3g} for a parameter of the map; " in text
    assert f"; {limits.weight_hh:.3g}, as a norm, for the recurrent matrix." in text
    for other in (SequenceModel(create("rnn", 2, 8), 1), create("sgornn", 2, 8)):
        assert "scalar gates" not in str(doctor(other, x)), "another cell, or no readout"


@pytest.mark.parametrize("name", SYSTEMS)
def test_every_system_fits_on_one_screen(name):
    text = str(doctor(create(name, 2, 8), inputs(steps=30)))
    lines = text.splitlines()
    assert len(lines) <= 30
    assert max(map(len, lines)) <= 120
    assert "nan" not in text
    for start in ("Measured: gradients ", "Memory: ", "Recurrent matri", "Theory: ", "To change:", "Norm at lag: "):
        assert any(line.startswith(start) for line in lines), start


VANISHING = {
    "torch rnn": lambda: nn.RNN(2, 16),
    "torch gru": lambda: nn.GRU(2, 16),
    "torch lstm": lambda: nn.LSTM(2, 16),
    "gru": lambda: create("gru", 2, 16),
    "lstm": lambda: LSTM(2, 16, forget_bias=0.0),
    "tanh": lambda: scaled(0.8, "tanh").float(),
    "sgornn": lambda: create("sgornn", 2, 16, alpha=0.1, beta=0.7),
    "stack": lambda: nn.RNN(2, 16, 2, bidirectional=True),
}


@pytest.mark.parametrize("name", VANISHING)
def test_advice_is_code_that_helps(name):
    """Each line is run as it stands; what it makes remembers longer, and the first one is enough."""
    torch.manual_seed(0)
    model = VANISHING[name]()
    before = doctor(model, inputs())
    assert before.word == "vanishes"
    words = []
    for advice in before.advice:
        model = VANISHING[name]()
        names = {"evenflow": evenflow, "model": model}
        if advice.code.startswith("evenflow.attach") or ".data[" in advice.code:
            exec(advice.code, names)
        else:
            model = eval(advice.code, names)
        after = doctor(model, inputs())
        assert after.rate > before.rate
        words.append(after.word)
    assert words[0] == "steady" if name != "stack" else "steady" in words


def test_advice_against_explosions_is_code_that_helps():
    before = doctor(scaled(2.0, "relu").float(), inputs())
    assert before.word == "explodes"
    layers = [a.code for a in before.advice if a.code.startswith("evenflow.RNN")]
    assert len(layers) == 2
    for code in layers:
        assert doctor(eval(code, {"evenflow": evenflow}), inputs()).word != "explodes"


@pytest.mark.parametrize("name", SYSTEMS)
@pytest.mark.parametrize("word", ["vanishes", "explodes", "steady"])
def test_there_is_advice_for_every_system(name, word):
    found = advise(create(name, 2, 8), word, 100)
    assert found
    for advice in found:
        assert advice.why.endswith(".")
        if advice.code is not None and advice.code.startswith(("evenflow.create", "evenflow.RNN", "evenflow.LSTM")):
            eval(advice.code, {"evenflow": evenflow})


class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.rnn, self.head = nn.Embedding(9, 4), nn.GRU(4, 8, 2, batch_first=True), nn.Linear(8, 9)

    def forward(self, tokens):
        return {"logits": self.head(self.rnn(self.embedding(tokens))[0])}


def test_a_users_own_model():
    model = Own().train()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    before = torch.get_rng_state()
    found = doctor(model, torch.arange(60).remainder(9).view(2, 30))
    assert found.steps == 30
    assert len(found.rates) == 2
    assert "model.rnn.bias_hh_l0" in str(found)
    assert model.training
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())


PLACES = {
    "model[0]": lambda rnn: nn.Sequential(rnn),
    "model.rnn": lambda rnn: nn.ModuleDict({"rnn": rnn}),
    'model.get_submodule("0")': lambda rnn: nn.ModuleDict({"0": rnn}),
    'model.get_submodule("my-rnn")': lambda rnn: nn.Sequential(OrderedDict([("my-rnn", rnn)])),
    'model[1][0].get_submodule("lambda")': lambda rnn: nn.ModuleList(
        [nn.Identity(), nn.ModuleList([nn.ModuleDict({"lambda": rnn})])]
    ),
}


class Around(nn.Module):
    """Calls the one layer of its parts."""

    def __init__(self, parts):
        super().__init__()
        self.parts = parts

    def forward(self, x):
        return next(part for part in self.parts.modules() if isinstance(part, nn.RNN))(x)


@pytest.mark.parametrize("place", PLACES)
def test_advice_names_the_layer_as_python_has_it(place):
    torch.manual_seed(0)
    model = Around(PLACES[place](nn.RNN(2, 16)))
    place = place.replace("model", "model.parts", 1)
    code = next(a.code for a in doctor(model, inputs()).advice if "attach" in a.code)
    assert code.startswith(f'evenflow.attach({place}, "weight_hh_l0"')
    exec(code, {"evenflow": evenflow, "model": model})
    assert doctor(model, inputs()).spectra[0].deviation < 1e-5


def test_gradients_may_be_off():
    model, batch = SequenceModel(nn.GRU(2, 8), 1), (inputs(steps=20), torch.zeros(5, 1))
    expected = str(doctor(model, batch, nn.functional.mse_loss))
    with torch.no_grad():
        assert str(doctor(model, batch, nn.functional.mse_loss)) == expected


def test_ragged_batches_and_a_loss():
    model = SequenceModel(nn.LSTM(2, 8), 1)
    lengths = torch.tensor([40, 5, 33, 38, 35])
    batch = (inputs(steps=40), torch.zeros(5, 1), lengths)
    found = doctor(model, batch, lambda outputs, targets: (outputs - targets).square().mean())
    assert found.steps == 33  # the shortest of the four longest
    assert found.flow.shape == (1, 40)
    assert "Loss: " in str(found)
    packed = pack_padded_sequence(inputs(steps=40), lengths, enforce_sorted=False)
    assert doctor(model.layer, packed).steps == 33


def test_a_stack_vanishes_only_if_all_of_it_does():
    layer = RNN(2, 16, 2, activation="identity", dtype=torch.float64)
    with torch.no_grad():
        layer.weight_hh_l1.mul_(0.5)
    found = doctor(layer, inputs().double())
    assert found.word == "steady"
    assert found.rates == pytest.approx((1.0, 0.5))


def test_states_that_overflow_are_looked_at_until_they_do():
    layer = scaled(1e4)
    found = doctor(layer, 1e6 * inputs().double())
    assert found.word == "explodes"
    assert found.steps < 15
    assert found.rate == pytest.approx(1e4)


def test_long_and_wide_layers_are_cut_to_what_seconds_allow():
    assert doctor(nn.RNN(2, 4), inputs(), steps=50).steps == 50
    x = torch.zeros(2000, 4, 3)
    assert (len(_afford(nn.RNN(3, 64), x, 1000)[0]), _afford(nn.RNN(3, 64), x, 1000)[1]) == (1000, 16)
    cut, vectors = _afford(nn.LSTM(3, 1024), x, 1000)
    assert 100 < len(cut) < 200
    assert vectors == 4


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: doctor(nn.Linear(2, 2), torch.ones(3, 1, 2)),
            "model must hold one recurrent layer, of evenflow or torch's RNN, GRU or LSTM, got Linear with none",
        ),
        (
            lambda: doctor(nn.GRU(2, 2), {}),
            "batch must be inputs, or (inputs, targets) with lengths or without, got dict",
        ),
        (
            lambda: doctor(nn.GRU(2, 2), torch.ones(3, 1, 2), nn.MSELoss()),
            "batch must hold targets for the loss: a tuple (inputs, targets), got inputs alone",
        ),
        (
            lambda: doctor(nn.GRU(2, 2), torch.ones(3, 1, 2), steps=0),
            "steps must be a whole number of at least 1, got 0",
        ),
        (
            lambda: doctor(nn.GRU(2, 2), torch.full((3, 1, 2), math.nan)),
            "the layer's states must be finite, got infinite or nan values at the first step",
        ),
        (
            lambda: doctor(nn.GRU(3, 2), torch.ones(10, 0, 3)),
            "inputs must hold at least one sequence of at least one time step, got shape (10, 0, 3)",
        ),
        (
            lambda: doctor(SequenceModel(RNN(3, 2), 1), torch.ones(10, 0, 3)),
            "inputs must hold at least one sequence of at least one time step, got shape (10, 0, 3)",
        ),
    ],
    ids=["model", "batch", "targets", "steps", "nan", "empty", "empty model"],
)
def test_refuses(call, message):
    with pytest.raises(ValueError) as refused:
        call()
    assert str(refused.value) == message
