"""Every optimiser under two gloo processes: both end with the same weights, and with those of one process alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from two_learners import STEPS, TASK, a_model, batch, geodesic

from evenflow.lab.tasks import Batch
from evenflow.optim import GeodesicAdam, GeodesicSGD, HessianFree, TemporalSimplex
from evenflow.penalties import make
from evenflow.probes.temporal_components import temporal_components

HERE = Path(__file__).parent
SOURCE = HERE.parents[1] / "src"
# float64, averages taken in another order, over a few updates; conjugate gradients amplify it.
SAME = {"atol": 1e-9, "rtol": 1e-7}
# Seconds after which processes that wait for each other in vain are given up; they take about ten.
PATIENCE = 240
NAMES = ("GeodesicSGD", "GeodesicAdam", "TemporalSimplex", "HessianFree")


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    folder = tmp_path_factory.mktemp("learners")
    environment = os.environ | {
        "PYTHONPATH": f"{SOURCE}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += [str(HERE / "two_learners.py"), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr[-4000:]
    return [torch.load(folder / f"weights-{rank}.pt") for rank in range(2)]


def both(step):
    one, other = batch(step, 0), batch(step, 1)
    return Batch(torch.cat([one.inputs, other.inputs], 1), torch.cat([one.targets, other.targets]))


def assert_close(found, model):
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(found[name], tensor, **SAME)


@pytest.mark.parametrize("name", NAMES)
def test_both_end_with_the_same_bits(weights, name):
    first, second = (each[name] for each in weights)
    assert all(torch.equal(first[key], second[key]) for key in first)


@pytest.mark.parametrize("kind", [GeodesicSGD, GeodesicAdam])
def test_geodesic_is_one_process_that_averages(weights, kind):
    model = a_model("factorized")
    optimizer, penalty = geodesic(model, kind), make("soft_orthogonality(0.1) + norm_preserving(0.1)")
    for step in range(STEPS):
        optimizer.zero_grad()
        for rank in range(2):
            own = batch(step, rank)
            with penalty.watch(model) as extra:
                loss = TASK.loss(model(own.inputs)[0], own.targets)
                loss = loss + extra(loss)
            (loss / 2).backward()
        optimizer.step()
    assert_close(weights[0][kind.__name__], model)


def test_hessian_free_is_one_process_with_all_sequences(weights):
    model = a_model("exponential")
    optimizer = HessianFree(model, TASK.loss, structural=0.1, iterations=10)
    for step in range(STEPS):
        optimizer.step(both(step), both(step + 50))
    assert_close(weights[0]["HessianFree"], model)


def test_temporal_simplex_is_its_rule_with_averages(weights):
    """Norms of components are root mean squares over the processes; gradient and direction are means."""
    model = a_model("exponential")
    optimizer = TemporalSimplex(model, lr=0.1)
    for step in range(STEPS):
        parts = [temporal_components(model, *batch(step, rank)[:2], TASK.loss) for rank in range(2)]
        norms = ((parts[0].norms ** 2 + parts[1].norms ** 2) / 2).sqrt()
        beta = optimizer_weights(optimizer, len(norms))
        mixed, true = (
            [(a + b) / 2 for a, b in zip(*pair, strict=True)]
            for pair in ([part.combine(beta / norms) for part in parts], [part.gradient for part in parts])
        )
        size = [torch.cat([t.flatten() for t in each]).norm() for each in (true, mixed)]
        for p, m in zip(model.parameters(), mixed, strict=True):
            p.grad = size[0] / size[1] * m
        optimizer.step()
    assert_close(weights[0]["TemporalSimplex"], model)


def optimizer_weights(optimizer, steps):
    from evenflow.optim.temporal_simplex import _mixed, simplex_weights

    group = optimizer.param_groups[0]
    generator = torch.Generator().manual_seed(_mixed(group["seed"], group["updates"]))
    return simplex_weights(steps, group["draw"], generator)
