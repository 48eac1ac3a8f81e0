"""The tables of docs/scale.md: how updates grow, and from which size data-parallel training pays."""

from __future__ import annotations

from typing import Any

from measurements import Rows, measured

PEERS = {"RNN, exponential": "torch.nn.RNN", "LSTM": "torch.nn.LSTM"}
AXES = {"T": "T", "H": "H", "B": "B", "M": "models", "L": "layers"}


def growth_table() -> Rows:
    """Each layer along each axis: the largest case, the time over that of torch's layer, and the powers of growth."""
    found = measured("scaling-cpu")
    rows = []
    for axis, lines in found["axes"].items():
        for layer, peer in PEERS.items():
            mine, theirs = _cases(lines[layer]), _cases(lines[peer])
            last = mine[-1]
            common = max({row[axis] for row in mine} & {row[axis] for row in theirs})
            ratio = _at(mine, axis, common)["seconds"] / _at(theirs, axis, common)["seconds"]
            times, memory = (found["growth"][axis][what] for what in ("seconds", "gigabytes"))
            rows.append([
                f"{AXES[axis]} to {last[axis]:,}", layer, f"{_time(last['seconds'])}, {_memory(last['gigabytes'])}",
                f"{ratio:.2f} at {common:,}", f"{times[layer]:.2f}", f"{times[peer]:.2f}", f"{memory[layer]:.2f}",
                f"{memory[peer]:.2f}",
            ])  # fmt: skip
    heading = ["axis", "layer", "largest case", "time over torch's", "power of the time", "torch's", "of the memory"]
    return [[*heading, "torch's"], *rows]


def parallel_table() -> Rows:
    """Two processes against one."""
    heading = ["system", "H, B", "gradients", "update, B", "update, B/2", "exchange", "two processes are faster by"]
    return [
        heading,
        *(
            [f"`{row['system']}`", f"{row['hidden']}, {row['batch']}", _bytes(row["bytes"]), _time(row["one"]),
             _time(row["half"]), _time(row["exchange"]), f"{row['faster']:.2f}"]
            for row in measured("data-parallel-cpu")["updates"]
        ),
    ]  # fmt: skip


def exchange_table() -> Rows:
    """An all-reduce by gloo between two processes on one machine."""
    found = measured("data-parallel-cpu")["exchange"]
    sizes = [size for size in found if int(size) >= 1024]
    return [
        ["bytes", *(_bytes(int(size)) for size in sizes)],
        ["time", *(_time(found[size]["seconds"]) for size in sizes)],
        ["GB/s", *(f"{found[size]['gigabytes_a_second']:.2f}" for size in sizes)],
    ]


def _cases(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row for row in rows if "seconds" in row]


def _at(rows: list[dict[str, Any]], axis: str, value: int) -> dict[str, Any]:
    return next(row for row in rows if row[axis] == value)


def _time(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds * 1e3:.0f} ms" if seconds >= 0.01 else _small(seconds)


def _small(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.0f} µs"


def _memory(gigabytes: float) -> str:
    return f"{gigabytes:.1f} GB" if gigabytes >= 1 else f"{gigabytes * 1e3:.0f} MB"


def _bytes(count: int) -> str:
    return f"{count / 2**20:.1f} MB" if count >= 2**20 else f"{count / 2**10:.0f} KB"
