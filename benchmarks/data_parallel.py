"""From which size two processes on a CPU train faster than one: updates, and the exchange of their gradients by gloo.

    python benchmarks/data_parallel.py [--out benchmarks/results]

An update of a batch of B sequences by one process takes t(B). Two processes take t(B/2) for half of the batch each,
and c for the mean of their gradients; so they are about t(B) / (t(B/2) + c) times as fast. DDP overlaps a part of the
exchange with the backward pass, and adds work of its own. t is processor time of one thread, the least of some
repetitions; c is the least time on the clock of an all-reduce of as many bytes between two processes on this machine,
because other work on it lengthens most of them. To data-parallel-cpu.json.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import distributed, multiprocessing

from evenflow import SequenceModel, create
from evenflow.lab.bench import hardware

INPUT, STEPS = 8, 100
CASES = [
    *(("sgornn", hidden, batch) for hidden, batch in ((128, 50), (512, 50))),
    *(("lstm", hidden, batch) for hidden, batch in ((32, 16), (128, 16), (128, 64), (128, 256), (512, 64), (1024, 64))),
]
SIZES = [4**n for n in range(5, 13)]  # bytes of an all-reduce: 1 KB to 16 MB
REPEATS, EXCHANGES = 5, 100


def update_seconds(system: str, hidden: int, batch: int) -> tuple[float, int]:
    """Seconds of an update, and the bytes of its gradients."""
    torch.manual_seed(0)
    model = SequenceModel(create(system, INPUT, hidden), 2)
    optimizer = torch.optim.Adam(model.parameters(), 1e-6)
    x, times = torch.randn(STEPS, batch, INPUT), []
    for _ in range(REPEATS + 1):
        begin = time.process_time()
        optimizer.zero_grad()
        model(x)[0].square().mean().backward()
        optimizer.step()
        times.append(time.process_time() - begin)
    count = sum(p.numel() * p.element_size() for p in model.parameters() if p.requires_grad)
    return min(times[1:]), count


def exchange(rank: int, port: int, sizes: list[int], path: str) -> None:
    """One of two processes: the least time of an all-reduce of each size."""
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    found = {}
    for size in sizes:
        tensor, times = torch.ones(max(1, size // 4)), []
        for _ in range(EXCHANGES):
            distributed.barrier()
            begin = time.perf_counter()
            distributed.all_reduce(tensor)
            times.append(time.perf_counter() - begin)
        found[size] = min(times)
    if rank == 0:
        Path(path).write_text(json.dumps(found))
    distributed.destroy_process_group()


def exchanges(sizes: list[int]) -> dict[int, float]:
    """Seconds of an all-reduce by its bytes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "found.json")
        multiprocessing.spawn(exchange, (port, sizes, path), nprocs=2)
        return {int(size): seconds for size, seconds in json.loads(Path(path).read_text()).items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    rows: list[dict[str, Any]] = []
    for system, hidden, batch in CASES:
        whole, size = update_seconds(system, hidden, batch)
        half, _ = update_seconds(system, hidden, batch // 2)
        rows.append({"system": system, "hidden": hidden, "batch": batch, "bytes": size, "one": whole, "half": half})
    times = exchanges(sorted({*SIZES, *(row["bytes"] for row in rows)}))
    for row in rows:
        row["exchange"] = times[row["bytes"]]
        row["faster"] = row["one"] / (row["half"] + row["exchange"])
        print(row, flush=True)
    found = {
        "hardware": hardware(torch.device("cpu")),
        "steps": STEPS,
        "exchange": {size: {"seconds": times[size], "gigabytes_a_second": size / times[size] / 1e9} for size in SIZES},
        "updates": rows,
    }
    (options.out / "data-parallel-cpu.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
