"""Several optimisers as one: a factorized map's bases along the manifold, its spectrum at lr / 2m, the rest as ever."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn

from evenflow import RNN, SequenceModel
from evenflow.maps import residual
from evenflow.optim import GeodesicAdam, GeodesicSGD, Joined, divide

# After a few updates in float32.
NEAR = 5e-6
MARGIN = 0.1


def a_model():
    source = torch.Generator().manual_seed(0)
    return SequenceModel(RNN(2, 8, map="factorized", margin=MARGIN, generator=source), 1, generator=source)


def joined(model):
    rest, orthonormal = divide(model, lr=1e-2, stiefel_lr=1e-3)
    return Joined([torch.optim.RMSprop(rest, alpha=0.9), GeodesicSGD(orthonormal, lr=1.0, momentum=0.5)])


def train(model, optimizer, steps, begin=0):
    losses = []
    for step in range(begin, begin + steps):
        x = torch.randn(10, 4, 2, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        loss = (model(x)[0] - x[0, :, :1]).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_spectrum_has_its_rate_divided_by_twice_the_margin():
    model = a_model()
    rest, orthonormal = divide(model, lr=1e-2, stiefel_lr=1e-3)
    raw = dict(model.layer.named_parameters())
    rates = {id(p): group["lr"] for group in [*rest, *orthonormal] for p in group["params"]}
    assert rates[id(raw["parametrizations.weight_hh_l0.original0"])] == 1e-3
    assert rates[id(raw["parametrizations.weight_hh_l0.original1"])] == 1e-3
    assert rates[id(raw["parametrizations.weight_hh_l0.original2"])] == pytest.approx(1e-2 / (2 * MARGIN))
    assert rates[id(raw["bias_l0"])] == 1e-2
    assert len(rates) == len(list(model.parameters()))
    assert {group["lr"] for group in divide(model, lr=0.5)[1]} == {0.5}


def test_bases_stay_orthonormal_and_everything_moves():
    model = a_model()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    train(model, joined(model), 60)
    for name, p in model.named_parameters():
        assert not torch.equal(p, before[name]), name
        if name.endswith(("original0", "original1")):
            assert residual(p) < NEAR


def test_learns():
    model = a_model()
    rest, orthonormal = divide(model, lr=1e-2, stiefel_lr=1e-2)
    optimizer = Joined([torch.optim.Adam(rest), GeodesicAdam(orthonormal)])
    losses = [train(model, optimizer, 1)[0] for _ in range(60)]  # one batch, over and over
    assert losses[-1] < 0.1 * losses[0]


def test_resumed_to_the_last_bit():
    model = a_model()
    optimizer = joined(model)
    train(model, optimizer, 5)
    other = copy.deepcopy(model)
    resumed = joined(other)
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    train(model, optimizer, 40, begin=5)
    train(other, resumed, 40, begin=5)
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), other.parameters(), strict=True))


@pytest.mark.parametrize("again", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))], ids=["copy", "pickle"])
def test_copied_to_the_last_bit(again):
    model = a_model()
    optimizer = joined(model)
    train(model, optimizer, 5)
    kept = [p.detach().clone() for p in model.parameters()]
    other, copied = again((model, optimizer))
    assert {id(p) for group in copied.param_groups for p in group["params"]} == {id(p) for p in other.parameters()}
    assert set(copied.state) == set(other.parameters())
    assert repr(copied) == repr(optimizer)
    train(other, copied, 5, begin=5)
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), kept, strict=True)), "the first is left alone"
    train(model, optimizer, 5, begin=5)
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), other.parameters(), strict=True))
    alone = copy.deepcopy(optimizer)
    assert not {id(p) for group in alone.param_groups for p in group["params"]} & {id(p) for p in model.parameters()}
    alone.load_state_dict(optimizer.state_dict())


def test_looks_like_one():
    model = a_model()
    optimizer = joined(model)
    assert isinstance(optimizer, torch.optim.Optimizer)
    assert {id(p) for group in optimizer.param_groups for p in group["params"]} == {id(p) for p in model.parameters()}
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5**step)
    train(model, optimizer, 1)
    scheduler.step()
    assert [group["lr"] for group in optimizer.optimizers[1].param_groups] == [0.5e-3]
    assert set(optimizer.state) == set(model.parameters())
    optimizer.zero_grad()
    assert all(p.grad is None for p in model.parameters())
    assert repr(optimizer) == "Joined(RMSprop, GeodesicSGD)"
    assert optimizer.step(lambda: torch.tensor(3.0)) == 3.0


def test_one_step_equals_the_members_own():
    model = a_model()
    other = copy.deepcopy(model)
    train(model, joined(model), 3)
    optimizer = joined(other)
    for step in range(3):
        x = torch.randn(10, 4, 2, generator=torch.Generator().manual_seed(step))
        other.zero_grad()
        (other(x)[0] - x[0, :, :1]).square().mean().backward()
        for member in optimizer.optimizers:
            member.step()
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), other.parameters(), strict=True))


def test_frozen_parameters_are_left_out():
    model = a_model()
    model.output.weight.requires_grad_(False)
    rest, orthonormal = divide(model, lr=0.1)
    assert all(p is not model.output.weight for group in [*rest, *orthonormal] for p in group["params"])
    assert divide(nn.Linear(2, 2), lr=0.1)[1] == []


def test_refused():
    p = nn.Parameter(torch.zeros(2))
    first, second = torch.optim.SGD([p], lr=1), torch.optim.Adam([p])
    with pytest.raises(ValueError) as error:
        Joined([first, second])
    assert str(error.value) == "optimizers must not share a parameter, got one that is in two of them"
    with pytest.raises(ValueError) as error:
        Joined([])
    assert str(error.value) == "optimizers must be at least one optimiser, got none"
    with pytest.raises(ValueError) as error:
        Joined([first]).load_state_dict({"optimizers": [{}, {}]})
    assert str(error.value) == "state_dict must hold the states of 1 optimizers, got 2"
    with pytest.raises(ValueError) as error:
        Joined([first]).add_param_group({"params": [nn.Parameter(torch.zeros(1))]})
    assert str(error.value) == "a group of parameters must be added to one of the joined optimizers, not to all of them"
