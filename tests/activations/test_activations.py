"""The activations: values, slopes and their bounds, trained numbers, names, and each of them in layers."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from math import inf

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_sequence

from evenflow import MLP, RNN, SCRN, ScalarGatedRNN, SequenceModel, SpectralMLP, create
from evenflow.activations import ACTIVATIONS, Activation, ActivationChoice, activation, make
from evenflow.bounds import gradient_band
from evenflow.bounds.model_sizes import is_tame
from evenflow.models.population import Population
from evenflow.step import translate
from evenflow.step.differentiate import differentiate

ROUNDING = 1e-12  # slopes are sums and products of a handful of doubles
EXACT = {"atol": 1e-12, "rtol": 1e-12}
ENGINES = ("auto", "torch", "reference")
SEVERAL = [*ACTIVATIONS, "leaky(0.5)", "prelu(0.7)", "saturated(0.1)"]
TRAINED = [name for name, f in ACTIVATIONS.items() if f.trained]
# [β, γ] where every value between, or near to them, is some unit's slope; others reach no more than they say.
ATTAINED = {
    "identity": (1, 1),
    "relu": (0, 1),
    "leaky": (0.01, 1),
    "leaky(0.5)": (0.5, 1),
    "tanh": (0, 1),
    "sigmoid": (0, 0.25),
    "hardtanh": (0, 1),
    "softsign": (0, 1),
    "sin": (0, 1),
    "abs": (1, 1),
    "modrelu": (0, 1),
    "saturated": (0, 1),
    "oplu": (1, 1),
}
# The most numbers and marks, of a byte each, that the backward pass keeps of a unit and step besides the states.
KEPT = {
    **dict.fromkeys(["identity", "relu", "tanh", "sigmoid"], (0, 0)),
    **dict.fromkeys(["leaky", "abs", "modrelu", "hardtanh"], (0, 1)),
    "oplu": (0, 0.5),
    **dict.fromkeys(["prelu", "softsign", "sin", "saturated", "complex_modrelu"], (1, 0)),
}

numbers = st.lists(st.floats(-50, 50), min_size=8, max_size=8).map(lambda v: torch.tensor(v, dtype=torch.float64))


def swish_start(size: int, generator: torch.Generator | None, *, first: float = 1.0) -> Tensor:
    return torch.full((size,), first)


@activation("a σ(p a)", start=swish_start)
def swish(a: Tensor, p: Tensor) -> Tensor:
    """Of somebody's own, with trained numbers and a constant."""
    return a * torch.sigmoid(p * a)


def cubed(a: Tensor) -> Tensor:
    return torch.tanh(a) ** 3


OWN: dict[str, ActivationChoice] = {
    "a function of torch": torch.sin,
    "a function": cubed,
    "a lambda": lambda a: torch.tanh(a) / 2,
    "a module": nn.GELU(),
    "an Activation": Activation(nn.functional.softplus, slopes=(0, 1)),
    "with trained numbers": swish,
    "with another constant": swish.given(first=0.5),
}


def parameter(f: Activation, size: int = 8) -> Tensor | None:
    value = f.start(size, torch.Generator().manual_seed(0))
    return None if value is None else value.double()


def jacobian(f: Activation, a: Tensor, p: Tensor | None) -> Tensor:
    return torch.autograd.functional.jacobian(lambda v: f(v, p), a)  # type: ignore[no-any-return]


def away_from_kinks(a: Tensor) -> Tensor:
    """No entry near 0, ±1 or, among the small ones, modrelu's thresholds, and no pair of equals."""
    a = torch.where((a.abs() < 0.02) | ((a.abs() - 1).abs() < 1e-3), a + 0.3, a)
    return torch.where((a - a.roll(4)).abs() < 1e-3, a + torch.arange(8) / 7 + 0.05, a)


# Values.


@pytest.mark.parametrize(
    ("name", "a", "wanted"),
    [
        ("identity", [-2.0, 3.0], [-2.0, 3.0]),
        ("relu", [-2.0, 3.0], [0.0, 3.0]),
        ("leaky(0.5)", [-2.0, 3.0], [-1.0, 3.0]),
        (" leaky( 5e-1 ) ", [-2.0, 3.0], [-1.0, 3.0]),
        ("tanh", [0.0, 100.0], [0.0, 1.0]),
        ("sigmoid", [0.0, 100.0], [0.5, 1.0]),
        ("hardtanh", [-2.0, -1.0, -0.5, 0.0, 1.0, 3.0], [-1.0, -1.0, -0.5, 0.0, 1.0, 1.0]),
        ("softsign", [-3.0, 0.0, 1.0], [-0.75, 0.0, 0.5]),
        ("sin", [0.0], [0.0]),
        ("abs", [-2.0, 3.0], [2.0, 3.0]),
        ("oplu", [-2.0, 3.0], [3.0, -2.0]),
        ("oplu", [3.0, -2.0], [3.0, -2.0]),
    ],
)
def test_values(name: str, a: list[float], wanted: list[float]) -> None:
    assert make(name)(torch.tensor(a)).tolist() == wanted


def test_values_with_trained_numbers() -> None:
    a = torch.tensor([-2.0, 0.5, 3.0, 0.0])
    assert make("prelu")(a, torch.tensor([0.5])).tolist() == [-1.0, 0.5, 3.0, 0.0]
    assert make("modrelu")(a, torch.tensor([-1.0, -1.0, 1.0, 1.0])).tolist() == [-1.0, 0.0, 4.0, 0.0]
    pairs = make("complex_modrelu")(torch.tensor([3.0, 0.3, 4.0, 0.4]), torch.tensor([-1.0, -1.0]))
    torch.testing.assert_close(pairs, torch.tensor([2.4, 0.0, 3.2, 0.0]))


def test_saturated_is_tanh_first_and_nearly_linear_for_small_numbers() -> None:
    a = torch.linspace(-3, 3, 7, dtype=torch.float64)
    one, small = (make(f"saturated({s})") for s in (1, 0.01))
    torch.testing.assert_close(one(a, parameter(one, 7)), torch.tanh(a), atol=1e-7, rtol=1e-7)
    torch.testing.assert_close(small(a, parameter(small, 7)), a, atol=0, rtol=1e-3)
    assert make("saturated")(a, torch.zeros(7, dtype=torch.float64)).isfinite().all()


@pytest.mark.parametrize("name", ["modrelu", "complex_modrelu"])
@pytest.mark.parametrize("p", [-0.5, 0.0, 0.5])
def test_zero_has_no_direction(name: str, p: float) -> None:
    f = make(name)
    a = torch.tensor([0.0, 2.0, 0.0, 0.0, 0.0, -2.0, 0.0, 1.0], requires_grad=True)
    trained = torch.full((8 if name == "modrelu" else 4,), p, requires_grad=True)
    h = f(a, trained)
    by_a, by_p = torch.autograd.grad(h.sum(), [a, trained])
    off = [0, 2, 3, 4, 6] if name == "modrelu" else [0, 2, 4, 6]
    assert not h[off].any()
    assert not by_a[off].any()
    assert by_a.isfinite().all()
    assert by_p.isfinite().all()


@pytest.mark.parametrize("name", SEVERAL)
@pytest.mark.parametrize("engine", ENGINES)
def test_nan_passes(name: str, engine: str) -> None:
    f = make(name)
    a = torch.randn(8, dtype=torch.float64)
    a[3] = torch.nan
    assert f(a, parameter(f))[3].isnan()
    layer = RNN(3, 8, activation=name, engine=engine)
    x = torch.randn(5, 2, 3)
    x[2, 1] = torch.nan
    states = layer(x)[0]
    assert states[2:, 1].isnan().all()
    assert states[:2].isfinite().all()
    assert states[:, 0].isfinite().all()


# Slopes.


@pytest.mark.parametrize("name", SEVERAL)
@settings(max_examples=40, deadline=None)
@given(a=numbers)
def test_slopes_keep_their_bounds(name: str, a: Tensor) -> None:
    """The singular values of the Jacobian lie in [β, γ]: slopes of units, and the permutation of oplu."""
    f = make(name)
    p = parameter(f)
    values = torch.linalg.svdvals(jacobian(f, away_from_kinks(a), p))
    for low, high in (f.slope_bounds, f.slopes(p)):
        assert values.min() >= low - ROUNDING
        assert values.max() <= high + ROUNDING


@pytest.mark.parametrize("name", [name for name in TRAINED if name != "complex_modrelu"])
@settings(max_examples=40, deadline=None)
@given(a=numbers, p=st.floats(-2, 2))
def test_slopes_keep_their_bounds_wherever_training_goes(name: str, a: Tensor, p: float) -> None:
    f = make(name)
    trained = torch.full((1 if name == "prelu" else 8,), p, dtype=torch.float64)
    a = torch.where((a.abs() - abs(p)).abs() < 1e-3, a + 0.4, a)
    values = torch.linalg.svdvals(jacobian(f, away_from_kinks(a), trained))
    low, high = f.slopes(trained)
    assert low - ROUNDING <= values.min() <= values.max() <= high + ROUNDING
    assert f.slope_bounds[0] <= low <= high <= f.slope_bounds[1]


@pytest.mark.parametrize(("name", "bounds"), ATTAINED.items())
def test_bounds_are_attained(name: str, bounds: tuple[float, float]) -> None:
    f = make(name)
    assert f.slope_bounds == bounds
    a = torch.linspace(-20, 20, 4001, dtype=torch.float64)[:4000] + 1e-4
    p = parameter(f, len(a))
    if name == "modrelu":
        p = torch.full((len(a),), -0.5, dtype=torch.float64)
    a.requires_grad_()
    slopes = torch.autograd.grad(f(a, p).sum(), a)[0].abs()
    assert slopes.min().item() == pytest.approx(bounds[0], abs=3e-3)
    assert slopes.max().item() == pytest.approx(bounds[1], abs=3e-3)


@settings(max_examples=40, deadline=None)
@given(a=numbers, b=st.floats(-1, 1))
def test_slopes_of_complex_modrelu(a: Tensor, b: float) -> None:
    """Along a pair 0 or 1, across it 0 or 1 + b / |a|: at most 1 unless b is above 0."""
    a = torch.where(a.abs() < 1e-3, 1.0, a)
    sizes = a.view(2, 4).norm(dim=0)
    on = (sizes + b > 0).double()
    expected = torch.cat([on, on * (1 + b / sizes)])
    f, p = make("complex_modrelu"), torch.full((4,), b, dtype=torch.float64)
    values = torch.linalg.svdvals(jacobian(f, a, p))
    torch.testing.assert_close(values, expected.sort(descending=True).values, atol=1e-9, rtol=1e-9)
    assert f.slopes(p) == ((0, 1) if b <= 0 else (0, inf))


def test_slopes_that_are_trained_or_not_known() -> None:
    assert make("prelu(0.7)").slope_bounds == (0, inf)
    assert make("prelu").slopes(torch.tensor([-3.0])) == (1, 3)
    assert make("complex_modrelu").slope_bounds == make(torch.sin).slope_bounds == (0, inf)


@pytest.mark.parametrize("name", SEVERAL)
def test_derivatives_are_those_of_finite_differences(name: str) -> None:
    f = make(name)
    a = away_from_kinks(torch.randn(4, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64))
    given = [v.requires_grad_() for v in (a, parameter(f)) if v is not None]
    assert torch.autograd.gradcheck(f, given)


@pytest.mark.parametrize(("name", "most"), KEPT.items())
def test_little_is_kept_for_the_backward_pass(name: str, most: tuple[float, float]) -> None:
    f, n = make(name), 6
    p = f.start(n)
    sizes = [] if p is None else [len(p)]
    found = differentiate(translate(lambda a, h, U, p=None: f(a + h @ U.mT, p), n, [n], [(n, n)], sizes))
    kept = [sum(v.width for v in several) / n for several in (found.numbers, found.marks)]
    assert kept[0] <= most[0]
    assert kept[1] <= most[1]


def test_every_activation_has_tests_of_its_own() -> None:
    assert set(ACTIVATIONS) == set(KEPT)
    assert set(ACTIVATIONS) <= {*ATTAINED, "prelu", "complex_modrelu"}


# Trained numbers.


def test_starts() -> None:
    for name, f in ACTIVATIONS.items():
        first = f.start(6)
        assert f.trained == (first is not None)
        assert f.trained == (name in ("prelu", "modrelu", "saturated", "complex_modrelu"))
    sizes = {name: len(make(name).start(6)) for name in TRAINED}  # type: ignore[arg-type]
    assert sizes == {"prelu": 1, "modrelu": 6, "saturated": 6, "complex_modrelu": 3}
    assert make("prelu(0.5)").start(6) == torch.tensor([0.5])
    assert make("prelu").start(6) == torch.tensor([0.25])


@pytest.mark.parametrize("name", ["modrelu", "complex_modrelu"])
def test_modrelu_starts_near_zero_from_its_generator(name: str) -> None:
    first, second = (make(name).start(100, torch.Generator().manual_seed(3)) for _ in range(2))
    assert first is not None
    assert second is not None
    assert torch.equal(first, second)
    assert torch.equal(first, torch.empty(len(first)).uniform_(-0.01, 0.01, generator=torch.Generator().manual_seed(3)))


# Names.


@pytest.mark.parametrize("name", [*SEVERAL, "prelu(0.125)"])
def test_key_makes_it_again(name: str) -> None:
    f = make(name)
    again = make(f.key)
    assert (again.key, again.constants, again.slope_bounds) == (f.key, f.constants, f.slope_bounds)
    assert again.function is f.function
    assert make(f) is f
    assert repr(f) == f.key
    assert f.equation
    assert ACTIVATIONS[f.name].__doc__


def test_keys() -> None:
    assert [make(name).key for name in ("relu", "leaky", "prelu(.5)")] == ["relu", "leaky(0.01)", "prelu(0.5)"]
    assert [make(f).key for f in (torch.sin, cubed, nn.GELU(), swish)] == ["sin", "cubed", "GELU", "swish(1.0)"]


@pytest.mark.parametrize("way", [copy.deepcopy, lambda f: pickle.loads(pickle.dumps(f))], ids=["copied", "pickled"])
@pytest.mark.parametrize("choice", [*SEVERAL, *(each for each in OWN if each != "a lambda")])
def test_copies(choice: str, way: Callable[[object], Activation]) -> None:
    f = make(OWN.get(choice, choice))
    again = way(f)
    assert (again.key, again.constants, again.slope_bounds) == (f.key, f.constants, f.slope_bounds)
    a, p = torch.randn(3, 8), f.start(8)
    assert torch.equal(again(a, p), f(a, p))
    assert (again is f) == (choice in ACTIVATIONS or f is swish)
    layer = RNN(2, 8, activation=f)
    x = torch.randn(4, 3, 2)
    assert torch.equal(way(layer)(x)[0], layer(x)[0])  # type: ignore[operator,arg-type]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("rellu", "unknown activation 'rellu', did you mean relu"),
        ("leaky(.)", "unknown activation 'leaky\\(\\.\\)', did you mean leaky"),
        ("??", "unknown activation '\\?\\?', known are abs"),
        (3, "unknown activation 3, known are abs"),
        ("tanh(2)", "activation 'tanh' takes no number, got 'tanh\\(2\\)'"),
        ("leaky(1.5)", "the slope of leaky must lie between 0 and 1, got 1.5"),
        ("leaky(0)", "the slope of leaky must lie between 0 and 1, got 0.0"),
        ("saturated(0)", "the start of saturated must be at least 0.01, got 0.0"),
        (nn.ReLU, "must be a name, a function of a tensor or an Activation, got the class ReLU"),
        (nn.PReLU(), "activation PReLU\\(num_parameters=1\\) has trained numbers of its own"),
        (lambda a, *, slope: slope * a, "the constant 'slope' of <lambda> must have a default"),
    ],
)
def test_what_will_not_do(name: ActivationChoice, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(name)


def test_constants_have_names() -> None:
    assert make("leaky").given(slope=0.5).key == "leaky(0.5)"
    assert make("leaky(0.5)").given(slope=0.25).key == "leaky(0.25)"
    with pytest.raises(ValueError, match="activation 'leaky' has no constant 'scale'; it has slope"):
        make("leaky").given(scale=2)
    with pytest.raises(ValueError, match="activation 'tanh' has no constant 'scale'; it has none"):
        make("tanh").given(scale=2)


@pytest.mark.parametrize(("name", "does"), [("oplu", "sorts"), ("complex_modrelu", "shrinks")])
def test_pairs_need_an_even_size(name: str, does: str) -> None:
    message = f"{name} {does} pairs of units, so hidden_size must be even, got 7"
    with pytest.raises(ValueError, match=message):
        make(name).start(7)
    with pytest.raises(ValueError, match=message):
        RNN(2, 7, activation=name)


# In layers.


def compare(layer: nn.Module, lengths: list[int], inputs: int = 3) -> None:
    """Outputs, final states and all gradients of every engine, on sequences of these lengths."""
    generator = torch.Generator().manual_seed(7)
    sequences = [torch.randn(n, inputs, generator=generator, dtype=torch.float64) for n in lengths]
    if any(n != lengths[0] for n in lengths):
        x = pack_sequence(sequences, enforce_sorted=False)
        data = x.data
    else:
        x = data = torch.stack(sequences, 1)
    data.requires_grad_()
    results = []
    for engine in ENGINES:
        layer.engine = engine  # type: ignore[assignment]
        output, final = layer(x)
        output = output if isinstance(output, Tensor) else output.data
        weight = torch.randn(output.shape, generator=torch.Generator().manual_seed(8), dtype=torch.float64)
        loss = (output * weight).sum() + final.square().sum()
        gradients = torch.autograd.grad(loss, [data, *layer.parameters()])
        results.append([output, final, *gradients])
    for other in results[:-1]:
        for found, wanted in zip(other, results[-1], strict=True):
            torch.testing.assert_close(found, wanted, **EXACT)


@pytest.mark.parametrize("lengths", [[6, 6, 6], [3, 6, 1, 4]], ids=["even", "ragged"])
@pytest.mark.parametrize("hidden", [7, 8, 1, 34])
@pytest.mark.parametrize("name", SEVERAL)
def test_engines_agree(name: str, hidden: int, lengths: list[int]) -> None:
    hidden += hidden % 2 if make(name).paired else 0
    torch.manual_seed(0)
    layer = RNN(3, hidden, activation=name, initial_state="learned", dtype=torch.float64)
    with torch.no_grad():
        layer.h0_l0.normal_()
        if "modrelu" in name:
            layer.activation_l0.mul_(30)  # some units off, some above their threshold
    compare(layer, lengths)


@pytest.mark.filterwarnings("error")  # which say where the plain loop runs
@pytest.mark.parametrize("choice", OWN)
def test_engines_agree_on_functions_of_ones_own(choice: str) -> None:
    compare(RNN(3, 7, activation=OWN[choice], dtype=torch.float64), [3, 6, 1, 4])


@pytest.mark.parametrize(
    "made",
    [
        lambda name: ScalarGatedRNN(3, 6, activation=name, dtype=torch.float64),
        lambda name: RNN(3, 6, 2, activation=name, leak=0.5, gain=1.1, bidirectional=True, dtype=torch.float64),
        lambda name: SCRN(3, 6, context_size=2, activation=name, dtype=torch.float64),
        lambda name: create("urnn", 3, 6, activation=name, dtype=torch.float64),
    ],
    ids=["gated", "leaky units", "scrn", "created"],
)
@pytest.mark.parametrize("name", [*ACTIVATIONS, *OWN])
def test_every_layer_takes_every_activation(name: str, made: Callable[[ActivationChoice], nn.Module]) -> None:
    torch.manual_seed(0)
    layer = made(OWN.get(name, name))
    compare(layer, [4, 2, 3])
    assert f"activation={make(OWN.get(name, name)).key!r}" in repr(layer)


def test_trained_numbers_are_weights() -> None:
    layer = RNN(2, 5, 2, activation=swish)
    assert [tuple(p.shape) for name, p in layer.named_parameters() if "activation" in name] == [(5,), (5,)]
    network = MLP(3, 2, width=4, depth=3, activation=swish.given(first=0.5))
    assert [p.tolist() for p in network.activation_numbers] == 4 * [4 * [0.5]]
    network(torch.randn(5, 3)).sum().backward()
    assert all(p.grad is not None for p in network.parameters())


def test_a_function_that_fails_says_where() -> None:
    with pytest.raises(ValueError, match=r"must have shape \(B, 4\), got shape \(B, 1\)"):
        RNN(2, 4, activation=lambda a: a.sum(-1, keepdim=True))
    with pytest.raises(ValueError, match="the step of Elman fails at line"):
        RNN(2, 4, activation=swish.function)


def test_models_of_two_functions_are_no_population() -> None:
    one, other = (lambda a: a.sin()), (lambda a: a.cos())
    models = [SequenceModel(RNN(2, 4, activation=f), 1) for f in (one, one, other)]
    Population(models[:2])
    with pytest.raises(ValueError, match="got another kind at place 2"):
        Population(models)


# In bounds.


def test_bounds_know_every_activation() -> None:
    assert [name for name, f in ACTIVATIONS.items() if not is_tame(f)] == [
        "prelu",
        "sigmoid",
        "modrelu",
        "saturated",
        "complex_modrelu",
    ]
    for name, f in ACTIVATIONS.items():
        layer = RNN(2, 4, map="exponential", activation=name, dtype=torch.float64)
        low, high = f.slopes(getattr(layer, "activation_l0", None))
        band = gradient_band(layer, lag=1, norm="spectral")
        assert (band.lower, band.upper) == (pytest.approx(low), pytest.approx(high))
    own = RNN(2, 4, activation=Activation(torch.tanh, slopes=(0, 0.5)), map="exponential")
    assert gradient_band(own, lag=2, norm="spectral").upper == pytest.approx(0.25)


def test_gradient_bounds_follow_trained_slopes() -> None:
    model = SpectralMLP(3, 2, width=4, depth=2, margin=0.0, activation="prelu(0.5)")
    assert model.gradient_bounds() == (0.25, 1)
    with torch.no_grad():
        model.activation_numbers[1].fill_(3)
    assert model.gradient_bounds() == (0.5, 3)
