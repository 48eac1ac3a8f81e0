"""How a recurrence is shared out on a GPU: which tile runs which size.

The tables hold what was fastest on an H200 among the tiles tried at H = 64, 128, 192, 256, 384, 512, 768 and 1024;
`docs/kernels.md` has the times. The tables and the two ways to choose from them stand in one file: neither means
anything without the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import NamedTuple

AHEAD = 3  # steps fetched ahead, as in tile.cuh
ALL = 10**6  # weights held in registers: all of them
CLUSTERS = (2, 4, 8, 16)  # sizes of clusters in the tables


@dataclass(frozen=True)
class Tile:
    """The numbers a kernel is compiled for; `tile.cuh` says what they mean.

    Args:
        blocks: of a cluster, which shares the rows of the recurrent matrix among its blocks.
        lanes, units: threads of a group, and the units it owns.
        rows: of the batch, run side by side.
        held: columns of four weights that a thread keeps in registers; the rest lie in shared memory.
        mail: the blocks of a cluster count what arrives instead of meeting at a barrier; see `exchange.cuh`.
        together: of its blocks that one multiprocessor runs at once.
        tensor: the product runs on tensor cores, rows in multiples of 8, lanes in whole warps; `held` then counts
            fragments of four weights. See `tensor_core_product.cuh`.
        scatter: on tensor cores and with mail, blocks send each other sums instead of states; see
            `scatter_product.cuh`.
        ring: on tensor cores, weights that are not held come from device memory at every step, through this many slots
            of shared memory; 0 keeps them there.
    """

    blocks: int
    lanes: int
    units: int
    rows: int
    held: int = ALL
    mail: bool = False
    together: int = 1
    tensor: bool = False
    scatter: bool = False
    ring: int = 0

    def owned(self, hidden: int) -> int:
        """Units of a block, rounded up to whole warps."""
        groups = _up(_up(hidden, self.blocks), self.units)
        warp = max(1, 32 // self.lanes)
        return _up(groups, warp) * warp * self.units

    def threads(self, hidden: int) -> int:
        return self.owned(hidden) // self.units * self.lanes

    def weights(self, hidden: int, out: int, into: int) -> int:
        """Numbers of the matrix per thread, in registers or not."""
        if self.scatter:
            return self.blocks * self.owned(hidden) ** 2 * into // self.threads(hidden)
        per_column = self.units * out // 2 if self.tensor else 4 * self.units * out
        return per_column * into * _up(hidden, self._span)

    def in_registers(self, hidden: int, out: int, into: int) -> int:
        """Those that are held."""
        piece = 4 if self.tensor else 4 * self.units * out
        return min(self.weights(hidden, out, into), self.held * piece)

    def far(self, hidden: int, out: int, into: int) -> int:
        """Numbers of the matrix in device memory, of all blocks of a cluster."""
        streamed = self.weights(hidden, out, into) - self.in_registers(hidden, out, into)
        return self.blocks * self.threads(hidden) * streamed if self.ring else 0

    def sums(self, out: int) -> int:
        """Sums that a thread has under way."""
        values = self.rows * self.units * out
        return values * self.blocks // self.lanes * 2 if self.scatter else values // (16 if self.tensor else 1)

    def memory(self, hidden: int, out: int, into: int, streams: int) -> int:
        """Bytes of shared memory of a block."""
        row = into * max(_up(hidden, self._span) * self._span, self.blocks * self.owned(hidden))
        items = max(1, self.rows * self.units // self.lanes)
        threads = self.threads(hidden)
        rest = self.weights(hidden, out, into) - self.in_registers(hidden, out, into)
        spilled = (4 * self.ring or rest) * threads
        if self.scatter:
            row = into * self.owned(hidden)
            spilled += 2 * self.blocks * self.owned(hidden) * self.rows  # what the others send, twice
        elif self.tensor:
            spilled += threads // 32 * self.rows * (self.units * out + 4)  # the sums of each warp
        powers = 0
        if self.tensor:
            powers, row = self.rows * row // 16, _up(row + 16, 32) * 32 - 16
        return 4 * (2 * (self.rows * row + powers) + (AHEAD + 1) * streams * items * threads + spilled + 4)

    @property
    def _span(self) -> int:
        """Inputs that a group reads at a time."""
        return self.lanes // 2 if self.tensor else 4 * self.lanes


def _up(a: int, b: int) -> int:
    return -(-a // b)


# The largest H of each entry, then tiles in the order they are tried: the first that fills the GPU no more than once is
# taken, else the last. More rows in a tile mean fewer blocks, each slower.
Table = tuple[tuple[int, tuple[Tile, ...]], ...]


def _rows(tile: Tile, *rows: int) -> tuple[Tile, ...]:
    return tuple(replace(tile, rows=r) for r in rows)


def _mail(*tiles: Tile) -> tuple[Tile, ...]:
    return tuple(replace(tile, mail=True) for tile in tiles)


def _tensor(
    blocks: int, lanes: int, units: int, rows: int, held: int = ALL, scatter: bool = False, ring: int = 0
) -> Tile:
    return Tile(blocks, lanes, units, rows, held, mail=blocks > 1, tensor=True, scatter=scatter, ring=ring)


ELMAN: Table = (
    (64, _rows(Tile(1, 8, 4, 1), 1, 2, 4)),
    (128, (*_rows(Tile(1, 8, 8, 1), 1, 2, 4), _tensor(1, 64, 32, 8))),
    (192, (*_mail(Tile(2, 16, 8, 1)), Tile(1, 8, 8, 1), Tile(1, 16, 8, 2))),
    (256, _mail(Tile(4, 16, 4, 2), Tile(2, 16, 4, 4))),
    (384, _mail(Tile(8, 16, 4, 2, together=2), *_rows(Tile(8, 16, 4, 4), 4, 8))),
    (512, (*_mail(Tile(8, 16, 4, 4)), _tensor(4, 64, 32, 8, held=32))),
    (768, (_tensor(16, 128, 16, 8), _tensor(16, 128, 16, 16))),
    (1024, (_tensor(16, 128, 32, 8, held=32),)),
)
GATED_BACKWARD: Table = (*ELMAN[:-1], (1024, (_tensor(16, 128, 32, 8, held=36),)))  # what it fetches takes more room
GRU_FORWARD: Table = (
    (64, _rows(Tile(1, 8, 4, 1), 1, 2, 4)),
    (128, (*_mail(Tile(2, 8, 4, 1)), *_rows(Tile(1, 8, 4, 1), 1, 2))),
    (256, _mail(*_rows(Tile(8, 16, 2, 4), 4, 8), Tile(8, 16, 2, 16, held=2))),
    (384, (_tensor(16, 128, 16, 8),)),
    (512, (_tensor(16, 128, 16, 8, held=28),)),
    (1024, (_tensor(16, 128, 16, 8, held=8, ring=9),)),
)
GRU_BACKWARD: Table = (
    *GRU_FORWARD[:2],
    (256, (_tensor(16, 128, 16, 8, scatter=True), _tensor(8, 128, 16, 8, scatter=True))),
    (512, (_tensor(16, 128, 16, 8, held=24, scatter=True),)),
    (1024, (_tensor(16, 128, 16, 8, held=5, scatter=True, ring=7),)),
)
LSTM_FORWARD: Table = (
    (64, _rows(Tile(1, 8, 4, 1), 1, 2, 4)),
    (96, (Tile(1, 8, 4, 1), *_mail(*_rows(Tile(2, 16, 4, 1), 2, 4)))),
    (128, _mail(*_rows(Tile(2, 16, 4, 1), 1, 2, 4))),
    (256, _mail(Tile(8, 16, 2, 4), Tile(8, 16, 2, 8, held=3))),
    (512, (_tensor(16, 128, 16, 8, held=28),)),
    (1024, (_tensor(16, 128, 16, 8, held=8, ring=6),)),
)
LSTM_BACKWARD: Table = (
    *LSTM_FORWARD[:3],
    (256, (_tensor(16, 128, 16, 8, scatter=True), _tensor(8, 128, 16, 8, scatter=True))),
    (512, (_tensor(16, 128, 16, 8, held=28, scatter=True),)),
    (1024, (_tensor(16, 128, 16, 8, held=4, scatter=True, ring=10),)),
)


# Numbers per unit that come out of a product and that go in: which table its tiles are from.
def _table(out: int, into: int, streams: int) -> Table | None:
    if (out, into) == (1, 1):
        return ELMAN if streams <= 2 else GATED_BACKWARD
    if into == 1 and out <= 4:
        return GRU_FORWARD if out <= 3 else LSTM_FORWARD
    if out == 1 and into <= 4:
        return GRU_BACKWARD if into <= 3 else LSTM_BACKWARD
    return None


@dataclass(frozen=True)
class Machine:
    """What a GPU runs at once.

    Args:
        processors: its multiprocessors.
        clusters: by size how many, each block alone on its multiprocessor; none where a GPU has no clusters.
    """

    processors: int
    clusters: Mapping[int, int]

    def at_once(self, tile: Tile) -> int:
        """Blocks, or clusters of them, of a tile."""
        blocks = self.processors if tile.blocks == 1 else self.clusters.get(tile.blocks, 0)
        return blocks * tile.together

    def runs(self, tile: Tile) -> bool:
        return self.at_once(tile) > 0 and (bool(self.clusters) or not tile.tensor)


# By count it would be 33 clusters of 4 and 8 of 16; see `capacity`.
H200 = Machine(132, MappingProxyType({2: 66, 4: 30, 8: 15, 16: 7}))


class Shape(NamedTuple):
    """One product of a step.

    Attributes:
        out, into: numbers per unit that come out of it, and that go in.
        weighted: whether it has weights; a sum over units has none.
    """

    out: int
    into: int
    weighted: bool = True


Shapes = tuple[Shape, ...]


# Of a block of a Hopper GPU: threads, bytes of shared memory, registers of all threads and of one, and those that a
# thread needs besides weights, sums and what it fetches.
THREADS, SHARED_BYTES, REGISTERS, REGISTERS_OF_A_THREAD, OTHER_REGISTERS = 1024, 227 * 1024, 65536, 255, 48


@dataclass(frozen=True)
class Choice:
    """A tile for all products of a step, and how many of each one's weights are in registers.

    Args:
        held: for each product, in the units of `Tile.held`.
    """

    tile: Tile
    held: tuple[int, ...]

    def tiles(self) -> list[Tile]:
        return [replace(self.tile, held=held) for held in self.held]

    def memory(self, hidden: int, shapes: Shapes, streams: int) -> int:
        """Bytes of shared memory of a block."""
        found = zip(self.tiles(), shapes, strict=True)
        return sum(t.memory(hidden, s.out, s.into, 0 if n else streams) for n, (t, s) in enumerate(found))


def fitted(tile: Tile, hidden: int, shapes: Shapes, streams: int) -> Choice | None:
    """The tile with as many weights in registers as there is room for; None where the rest is too much."""
    threads = tile.threads(hidden)
    if threads > THREADS or (tile.tensor and tile.lanes > 32 and threads // tile.lanes >= 16):
        return None
    items = max(1, tile.rows * tile.units // tile.lanes)
    limit = min(REGISTERS_OF_A_THREAD, REGISTERS // threads)
    weighted = [shape for shape in shapes if shape.weighted]
    # A product on tensor cores reads a column of matrices ahead; each further product has addresses of its own. A sum
    # over units has neither, and its results seldom meet those of others.
    room = limit - OTHER_REGISTERS - streams * items - sum(tile.sums(shape.out) for shape in weighted)
    room -= 24 * tile.tensor + 24 * max(0, len(weighted) - 1)
    room = min(room, limit - 1 - sum(tile.sums(shape.out) for shape in shapes))
    # Where several numbers of a unit go in and come out, more matrices are under way, if shared memory has room.
    crossed = tile.tensor and any(shape.out > 1 and shape.into > 1 for shape in weighted)
    for spare in (32, 16, 0) if crossed else (0,):
        choice = Choice(tile, _shared_out(tile, hidden, shapes, room - spare))
        if choice.memory(hidden, shapes, streams) <= SHARED_BYTES:
            return choice
    return None


def _shared_out(tile: Tile, hidden: int, shapes: Shapes, room: int) -> tuple[int, ...]:
    """How many of each product's weights so many registers hold."""
    held = []
    for out, into, weighted in shapes:
        if not weighted:
            held.append(ALL)
            continue
        piece = 4 if tile.tensor else 4 * tile.units * out
        pieces = -(-tile.weights(hidden, out, into) // piece)
        held.append(max(0, min(pieces, room // piece)))
        room -= held[-1] * piece
    return tuple(held)


def _general(hidden: int, shapes: Shapes, streams: int, batch: int, models: int, machine: Machine) -> Choice | None:
    """The cheapest of all tiles in the tables, by a count of multiplications and of what an exchange takes.

    A product of as many numbers per unit on both sides is that of so many times the units, with tiles of their own.
    """
    out, into, weighted = shapes[0]
    table = ELMAN if streams <= 2 * out else GATED_BACKWARD
    if len(shapes) == 1 and weighted and out == into > 1 and covers(table, out * hidden, machine):
        tile = choose(table, out * hidden, batch, models, machine)
        if tile.units % (16 * out if tile.tensor else out) == 0:
            alike = _held(replace(tile, units=tile.units // out), hidden, shapes, streams)
            if alike is not None:
                return alike
    tables = (ELMAN, GRU_FORWARD, LSTM_FORWARD)
    tiles = dict.fromkeys(
        t for table in tables for _, listed in table for t in listed if not t.ring and machine.runs(t)
    )
    found: list[tuple[float, int, Choice]] = []
    for tile in (replace(t, held=ALL, scatter=False) for t in tiles):
        choice = fitted(tile, hidden, shapes, streams)
        if choice is not None:
            rounds = _up(models * _up(batch, tile.rows), machine.at_once(tile))
            found.append((rounds * _cycles(choice, hidden, shapes), len(found), choice))
    return min(found)[2] if found else None


def _cycles(choice: Choice, hidden: int, shapes: Shapes) -> float:
    """Of one step, about: multiplications of a block, reads of weights from shared memory, and the exchanges."""
    tile, total = choice.tile, 0.0
    threads = tile.threads(hidden)
    for each, (out, into, weighted) in zip(choice.tiles(), shapes, strict=True):
        weights, held = each.weights(hidden, out, into), each.in_registers(hidden, out, into)
        if weighted:
            total += weights * threads * tile.rows / (512 if tile.tensor else 128) + (weights - held) * threads / 32
        total += 1200 if tile.blocks > 1 else 300
    return total


def choices(
    shapes: Shapes, streams: int, hidden: int, batch: int, models: int, machine: Machine | None = None
) -> tuple[tuple[int, Choice], ...]:
    """Rows of the batch and the tile for them, one after another; none where no tile runs this many units."""
    machine = H200 if machine is None else machine
    table = _table(shapes[0].out, shapes[0].into, streams) if len(shapes) == 1 and shapes[0].weighted else None
    if table is not None and covers(table, hidden, machine):
        found = turns(table, hidden, batch, models, machine)
        several = tuple((rows, _held(tile, hidden, shapes, streams)) for rows, tile in found)
        if all(choice is not None for _, choice in several):
            return several  # type: ignore[return-value]
    general = _general(hidden, shapes, streams, batch, models, machine)
    return () if general is None else ((batch, general),)


def _held(tile: Tile, hidden: int, shapes: Shapes, streams: int) -> Choice | None:
    """A tile of a table as it was measured, if its memory has room for what is fetched."""
    choice = Choice(tile, (tile.held,))
    if choice.memory(hidden, shapes, streams) <= SHARED_BYTES:
        return choice
    return None if tile.ring else fitted(tile, hidden, shapes, streams)


def covers(table: Table, hidden: int, machine: Machine = H200) -> bool:
    """Whether some tile runs `hidden` units."""
    return 1 <= hidden <= table[-1][0] and bool(_tiles(table, hidden, machine))


def largest(table: Table, machine: Machine = H200) -> int:
    """The most units that some tile runs."""
    return max(most for most, tiles in table if any(machine.runs(t) for t in tiles))


def choose(table: Table, hidden: int, batch: int, models: int, machine: Machine = H200) -> Tile:
    """The tile for `models` models of `hidden` units and `batch` rows."""
    tiles = _tiles(table, hidden, machine)
    return next((t for t in tiles if models * _up(batch, t.rows) <= machine.at_once(t)), tiles[-1])


def turns(table: Table, hidden: int, batch: int, models: int, machine: Machine = H200) -> tuple[tuple[int, Tile], ...]:
    """Rows of the batch and the tile for them, one after another.

    That is all of them at once where some tile can. On tensor cores, where none can, the rows of the last turn run by
    themselves if a quicker tile takes them. Elsewhere a multiprocessor may run several blocks, and one launch is best.
    """
    tile = choose(table, hidden, batch, models, machine)
    full = machine.at_once(tile) // models * tile.rows if models else 0
    rest = batch % full if full and tile.tensor else 0
    alone = choose(table, hidden, rest, models, machine) if 0 < rest < batch else tile
    divided = ((batch - rest, tile), (rest, alone))

    def rounds(rows: int, tile: Tile) -> int:
        return _up(models * _up(rows, tile.rows), machine.at_once(tile))

    # In one launch the models share the last turn, so that several of them may need fewer turns undivided.
    if alone == tile or sum(rounds(*each) for each in divided) > rounds(batch, tile):
        return ((batch, tile),)
    return divided


def _tiles(table: Table, hidden: int, machine: Machine) -> list[Tile]:
    entry = next(tiles for largest, tiles in table if hidden <= largest)
    return [t for t in entry if machine.runs(t)]
