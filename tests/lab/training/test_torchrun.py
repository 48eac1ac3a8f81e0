"""Distributed data parallel: two gloo processes on the CPU, started by torchrun."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from killed_runs import assert_same
from two_processes import CONFIG

from evenflow.lab.training import Run, build, read_config, resume
from evenflow.lab.training.seeds import derive

HERE = Path(__file__).parent
SOURCE = HERE.parents[1] / "src"
# Averages of two gradients taken in another order, over nine updates in float32.
ROUNDING = 1e-5
# Seconds after which processes that wait for each other in vain are given up; a run takes about ten.
PATIENCE = 240


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("torchrun")
    environment = os.environ | {
        "PYTHONPATH": f"{SOURCE}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += [str(HERE / "two_processes.py"), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr[-4000:]
    return folder


def by_hand():
    """One process that averages the losses of both processes' batches, dropout masks and all."""
    task, system, settings = read_config(CONFIG)
    model = build(task, system, 0)
    optimizer = torch.optim.SGD(model.parameters(), lr=settings.lr, momentum=settings.momentum, nesterov=True)
    losses = []
    for step in range(settings.steps):
        optimizer.zero_grad()
        total = 0.0
        for rank in range(2):
            batch = task.batch(3, torch.Generator().manual_seed(derive(0, "train", step, rank)))
            with torch.random.fork_rng([]):
                torch.default_generator.manual_seed(derive(0, "noise", step, rank))
                total = total + task.loss(model(batch.inputs)[0], batch.targets) / 2
        total.backward()
        optimizer.step()
        losses.append(total.item())
    return model.state_dict(), losses


def test_both_processes_end_with_the_same_weights(folder):
    first, second = (torch.load(folder / f"weights-{rank}.pt") for rank in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_equals_one_process_that_sees_both_batches(folder):
    found = torch.load(folder / "weights-0.pt")
    expected, losses = by_hand()
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=ROUNDING, atol=ROUNDING)
    metrics = Run(folder / "alone").metrics
    assert metrics["step"].tolist() == [2, 4, 6, 8, 9]
    bounds = [0, 2, 4, 6, 8, 9]
    means = [np.mean(losses[a:b]) for a, b in itertools.pairwise(bounds)]
    np.testing.assert_allclose(metrics["loss"], means, rtol=ROUNDING)


def test_one_process_writes(folder):
    run = Run(folder / "alone")
    assert run.status["state"] == "finished"
    assert run.probes["step"].tolist() == [0, 3, 6, 9]
    saved, first = run.weights(), torch.load(folder / "weights-0.pt")
    assert all(torch.equal(saved[name], first[name]) for name in first)


def test_a_crash_and_a_resumption_change_nothing(folder):
    for rank in range(2):
        weights, resumed = (torch.load(folder / f"{kind}-{rank}.pt") for kind in ("weights", "resumed"))
        assert all(torch.equal(weights[name], resumed[name]) for name in weights)
    assert_same(folder / "alone", folder / "crashed")


def test_when_the_time_of_one_is_up_both_stop_at_the_same_step_and_lose_nothing(folder):
    assert (folder / "stopped-1.txt").exists()
    assert (folder / "stopped-0.txt").read_text() == "interrupted at step 4"
    assert_same(folder / "alone", folder / "timed")


def test_both_processes_stop_with_the_same_sentence(folder):
    first, second = ((folder / f"error-{rank}.txt").read_text() for rank in range(2))
    assert first == second
    assert "cannot be written" in first


def test_no_thread_of_the_group_outlives_it(folder):
    for rank in range(2):
        assert "gloo" not in (folder / f"threads-{rank}.txt").read_text()


def test_another_number_of_processes_is_refused(folder):
    with pytest.raises(
        ValueError, match=r"^run '.*alone' was made by 2 processes and must be resumed by as many, got 1$"
    ):
        resume(folder / "alone")
