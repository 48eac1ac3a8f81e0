"""What each of two processes does with every optimiser. Run by test_optim_processes.py.

torchrun --nproc-per-node 2 two_learners.py FOLDER
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
from torch.nn.parallel import DistributedDataParallel

from evenflow import RNN, SequenceModel
from evenflow.lab.tasks import TemporalOrder
from evenflow.lab.training.launch import leave
from evenflow.optim import GeodesicAdam, GeodesicSGD, HessianFree, Joined, TemporalSimplex, divide
from evenflow.penalties import make

STEPS = 4
TASK = TemporalOrder(length=8)


def a_model(map: str) -> SequenceModel:
    source = torch.Generator().manual_seed(0)
    layer = RNN(TASK.input_size, 6, map=map, generator=source, dtype=torch.float64)
    return SequenceModel(layer, TASK.output_size, generator=source)


def batch(step: int, rank: int):
    drawn = TASK.batch(5, torch.Generator().manual_seed(100 * step + rank))
    return drawn._replace(inputs=drawn.inputs.double())


def geodesic(model: SequenceModel, kind: type) -> Joined:
    rest, orthonormal = divide(model, lr=0.1, stiefel_lr=0.05)
    return Joined([torch.optim.SGD(rest), kind(orthonormal, lr=1.0)])


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    rank = int(os.environ["RANK"])
    weights = {}
    for kind in (GeodesicSGD, GeodesicAdam):
        model = a_model("factorized")
        wrapped, optimizer = DistributedDataParallel(model), geodesic(model, kind)
        penalty = make("soft_orthogonality(0.1) + norm_preserving(0.1)")
        for step in range(STEPS):
            own = batch(step, rank)
            optimizer.zero_grad()
            with penalty.watch(model) as extra:
                loss = TASK.loss(wrapped(own.inputs)[0], own.targets)
                loss = loss + extra(loss)
            loss.backward()
            optimizer.step()
        weights[kind.__name__] = model.state_dict()

    model = a_model("exponential")
    simplex = TemporalSimplex(model, lr=0.1)
    for step in range(STEPS):
        own = batch(step, rank)
        with simplex.listen():
            loss = TASK.loss(model(own.inputs)[0], own.targets)
        simplex.backward(loss)
        simplex.step()
    weights["TemporalSimplex"] = model.state_dict()

    model = a_model("exponential")
    newton = HessianFree(model, TASK.loss, structural=0.1, iterations=10)
    for step in range(STEPS):
        newton.step(batch(step, rank), batch(step + 50, rank))
    weights["HessianFree"] = model.state_dict()
    torch.save(weights, folder / f"weights-{rank}.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    leave()  # when nothing of `main` refers to the group any more
