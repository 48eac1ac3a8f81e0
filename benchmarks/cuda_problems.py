"""Sizes for `recurrence_cuda.py`: inputs with the right answers, and the tiles worth a try."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from evenflow.scan import elman_torch, gru_torch, lstm_torch
from evenflow.scan.cuda import build, elman, gru, lstm, plan

SHARED_BYTES, REGISTERS = 227 * 1024, 65536  # of a multiprocessor
SPARE = 34  # registers of a thread that hold neither weights nor sums


@dataclass
class Problem:
    """One size of one cell: its inputs, and what is right."""

    cell: str
    hidden: int
    batch: int
    models: int
    steps: int
    activation: str = "tanh"

    def __post_init__(self) -> None:
        source = torch.Generator(device="cuda").manual_seed(0)

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=source, device="cuda")

        M, T, B, H = self.models, self.steps, self.batch, self.hidden
        self.gates = {"gru": 3, "lstm": 4}.get(self.cell, 1)
        self.states = torch.empty(M, T, B, H, device="cuda")
        a = 0.3 * normal(M, T, B, self.gates * H)
        weight = torch.linalg.qr(normal(M * self.gates, H, H))[0].reshape(M, self.gates * H, H).contiguous()
        h0, self.grad = normal(M, B, H), normal(M, T, B, H)
        shares = [torch.full((M, 1), v, device="cuda") if self.cell == "gated" else None for v in (0.3, 0.6)]
        p = {"prelu": torch.full((M, 1), 0.3, device="cuda"), "modrelu": 0.1 * normal(M, H)}.get(self.activation)
        self.given: tuple[Any, ...]
        self.back: tuple[Any, ...]
        self.run, self.right = {"gru": (gru, gru_torch), "lstm": (lstm, lstm_torch)}.get(
            self.cell, (elman, elman_torch)
        )
        if self.cell == "gru":
            self.given, self.back = (a, weight, normal(M, H), h0, None), (weight, h0, None, False)
        elif self.cell == "lstm":
            c0 = normal(M, B, H)
            self.given, self.back = (a, weight, h0, c0, None, None), (weight, h0, c0, None, False, None, False)
        else:
            rest = (h0, *shares, p, self.activation, None)
            self.given, self.back = (a, weight, *rest), (weight, *rest, False)
        exact = self.right.forward(*double(self.given))
        self.kept = [v.float() for v in exact]
        self.expected = exact[0]
        lead = self.lead()
        self.expected_back = self.right.backward(*double((*lead, *self.kept, *self.back)))[:2]

    def lead(self) -> tuple[Tensor | None, ...]:
        return (self.grad, None) if self.cell == "lstm" else (self.grad,)

    def kernel(self, way: str, tile: plan.Tile | None) -> build.Kernel:
        if self.cell == "lstm":
            return lstm.kernel(way, self.states, 4, False, False, tile)
        if self.cell == "gru":
            return gru.kernel(way, self.states, tile)
        return elman.kernel(way, self.states, self.cell == "gated", self.activation, tile)

    def forward(self, tile: plan.Tile | None) -> tuple[Tensor, ...]:
        return self.run.forward(*self.given, tile=tile)

    def backward(self, tile: plan.Tile | None) -> tuple[Tensor, ...]:
        return self.run.backward(*self.lead(), *self.kept, *self.back, tile=tile)

    def error(self, way: str, tile: plan.Tile | None) -> float:
        if way == "forward":
            return off(self.forward(tile)[0], self.expected)
        return max(off(got, right) for got, right in zip(self.backward(tile), self.expected_back, strict=False))


def double(values: Any) -> list[Any]:
    return [v.double() if isinstance(v, Tensor) else v for v in values]


def off(got: Tensor, right: Tensor) -> float:
    return ((got.double() - right).norm() / right.norm()).item()


def neighbours(problem: Problem, way: str) -> Iterator[plan.Tile]:
    """The plan's tile, then those one change away that can be expected to fit."""
    chosen = problem.kernel(way, None).tile
    yield chosen
    changes: list[dict[str, Any]] = [{"mail": True}] if chosen.blocks > 1 else []
    for name in ("rows", "lanes", "units", "blocks"):
        for value in (getattr(chosen, name) // 2, getattr(chosen, name) * 2):
            changes.append({name: value})
    changes += [
        {"blocks": chosen.blocks * 2, "lanes": chosen.lanes * 2},
        {"lanes": chosen.lanes // 2, "units": chosen.units // 2},
        {"lanes": chosen.lanes * 2, "units": chosen.units * 2},
    ]
    if chosen.held < plan.ALL:
        changes += [{"held": chosen.held - 1}, {"held": chosen.held + 1}]
        changes += [{"rows": 2 * chosen.rows, "held": held} for held in (chosen.held - 1, chosen.held + 8)]
    for change in changes:
        tile = replace(chosen, **change)
        if fits(problem, way, tile):
            yield tile
            if tile.blocks > 1 and list(change) in (["rows"], ["blocks"]):
                yield replace(tile, mail=True)


def fits(problem: Problem, way: str, tile: plan.Tile) -> bool:
    if min(tile.rows, tile.lanes, tile.units, tile.blocks) < 1 or tile.held < 0:
        return False
    kernel = problem.kernel(way, tile)
    values = tile.rows * tile.units
    if tile.tensor:
        possible = tile.lanes % 32 == tile.rows % 8 == tile.units * kernel.out % 16 == 0
        possible = possible and (values in (tile.lanes, 2 * tile.lanes, 4 * tile.lanes) or tile.lanes % values == 0)
        owned = tile.owned(problem.hidden)
        if tile.scatter:
            possible = possible and tile.mail and kernel.out == 1 and owned % 16 == 0
            possible = possible and tile.blocks * owned * 2 % kernel.threads == 0
        else:
            possible = possible and tile.lanes <= values * tile.blocks and owned // tile.units < 16
    else:
        possible = 4 <= tile.lanes <= 32 and values <= tile.lanes * min(4, tile.units) and tile.units <= tile.lanes
    if not possible or tile.blocks > 16 or tile.rows > 16:
        return False
    room = min(255, REGISTERS // kernel.threads)
    return kernel.threads <= 1024 and kernel.memory <= SHARED_BYTES and wanted(kernel) <= room


def wanted(kernel: build.Kernel) -> int:
    """Registers of a thread, roughly; on tensor cores more sums are on their way."""
    tile = kernel.tile
    sums = tile.sums(kernel.out) * 3 // 2 if tile.tensor else tile.sums(kernel.out)
    return tile.in_registers(kernel.hidden, kernel.out, kernel.into) + sums + SPARE


def on_tensor_cores(problem: Problem, way: str) -> list[plan.Tile]:
    """The tiles on tensor cores with the fewest cycles, by count."""
    found: dict[bool, list[plan.Tile]] = {False: [], True: []}
    several = problem.kernel(way, None).into > 1  # numbers per unit go in: fewer sums are sent than states
    for blocks, rows, scatter in itertools.product((1, 2, 4, 8, 16), (8, 16), (False, True) if several else (False,)):
        for lanes, units in itertools.product((32, 64, 128, 192, 256, 384), (8, 16, 24, 32, 48, 64)):
            tile = plan.Tile(blocks, lanes, units, rows, 0, mail=blocks > 1, tensor=True, scatter=scatter)
            kernel = problem.kernel(way, tile)
            if not 128 <= kernel.threads <= 512 or blocks * tile.owned(problem.hidden) > 1.35 * problem.hidden:
                continue
            limit = min(255, REGISTERS // kernel.threads)
            room = limit - wanted(kernel)
            # All weights in registers, or as many as leave some air, or as many as can be.
            for held in (plan.ALL, (room - (limit - 110) // 3) // 4, room // 4):
                tile = replace(tile, held=held)
                if fits(problem, way, tile):
                    found[scatter].append(tile)
                    break
    for tiles in found.values():
        tiles.sort(key=lambda tile: cycles(problem, way, tile))
    return found[False][: 3 if several else 6] + found[True][:4]


def cycles(problem: Problem, way: str, tile: plan.Tile) -> float:
    """Of a step, by count: products, reads of shared memory, what other blocks send, and rounds of blocks."""
    kernel, hidden = problem.kernel(way, tile), problem.hidden
    owned, warps = tile.owned(hidden), kernel.threads // 32
    products = 3 * owned * kernel.out * hidden * kernel.into * tile.rows / 640
    state, sums = (4 * tile.rows * tile.blocks * owned * number for number in (kernel.into, 1))
    unheld = tile.weights(hidden, kernel.out, kernel.into) - tile.in_registers(hidden, kernel.out, kernel.into)
    times = warps / tile.blocks if tile.scatter else owned / tile.units  # that a state is read
    reads = (state * times + 4 * unheld * kernel.threads) / 128
    met = (2 * sums if tile.scatter else 8 * warps * tile.rows * tile.units * kernel.out) / 128
    sent = (sums if tile.scatter else state) / 16 * (tile.blocks > 1)
    at_once = plan.H200.at_once(tile) or plan.H200.processors // tile.blocks
    rounds = -(-problem.models * -(-problem.batch // tile.rows) // at_once)
    return rounds * (max(products * (1.0 if warps >= 8 else 1.3), reads) + met + sent + 800)
