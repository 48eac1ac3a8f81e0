"""A base that moves: the matrix stays, the gradient is that along the rotations, runs resume to the same bits."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import evenflow
from evenflow import SequenceModel, create
from evenflow.lab.training import Run, resume, train
from evenflow.maps import MovingExponential, attach, move_bases, residual
from evenflow.models import Population

SAME = {"atol": 1e-10, "rtol": 0}  # a logarithm in float64 and its exponential
SINGLE = 1e-5
EVERY = 5


def drawn(n: int = 6, every: int = EVERY) -> tuple[nn.Linear, MovingExponential]:
    layer = nn.Linear(n, n, bias=False).double()
    map = MovingExponential(n, every=every)
    attach(layer, "weight", map, generator=torch.Generator().manual_seed(0))
    return layer, map.double()


def raw(layer: nn.Linear) -> Tensor:
    return layer.parametrizations.weight.original  # type: ignore[union-attr,index,return-value]


def test_a_move_leaves_the_matrix_and_empties_the_numbers() -> None:
    layer, map = drawn()
    before = layer.weight.detach().clone()
    move_bases(layer, 4)
    assert not map.base.any()
    move_bases(layer, 5)
    assert not raw(layer).any()
    assert map.base.any()
    torch.testing.assert_close(layer.weight, before, **SAME)
    with torch.no_grad():
        raw(layer).normal_(std=0.3)
    before = layer.weight.detach().clone()
    move_bases(layer, 10)
    torch.testing.assert_close(layer.weight, before, **SAME)


def test_at_the_base_the_gradient_is_that_along_the_rotations() -> None:
    """∂L/∂B is then the part of Wᵀ G that is skew, as in Riemannian descent."""
    layer, _ = drawn()
    move_bases(layer, EVERY)
    G = torch.randn(6, 6, dtype=torch.float64)
    (layer.weight * G).sum().backward()
    W = layer.weight.detach()
    wanted = (W.mT @ G - G.mT @ W)[tuple(torch.triu_indices(6, 6, 1))]
    torch.testing.assert_close(raw(layer).grad, wanted, atol=1e-10, rtol=1e-8)


def test_assigning_keeps_the_base() -> None:
    layer, map = drawn()
    move_bases(layer, EVERY)
    base = map.base.clone()
    target = torch.linalg.qr(torch.randn(6, 6, dtype=torch.float64)).Q
    target[0] *= torch.linalg.det(target).sign()
    layer.weight = target
    torch.testing.assert_close(layer.weight.detach(), target, atol=1e-7, rtol=0)
    assert torch.equal(map.base, base)


def test_it_descends_and_stays_orthogonal() -> None:
    """To a rotation half a turn away, with moves on the way."""
    torch.manual_seed(0)
    layer = attach(nn.Linear(8, 8, bias=False), "weight", MovingExponential(8, every=EVERY, init="identity"))
    target = torch.block_diag(*[torch.tensor([[-0.99, -0.141067], [0.141067, -0.99]])] * 4)
    optimizer = torch.optim.Adam(layer.parameters(), 0.05)
    start = (layer.weight - target).square().mean().item()
    with torch.no_grad():
        raw(layer).normal_(std=0.1)
    for step in range(1, 301):
        optimizer.zero_grad()
        loss = (layer.weight - target).square().mean()
        loss.backward()
        optimizer.step()
        move_bases(layer, step)
    assert loss < 1e-3 * start
    assert residual(layer.weight) < SINGLE


def model() -> SequenceModel:
    draw = torch.Generator().manual_seed(0)
    return SequenceModel(create("dtriv", 2, 8, every=EVERY, generator=draw), 1, generator=draw)


def bases(made: nn.Module) -> list[Tensor]:
    return [buffer for name, buffer in made.named_buffers() if name.endswith("base")]


def test_training_moves_bases_and_resumes_to_the_same_bits(tmp_path: Path) -> None:
    training = {"batch_size": 4, "validate_every": 6, "validation_batches": 1, "checkpoint_every": 6, "device": "cpu"}
    system = {"name": "dtriv", "hidden_size": 4, "every": EVERY}
    config = {"task": {"name": "adding", "length": 6}, "system": system}
    train(config | {"training": training | {"steps": 6}}, tmp_path / "parts", progress=False)
    resume(tmp_path / "parts", steps=12, progress=False)
    train(config | {"training": training | {"steps": 12}}, tmp_path / "whole", progress=False)
    parts, whole = (Run(tmp_path / name).weights() for name in ("parts", "whole"))
    (base,) = (name for name in whole if name.endswith("base"))
    assert whole[base].any()
    assert all(torch.equal(value, parts[name]) for name, value in whole.items())


def test_models_of_a_population_have_bases_of_their_own() -> None:
    models = [model(), model()]
    population = Population(models)
    with torch.no_grad():
        for i, each in enumerate(models):
            raw_of = each.layer.parametrizations.weight_hh_l0.original  # type: ignore[union-attr,index]
            raw_of.add_(0.1 * (i + 1) * torch.randn_like(raw_of))
            move_bases(each, EVERY)
    x = torch.randn(2, 9, 3, 2)
    outputs, _ = population(x)
    for i, each in enumerate(models):
        torch.testing.assert_close(outputs[i], each(x[i])[0])
    assert not torch.equal(bases(models[0])[0], bases(models[1])[0])


def test_wrong_settings() -> None:
    with pytest.raises(ValueError, match="every must be a whole number of at least 1, got 0"):
        create("dtriv", 2, 8, every=0)
    with pytest.raises(ValueError, match="its base is that of one matrix"):
        evenflow.LSTM(2, 8, map={"weight_hh": "moving_base"})
