"""How a stack of layers is shared out on a GPU: what each choice costs, in cycles of a multiprocessor; see `stack.cuh`.

Weights stay with the threads that multiply by them: in registers as far as there are any, then in shared memory, and
what is left in device memory. The cheapest choice is taken.
"""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass

from evenflow.scan.cuda import build, plan

IN_REGISTERS, IN_SHARED, FAR_AWAY = range(3)
BLOCK_BYTES = 227 * 1024
PHASES = 3  # as in stack.cuh
REGISTERS, MOST_REGISTERS = 65536, 255  # of a multiprocessor, and of a thread
SPARE_REGISTERS = 22  # of a thread, for addresses and the like; with fewer the compiler spills more than a few numbers
MOST_LAYERS = 4  # whose loops are unrolled
LANES, UNITS, ROWS = (8, 16, 32), (1, 2, 4), (1, 2, 4, 8)  # that are tried
# Cycles on an H200, fitted to benchmarks/results/stacks-cuda.json; docs/kernels.md says how well.
PHASE_CYCLES, BACK_CYCLES = 195, 420  # of a phase of any size: curves, a barrier, the mail's way; more if backward
LETTER_CYCLES = 0.7  # of each number that a block gets by mail
ROUND_CYCLES = 490  # of a warp, for one gate: to see what it sees and to add up what its lanes know
MULTIPLY_CYCLES, READ_CYCLES, SHUFFLE_CYCLES = 0.21, 6.4, 2.0  # of a warp's instructions
SPILLED_CYCLES = 1.8  # of a warp, for each weight of a thread in shared memory
FAR_BYTES = 48  # a cycle, for each multiprocessor, from the L2 cache
MOST_CYCLES = 200_000  # of a step; torch operations then take no longer
FEW_WARPS, WAITING = 8, 1.55  # fewer cannot hide what they wait for


@dataclass(frozen=True)
class Stack:
    """The numbers a kernel is compiled for, and the kernel.

    Args:
        hidden, layers: H and L.
        shares: numbers of a unit that come from below: 1 for tanh, 3 for GRU, 4 for LSTM units.
        way: ``"forward"`` or ``"backward"``.
        dropped: whether states are multiplied by factors on their way up.
        cluster: blocks that share the units of every layer.
        lanes, units: threads of a group, and the units of each layer that it owns.
        rows: of the batch, run side by side.
        places: where the weights of feedback, those on the way up and those of the units' own gates lie.
    """

    hidden: int
    layers: int
    shares: int
    way: str
    dropped: bool
    cluster: int
    lanes: int
    units: int
    rows: int
    places: tuple[int, int, int] = (IN_REGISTERS, IN_REGISTERS, IN_REGISTERS)

    @property
    def function(self) -> str:
        return f"gated_feedback_{self.way}"

    @functools.cached_property
    def owned(self) -> int:
        """Units of a block, rounded up to whole warps."""
        meet = 32 // self.lanes
        return _up(_up(_up(self.hidden, self.cluster), self.units), meet) * meet * self.units

    @property
    def threads(self) -> int:
        return self.owned // self.units * self.lanes

    @property
    def values(self) -> int:
        return self.rows * self.units

    @property
    def columns(self) -> int:
        return _up(self.hidden, 4 * self.lanes)

    @property
    def families(self) -> tuple[int, int, int]:
        """Matrices of H × H in each family of weights."""
        return self.layers**2, (self.layers - 1) * self.shares, self.layers * (self.shares - 1)

    def weights(self, place: int) -> int:
        """Numbers of a thread's weights that lie there."""
        count = sum(n for n, where in zip(self.families, self.places, strict=True) if where == place)
        return count * self.columns * 4 * self.units

    @property
    def numbers(self) -> int:
        """That a unit mails."""
        if self.way == "forward":
            return 1 + self.dropped
        return 1 if self.shares == 1 else 4

    @functools.cached_property
    def memory(self) -> int:
        """Bytes of shared memory of a block."""
        L, forward = self.layers, self.way == "forward"
        gates, above = L * self.rows, max(1, L - 1)
        width = max(self.columns * 4 * self.lanes, self.cluster * self.owned)
        phase = _up(self.numbers * self.rows * width, 4) * 4
        streams = self.shares if forward else L * {1: 2, 3: 6, 4: 8}[self.shares]
        streams += L - 1 if self.dropped else 0
        slot = _up(streams * self.rows * self.owned + gates * (1 if forward else L), 4) * 4
        pitch = _up(self.hidden, 4) * 4
        row, fed = (pitch, 0) if forward else (self.owned, gates * pitch)
        biases = (above * self.shares + L) * self.owned + above * L if forward else 0
        seen = (L**3 + above * L) * row
        spilled = self.weights(IN_SHARED) * self.threads
        return 4 * (8 + PHASES * phase + spilled + 4 * L * gates + 2 * slot + fed + seen + biases)

    @property
    def far(self) -> int:
        """Numbers of one model's weights in device memory."""
        return self.weights(FAR_AWAY) * self.threads * self.cluster

    @property
    def registers(self) -> int:
        """Of a thread, about."""
        L, own = self.layers, self.shares - 1
        if self.way == "forward":
            working = max(L, self.shares, own) * self.values + 2 * L * L + L * own + 2 * L
        else:
            working = 2 * L * self.values + 3 * L
        return self.weights(IN_REGISTERS) + working + 4 * self.rows + SPARE_REGISTERS

    def fits(self, block_bytes: int = BLOCK_BYTES) -> bool:
        most = min(MOST_REGISTERS, REGISTERS // self.threads)
        return self.memory <= block_bytes and self.threads <= 1024 and self.registers <= most

    @functools.cached_property
    def cycles(self) -> float:
        """What a step costs."""
        L, warps, forward = self.layers, self.threads // 32, self.way == "forward"
        multiplied = sum(map(self.weights, range(3))) * self.rows * _up(warps, 4)
        # Forward a state is read once for all that it goes to, backward each number that is sent by itself.
        passes = 2 * L - 1 + (L if self.shares > 1 else 0) if forward else L + sum(self.families[1:])
        inputs = passes * self.columns * self.rows * warps
        outs = sum(self.families) if forward else 2 * L - 1
        shuffled = outs * warps * (self.values + (self.lanes // self.values).bit_length() - 2)
        products = MULTIPLY_CYCLES * multiplied + READ_CYCLES * inputs + SHUFFLE_CYCLES * shuffled
        products += SPILLED_CYCLES * self.weights(IN_SHARED) * warps
        rounds = L * _up(L * self.rows, warps) * ROUND_CYCLES
        mailed = self.numbers * self.rows * self.cluster * self.owned * LETTER_CYCLES
        phases = L * (PHASE_CYCLES + (0 if forward else BACK_CYCLES) + mailed)
        waited = (products + rounds) * (WAITING if warps < FEW_WARPS else 1)
        return phases + waited + self.far * 4 / self.cluster / FAR_BYTES

    def blocks(self, batch: int) -> int:
        """Of its grid, for each model."""
        return _up(batch, self.rows) * self.cluster

    def entry(self, name: str) -> str:
        """The line that makes a kernel of the function."""
        numbers = (self.hidden, self.layers, self.shares, self.cluster, self.lanes, self.units, self.rows, *self.places)
        words = (str(self.dropped).lower(), str(self.way == "forward").lower())
        stack = f"Stack<{', '.join((*map(str, numbers), *words))}>"
        agree = f'static_assert({stack}::THREADS == {self.threads} && {stack}::BYTES == {self.memory}, "stack.py");'
        return f"{agree}\nENTRY({name}, {self.threads}, {self.cluster}, GatedFeedback, {self.function}<{stack}>)\n"

    def text(self, machine: str = "machine.cuh") -> str:
        """The whole source, the same for every GPU."""
        files = (machine, "tile.cuh", "activation.cuh", "stack.cuh", "gated_feedback.cuh", "gated_feedback_back.cuh")
        return "".join(build.read(file) for file in files) + self.entry("run")


def _up(a: int, b: int) -> int:
    return -(-a // b)


@functools.lru_cache(1024)  # rows may differ with every batch
def choose(
    hidden: int,
    layers: int,
    shares: int,
    way: str,
    dropped: bool,
    rows: int,
    clusters: tuple[tuple[int, int], ...],
    block_bytes: int = BLOCK_BYTES,
) -> Stack | None:
    """The cheapest stack for so many rows of all models together, or None where none fits.

    Args:
        clusters: their sizes, and how many of each a GPU runs at once.
    """
    at_once = dict(clusters)
    found = _fitting(hidden, layers, shares, way, dropped, tuple(at_once), block_bytes)
    turns = ((_up(_up(rows, s.rows), at_once[s.cluster]) * s.cycles, s) for s in found)
    turns = (each for each in turns if each[1].cycles <= MOST_CYCLES)
    return min(turns, key=lambda each: each[0], default=(0, None))[1]


@functools.cache
def _fitting(
    hidden: int, layers: int, shares: int, way: str, dropped: bool, clusters: tuple[int, ...], block_bytes: int
) -> list[Stack]:
    """One stack of each shape that fits, its weights placed as is the cheapest."""
    found = []
    for cluster, lanes, units, rows in itertools.product(clusters, LANES, UNITS, ROWS):
        if layers > MOST_LAYERS or rows * units > lanes or units > _up(hidden, cluster) or 4 * lanes > max(32, hidden):
            continue
        shape = (hidden, layers, shares, way, dropped, cluster, lanes, units, rows)
        placed = (Stack(*shape, places) for places in itertools.product(range(3), range(3), range(3)))
        fitting = [stack for stack in placed if stack.fits(block_bytes)]
        found += [min(fitting, key=lambda stack: stack.cycles)] if fitting else []
    return found


def clusters(machine: plan.Machine) -> tuple[tuple[int, int], ...]:
    """Sizes of clusters that a GPU has, and how many it runs at once."""
    return tuple(sorted(machine.clusters.items()))
