"""The activations: values, slopes and their bounds, names."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from evenflow.activations import ACTIVATIONS, Activation, make

# Slopes are sums and products of a handful of doubles.
ROUNDING = 1e-12

numbers = st.lists(st.floats(-50, 50), min_size=8, max_size=8).map(lambda v: torch.tensor(v, dtype=torch.float64))


def parameter(f: Activation, size: int = 8) -> Tensor | None:
    value = f.start(size, torch.Generator().manual_seed(0))
    return None if value is None else value.double()


def jacobian(f: Activation, a: Tensor, p: Tensor | None) -> Tensor:
    return torch.autograd.functional.jacobian(lambda v: f(v, p), a)  # type: ignore[no-any-return]


def known(f: Activation, a: Tensor, p: Tensor | None) -> Tensor:
    return f(a, p) if f.reads_output else a


@pytest.mark.parametrize("name", [*ACTIVATIONS, "leaky(0.5)", "prelu(0.7)"])
@settings(max_examples=40, deadline=None)
@given(a=numbers)
def test_slopes_keep_their_bounds(name: str, a: Tensor) -> None:
    """The singular values of the Jacobian lie in [β, γ]: slopes of units, and the permutation of oplu."""
    f = make(name)
    a = torch.where(a.abs() < 1e-3, 1.0, a)  # at a kink there is no slope to speak of
    a = torch.where((a - a.roll(4)).abs() < 1e-3, a + torch.arange(8) / 7, a)
    values = torch.linalg.svdvals(jacobian(f, a, parameter(f)))
    low, high = f.slope_bounds
    assert values.min() >= low - ROUNDING
    assert values.max() <= high + ROUNDING


@settings(max_examples=40, deadline=None)
@given(a=numbers, b=st.floats(-1, 1))
def test_slopes_of_complex_modrelu(a: Tensor, b: float) -> None:
    """Along a pair 0 or 1, across it 0 or 1 + b / |a|: at most 1 unless b is above 0."""
    a = torch.where(a.abs() < 1e-3, 1.0, a)
    sizes = a.view(2, 4).norm(dim=0)
    on = (sizes + b > 0).double()
    expected = torch.cat([on, on * (1 + b / sizes)])
    values = torch.linalg.svdvals(jacobian(make("complex_modrelu"), a, torch.full((4,), b, dtype=torch.float64)))
    torch.testing.assert_close(values, expected.sort(descending=True).values, atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("name", ACTIVATIONS)
@settings(max_examples=40, deadline=None)
@given(a=numbers)
def test_write_equals_call(name: str, a: Tensor) -> None:
    f = make(name)
    p = parameter(f)
    out = torch.empty_like(a)
    f.write(a, p, out)
    assert torch.equal(out, f(a, p))
    if f.reads_output:
        same = a.clone()
        f.write(same, p, same)
        assert torch.equal(same, out)


@pytest.mark.parametrize("name", [*ACTIVATIONS, "leaky(0.5)"])
def test_pull_is_the_transposed_jacobian(name: str) -> None:
    f = make(name)
    generator = torch.Generator().manual_seed(1)
    a, g = torch.randn(2, 8, generator=generator, dtype=torch.float64)
    p = parameter(f)
    slopes = f.slopes(known(f, a, p), p)
    d = g.clone()
    if slopes is not None:
        f.pull(g, slopes, out=d)
    torch.testing.assert_close(d, jacobian(f, a, p).mT @ g, rtol=ROUNDING, atol=ROUNDING)


@pytest.mark.parametrize("name", [name for name, kind in ACTIVATIONS.items() if kind.marks])
@settings(max_examples=40, deadline=None)
@given(a=numbers)
def test_marks_have_the_slopes_of_what_they_mark(name: str, a: Tensor) -> None:
    f = make(name)
    a = torch.cat([a[:4].round(), a[:2].round(), a[6:]])  # zeros and pairs of equals among them
    marks = f.mark(a)
    assert marks.dtype == torch.int8
    slopes, expected = f.slopes(marks.double(), None), f.slopes(a, None)
    assert slopes is not None
    assert expected is not None
    assert torch.equal(slopes, expected)


@pytest.mark.parametrize("name", [name for name, kind in ACTIVATIONS.items() if kind.trained])
def test_parameter_gradient_is_autograds(name: str) -> None:
    f = make(name)
    generator = torch.Generator().manual_seed(1)
    a, g = torch.randn(2, 5, 3, 8, generator=generator, dtype=torch.float64)
    p = parameter(f)
    assert p is not None
    p.requires_grad_()
    (f(a, p) * g).sum().backward()
    torch.testing.assert_close(f.parameter_gradient(known(f, a, p.detach()), g), p.grad)


def test_activations_without_a_trained_number_have_no_parameter_gradient() -> None:
    with pytest.raises(NotImplementedError):
        make("relu").parameter_gradient(torch.zeros(1), torch.zeros(1))


@pytest.mark.parametrize("name", [*ACTIVATIONS, "leaky(0.5)", "prelu(0.125)"])
def test_key_makes_it_again(name: str) -> None:
    f = make(name)
    again = make(f.key)
    assert type(again) is type(f)
    assert vars(again) == vars(f)
    assert make(f) is f
    assert repr(f) == f.key


@pytest.mark.parametrize(
    ("name", "a", "wanted"),
    [
        ("identity", [-2.0, 3.0], [-2.0, 3.0]),
        ("relu", [-2.0, 3.0], [0.0, 3.0]),
        ("leaky(0.5)", [-2.0, 3.0], [-1.0, 3.0]),
        (" leaky( 5e-1 ) ", [-2.0, 3.0], [-1.0, 3.0]),
        ("tanh", [0.0, 100.0], [0.0, 1.0]),
        ("abs", [-2.0, 3.0], [2.0, 3.0]),
        ("oplu", [-2.0, 3.0], [3.0, -2.0]),
        ("oplu", [3.0, -2.0], [3.0, -2.0]),
    ],
)
def test_values(name: str, a: list[float], wanted: list[float]) -> None:
    assert make(name)(torch.tensor(a)).tolist() == wanted


def test_values_with_a_trained_number() -> None:
    a = torch.tensor([-2.0, 0.5, 3.0, 0.0])
    assert make("prelu")(a, torch.tensor([0.5])).tolist() == [-1.0, 0.5, 3.0, 0.0]
    assert make("modrelu")(a, torch.tensor([-1.0, -1.0, 1.0, 1.0])).tolist() == [-1.0, 0.0, 4.0, 0.0]


def test_modrelu_starts_near_zero_from_its_generator() -> None:
    draws = [make("modrelu").start(100, torch.Generator().manual_seed(3)) for _ in range(2)]
    assert draws[0] is not None
    assert draws[1] is not None
    assert torch.equal(draws[0], draws[1])
    assert 0 < draws[0].abs().max() <= 0.01


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("rellu", "there is no activation 'rellu'; did you mean 'relu'\\? known are identity, relu"),
        ("leaky(.)", "there is no activation 'leaky\\(\\.\\)'; did you mean 'leaky'\\? known are identity, relu"),
        ("??", "there is no activation '\\?\\?'; known are"),
        ("tanh(2)", "activation 'tanh' takes no number, got 'tanh\\(2\\)'"),
        ("leaky(1.5)", "the slope of leaky must lie between 0 and 1, got 1.5"),
        ("leaky(0)", "the slope of leaky must lie between 0 and 1, got 0.0"),
    ],
)
def test_bad_names(name: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(name)


def test_oplu_needs_pairs() -> None:
    with pytest.raises(ValueError, match="oplu sorts pairs of units, so hidden_size must be even, got 7"):
        make("oplu").start(7)
