"""The direction of the temporal simplex against its equations, its step rule, and resumption."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn

from evenflow import LSTM, RNN, EchoState, SequenceModel
from evenflow.optim import TemporalSimplex, simplex_weights
from evenflow.optim.temporal_simplex import _mixed
from evenflow.probes.temporal_components import temporal_components

# float64, the same sums in another order.
SAME = {"atol": 1e-12, "rtol": 1e-9}
STEPS, BATCH = 12, 5


def squared(outputs, targets):
    return (outputs - targets).square().mean()


def a_model(**options):
    source = torch.Generator().manual_seed(0)
    layer = RNN(2, 6, dtype=torch.float64, generator=source, **({"map": "exponential"} | options))
    return SequenceModel(layer, 1, generator=source)


def a_batch(seed=0):
    source = torch.Generator().manual_seed(seed)
    shapes = (STEPS, BATCH, 2), (BATCH, 1)
    return [torch.randn(shape, dtype=torch.float64, generator=source) for shape in shapes]


def update(model, optimizer, seed=0, scale=1.0):
    x, y = a_batch(seed)
    with optimizer.listen():
        loss = scale * squared(model(x)[0], y)
    optimizer.backward(loss)
    directions = [p.grad.clone() for p in model.parameters()]
    optimizer.step()
    return directions


def flat(tensors):
    return torch.cat([t.flatten() for t in tensors])


@pytest.mark.parametrize("draw", ["exponential", "uniform"])
def test_direction_is_the_equation(draw):
    model = a_model()
    components = temporal_components(model, *a_batch(), squared)
    beta = simplex_weights(STEPS, draw, torch.Generator().manual_seed(_mixed(7, 0)))
    g = sum(b * flat(components.component(t)) / components.norms[t] for t, b in enumerate(beta))
    true = flat(components.gradient)
    expected = true.norm() * g / g.norm()
    assert expected.dot(true) > 0
    optimizer = TemporalSimplex(model, draw=draw, seed=7)
    torch.testing.assert_close(flat(update(model, optimizer)), expected, **SAME)
    assert optimizer.alignment.ratio.item() == pytest.approx(1)
    assert optimizer.alignment.cosine.item() == pytest.approx((expected.dot(true) / true.norm() ** 2).item())


@pytest.mark.parametrize(("scale", "threshold"), [(1e-3, 1.0), (100.0, 1.0), (1.0, 1e-3)], ids=["short", "long", "low"])
def test_step_rule(scale, threshold):
    model = a_model()
    before = flat(p.detach().clone() for p in model.parameters())
    optimizer = TemporalSimplex(model, lr=0.01, threshold=threshold)
    d = flat(update(model, optimizer, scale=scale))
    size = 0.01 if d.norm() <= threshold else 0.01 / d.norm()
    torch.testing.assert_close(flat(p.detach() for p in model.parameters()), before - size * d, **SAME)


def test_beyond_psi_it_is_the_gradient():
    model = a_model()
    true = temporal_components(model, *a_batch(), squared).gradient
    length = flat(true).norm().item()
    below, above = (TemporalSimplex(copy.deepcopy(model), psi=psi) for psi in (0.9 * length, 1.1 * length))
    torch.testing.assert_close(flat(update(below.model, below)), flat(true), **SAME)
    assert (flat(update(above.model, above)) - flat(true)).norm() > 0.01 * length


def test_a_direction_that_does_not_descend_is_not_taken():
    """One long share against several short ones: at length one each, the short ones outweigh it."""
    beta = simplex_weights(8, "exponential", torch.Generator().manual_seed(_mixed(0, 0)))
    for seed in range(300):
        source = torch.Generator().manual_seed(seed)
        model = SequenceModel(RNN(1, 1, dtype=torch.float64, generator=source), 1, generator=source)
        with torch.no_grad():
            for p in model.parameters():
                p.copy_(torch.randn(p.shape, dtype=p.dtype, generator=source))
        x, y = (torch.randn(shape, dtype=torch.float64, generator=source) for shape in ((8, 1, 1), (1, 1)))
        components = temporal_components(model, x, y, squared)
        true, g = flat(components.gradient), flat(components.combine(beta / components.norms))
        if components.norms.min() > 1e-8 and g.dot(true) < 0:
            break
    else:
        raise AssertionError("no such start was found")
    optimizer = TemporalSimplex(model)
    with optimizer.listen():
        loss = squared(model(x)[0], y)
    optimizer.backward(loss)
    torch.testing.assert_close(flat(p.grad for p in model.parameters()), true, **SAME)
    assert optimizer.alignment.gap.item() == pytest.approx(0, abs=1e-6)


def test_components_of_any_length_are_normalised():
    """In float32, where the squares of distant components underflow and the components do not."""
    generator = torch.Generator().manual_seed(0)
    exact = SequenceModel(RNN(2, 12, init="spectral_radius", radius=0.4, generator=generator), 1, generator=generator)
    model, exact = exact, copy.deepcopy(exact).double()
    x, y = torch.randn(60, 4, 2, generator=generator), torch.randn(4, 1, generator=generator)
    components = temporal_components(exact, x.double(), y.double(), squared)
    assert torch.finfo(torch.float32).tiny < components.norms.min() < 1e-22
    optimizer = TemporalSimplex(model)
    with optimizer.listen():
        loss = squared(model(x)[0], y)
    optimizer.backward(loss)
    d = flat(p.grad.double() for p in model.parameters())
    beta = simplex_weights(60, "exponential", torch.Generator().manual_seed(_mixed(0, 0)))
    g = flat(components.combine(beta / components.norms))
    assert torch.cosine_similarity(d, g, dim=0) > 0.999


def test_components_that_have_vanished_are_left_as_they_are():
    model = a_model(map="free", init="identity").float()
    with torch.no_grad():
        model.layer.weight_hh_l0.mul_(1e-20)
    x, y = (part.float() for part in a_batch())
    components = temporal_components(model, x, y, squared)
    assert components.norms[0] < torch.finfo(torch.float32).tiny < components.norms[-1]
    optimizer = TemporalSimplex(model)
    with optimizer.listen():
        loss = squared(model(x)[0], y)
    optimizer.backward(loss)
    d = flat(p.grad for p in model.parameters())
    assert d.isfinite().all()
    assert d.norm() > 0


def test_frozen_weights_do_not_weigh():
    model = a_model(map="free")
    model.layer.weight_hh_l0.requires_grad_(False)
    x, y = a_batch()
    components = temporal_components(model, x, y, squared)
    shares = [flat(components.component(t)) for t in range(STEPS)]
    optimizer = TemporalSimplex(model)
    with optimizer.listen():
        loss = squared(model(x)[0], y)
    optimizer.backward(loss, torch.full((STEPS,), 1 / STEPS, dtype=torch.float64))
    g = sum(share / share.norm() for share in shares)
    d = flat([p.grad for p in components.parameters])
    torch.testing.assert_close(d, flat(components.gradient).norm() * g / g.norm(), **SAME)


@pytest.mark.parametrize("draw", ["exponential", "uniform"])
def test_weights_lie_in_the_simplex(draw):
    beta = simplex_weights(1000, draw, torch.Generator().manual_seed(0))
    assert beta.sum().item() == pytest.approx(1)
    assert (beta > 0).all()
    spread = 1000 * beta
    if draw == "exponential":  # exp(1 - u) has mean e - 1 and lies between 1 and e
        assert 0.57 < spread.min() < 0.6 < 1.55 < spread.max() < 1.6
    else:  # the largest of a uniform draw is near ln T times the mean
        assert spread.max() > 5


def test_one_small_step_descends():
    model = a_model()
    optimizer = TemporalSimplex(model, lr=1e-4)
    x, y = a_batch()
    before = squared(model(x)[0], y)
    update(model, optimizer)
    assert squared(model(x)[0], y) < before


def test_every_update_draws_anew_and_resumes_to_the_last_bit():
    model = a_model()
    optimizer = TemporalSimplex(model, lr=1e-2)
    first = [flat(update(model, optimizer)) for _ in range(3)]
    assert (first[0] / first[0].norm() - first[1] / first[1].norm()).norm() > 1e-3
    other = copy.deepcopy(model)
    resumed = TemporalSimplex(other, lr=1.0, seed=5)
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for seed in range(3):
        update(model, optimizer, seed)
        update(other, resumed, seed)
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), other.parameters(), strict=True))


@pytest.mark.parametrize("again", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))], ids=["copy", "pickle"])
def test_copied_to_the_last_bit(again):
    model = a_model()
    optimizer = TemporalSimplex(model, lr=1e-2, seed=3)
    update(model, optimizer)
    with optimizer.listen():  # a pass that waits for its backward stays with the first
        model(a_batch()[0])
    other, copied = again((model, optimizer))
    assert copied.model is other
    assert all(p is q for p, q in zip(copied.param_groups[0]["params"], other.parameters(), strict=True))
    assert copied.alignment.cosine == optimizer.alignment.cosine
    with pytest.raises(ValueError, match="backward needs a loss"):
        copied.backward(torch.zeros(()))
    for seed in range(3):
        update(model, optimizer, seed)
        update(other, copied, seed)
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), other.parameters(), strict=True))
    alone = copy.deepcopy(optimizer)
    update(alone.model, alone)
    assert alone.model is not model
    assert all(p is q for p, q in zip(alone.param_groups[0]["params"], alone.model.parameters(), strict=True))
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), other.parameters(), strict=True))


def test_ragged_batches_of_symbols_in_float32():
    model = SequenceModel(RNN(3, 6, 2), 4, readout="every", vocabulary=5)
    optimizer = TemporalSimplex(model, lr=0.1)
    x, y = torch.randint(5, (9, 4)), torch.randint(4, (9, 4))
    lengths = torch.tensor([9, 3, 5, 7])
    losses = []
    for _ in range(60):
        with optimizer.listen():
            loss = nn.functional.cross_entropy(model(x, lengths=lengths)[0].flatten(0, 1), y.flatten())
        optimizer.backward(loss)
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 0.1


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: TemporalSimplex(nn.Linear(2, 2)), "TemporalSimplex needs a SequenceModel, got Linear"),
        (lambda: TemporalSimplex(a_model(), lr=0), "lr must be a number above 0, got 0"),
        (lambda: TemporalSimplex(a_model(), psi=-1.0), "psi must be a number above 0, got -1.0"),
        (lambda: TemporalSimplex(a_model(), draw="equal"), "draw must be one of exponential, uniform, got 'equal'"),
        (
            lambda: TemporalSimplex(a_model(map="factorized")),
            "TemporalSimplex would move the bases of a factorized map off the orthogonal matrices",
        ),
        (
            lambda: TemporalSimplex(SequenceModel(EchoState(2, 6), 1)),
            "TemporalSimplex needs a layer or an embedding that is trained, got EchoState that is not",
        ),
        (
            lambda: TemporalSimplex(a_model()).backward(torch.zeros(())),
            "backward needs a loss computed inside `with optimizer.listen():`",
        ),
        (
            lambda: TemporalSimplex(a_model()).step(lambda: None),
            "TemporalSimplex takes no closure: call backward(loss) and then step()",
        ),
        (
            lambda: update(m := SequenceModel(LSTM(2, 4, dtype=torch.float64), 1), TemporalSimplex(m)),
            "temporal_components needs a cell whose state is one vector, got LSTM with two",
        ),
    ],
    ids=["model", "rate", "psi", "draw", "stiefel", "reservoir", "unheard", "closure", "lstm"],
)
def test_refused(call, sentence):
    with pytest.raises(ValueError) as error:
        call()
    assert str(error.value) == sentence
