"""Files that expand to far more than their size, or claim to: each is refused, or read, within 1 GB of memory."""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import shutil
import struct
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import torch

import evenflow
from evenflow.lab import data, recipes
from evenflow.lab.diagnosis.cli_target import diagnose_target
from evenflow.lab.report import write_report
from evenflow.lab.sweep.sweep_record import SweepRecord
from evenflow.lab.training import Run, train
from evenflow.lab.training.seed_folders import SEEDS, resumed_folders
from harden.fuzz import LARGE, limit_memory, problem
from harden.run_kinds import config
from harden.trials import Attack, Trials

MEGABYTE = 1 << 20
PATIENCE = 60.0  # seconds
BOMB = 3 << 30  # bytes that a small file expands to
NUMBERS = 4_000_000  # of the tables that must be read
FACTOR, SLACK = 3, 64 * MEGABYTE  # of their bytes as float64, and what a process needs beside them
SIZE, STEPS = "hidden_size", "length"  # options in a config

Case = tuple[str, Callable[[], object], int]  # what is read, how, and the memory for it


def limit_all(trials: Trials) -> None:
    """Every case once, each in a process of its own with a limit of its address space."""
    for name, read, limit in cases(trials.folder):
        with trials.trial(name):
            said = within(limit, read)
            assert not said, f"with {limit // MEGABYTE:,} MB: {said}"


def within(limit: int, read: Callable[[], object]) -> str:
    """What is wrong with how a forked process reads that has `limit` bytes more than this one; "" for nothing."""
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            limit_memory(limit)
            said = problem(read, PATIENCE)
        except BaseException as error:
            said = repr(error)
        os.write(theirs, said.encode()[:1000] or b" ")
        os._exit(0)
    os.close(theirs)
    with open(ours, "rb") as pipe:
        said = pipe.read().decode(errors="replace")
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return said.strip() if said else f"the process ended with {code}"


def cases(folder: Path) -> Iterator[Case]:
    """The files, written one after the other, with what reads them and the memory it may take."""
    yield from _tables(folder)
    yield from _arrays(folder)
    yield from _sets(folder)
    yield from _weights(folder)
    yield from _runs(folder)


def _tables(folder: Path) -> Iterator[Case]:
    path = folder / "small.csv"
    path.write_text("a,b\n" + "0.5,1.5\n" * 300, encoding="utf-8")
    yield "small csv", partial(data.read_table, path), SLACK
    whole = FACTOR * 8 * NUMBERS + SLACK
    path = folder / "wide.csv"
    width = 40_000
    rows = ((",".join(["0.123456"] * width) + "\n") for _ in range(NUMBERS // width))
    _write(path, [",".join(f"c{n}" for n in range(width)) + "\n", *rows])
    yield "wide csv", partial(data.read_table, path), whole
    path = folder / "long.csv"
    _write(path, ["a,b,c,d\n", *(["0.123456,1.5,-2.25,1e-3\n" * 1000] * (NUMBERS // 4000))])
    yield "long csv", partial(data.read_table, path), whole
    path = folder / "words.csv"
    _write(path, ["a,b\n", *(["0.5,left\n0.25,right\n" * 1000] * (NUMBERS // 4000))])
    yield "long csv with words", partial(data.read_table, path), whole
    path = folder / "bomb.csv.gz"
    with gzip.open(path, "wb", 1) as file:
        file.write(b"a,b\n")
        for _ in range(BOMB >> 20):
            file.write(b"1.5,2.5\n" * (MEGABYTE // 8))
    yield "csv.gz that expands to 3 GB", partial(data.read_table, path), LARGE
    with gzip.open(path, "wb", 1) as file:
        file.write(b"a,b\n")
        for _ in range(BOMB >> 20):
            file.write(bytes(MEGABYTE))
    yield "csv.gz with one line of 3 GB", partial(data.read_table, path), LARGE


def _write(path: Path, pieces: list[str]) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.writelines(pieces)


def _bomb(path: Path, name: str, header: bytes, size: int = BOMB) -> Path:
    """An npz file with one array of zeros, packed to a thousandth of its size."""
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        archive.open(f"{name}.npy", "w", force_zip64=True) as member,
    ):
        member.write(header)
        for _ in range(size // MEGABYTE):
            member.write(bytes(MEGABYTE))
    return path


def _header(shape: tuple[int, ...], dtype: str = "<f8") -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, {"descr": dtype, "fortran_order": False, "shape": shape})
    return buffer.getvalue()


def _arrays(folder: Path) -> Iterator[Case]:
    path = _bomb(folder / "bomb.npz", "x", _header((BOMB // 80, 10)))
    yield "npz that expands to 3 GB", partial(data.read_npz, path), LARGE
    for name, shape in (("a huge shape", (10**9, 10**3)), ("a shape beside a zero", (0, 10**18))):
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("x.npy", _header(shape) + bytes(80))
        yield f"npz with {name}", partial(data.read_npz, path), LARGE
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.npy", _header((10,)) + bytes(80))
    content = bytearray(path.read_bytes())
    at = content.rindex(b"PK\x01\x02")
    content[at + 20 : at + 28] = struct.pack("<II", 0xFFFFFFF0, 0xFFFFFFF0)
    path.write_bytes(content)
    yield "npz whose member claims 4 GB", partial(data.read_npz, path), LARGE


def _sets(folder: Path) -> Iterator[Case]:
    place = folder / "mnist"
    place.mkdir()
    for name, heading in (("images-idx3", (3, 60000, 28, 28)), ("labels-idx1", (1, 0xFFFFFFFF))):
        dimensions, *sizes = heading
        path = place / f"t10k-{name}-ubyte.gz"
        with gzip.open(path, "wb", 1) as file:
            file.write(struct.pack(f">BBBB{dimensions}I", 0, 0, 8, dimensions, *sizes))
            for _ in range(BOMB >> 20 if dimensions == 1 else 1):
                file.write(bytes(MEGABYTE))
    yield "idx with false sizes", partial(data.read_mnist, folder, "test"), LARGE
    (folder / "multilabel").mkdir()
    for part in ("train", "test"):
        path = folder / f"multilabel/mediamill_{part}.txt"
        path.write_text(f"2 {1 << 27} 3\n0 0:1\n1 1:1\n", encoding="utf-8")
    yield "sparse text of very many features", partial(data.read_multilabel, folder, "mediamill"), LARGE
    (folder / "ucr").mkdir()
    _bomb(folder / "ucr/Bomb.npz", "x_train", _header((1000, BOMB // 8000)))
    yield "npz of series that expands to 3 GB", partial(data.read_ucr, folder, "Bomb"), LARGE
    (folder / "ptb").mkdir()
    with gzip.open(folder / "ptb/ptb.train.txt.gz", "wb", 1) as file:
        for _ in range(BOMB >> 20):
            file.write(b"word " * (MEGABYTE // 5))
    yield "text that expands to 3 GB", partial(data.read_words, folder, "train"), LARGE


def _weights(folder: Path) -> Iterator[Case]:
    def show(name: str) -> Case:
        return name, partial(diagnose_target, str(path)), LARGE

    path = folder / "stretched.pt"
    units = 20_000
    cell = {"weight_ih_l0": (units, 2), "weight_hh_l0": (units, units), "bias_ih_l0": (units,), "bias_hh_l0": (units,)}
    torch.save({name: torch.zeros(1).expand(*shape) for name, shape in cell.items()}, path)
    yield show("weights of torch that repeat one number (stride 0)")
    torch.save({name: torch.zeros(1).expand(*shape[::-1]) for name, shape in cell.items()}, path)
    yield show("the same turned")
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, bytes(BOMB >> 2) if "/data/" in name else content)
    yield show("weights of torch that are packed")
    path = folder / "false.safetensors"
    for name, shape, end in (("false sizes", (1 << 16, 1 << 14), 1 << 32), ("a huge header", (4, 2), 32)):
        head = json.dumps({"weight_hh_l0": {"dtype": "F32", "shape": shape, "data_offsets": [0, end]}}).encode()
        size = 1 << 40 if name == "a huge header" else len(head)
        path.write_bytes(struct.pack("<Q", size) + head + bytes(64))
        yield show(f"safetensors with {name}")


def _runs(folder: Path) -> Iterator[Case]:
    train(config({"name": "urnn"}, probe_every=2), folder / "run", progress=False)
    run = folder / "damaged"

    def fresh() -> None:
        shutil.rmtree(run, ignore_errors=True)
        shutil.copytree(folder / "run", run)

    for file in ("probes.npz", "answers.npz"):
        fresh()
        _bomb(run / file, "step", _header((BOMB // 8,)))
        yield f"report of a run whose {file} expands to 3 GB", partial(write_report, [run], folder / "a.html"), LARGE
    fresh()
    line = (run / "metrics.csv").read_bytes().splitlines(keepends=True)
    with (run / "metrics.csv").open("wb") as table:
        table.write(line[0])
        for _ in range((600 << 20) // (len(line[1]) * 1000)):
            table.write(line[1] * 1000)
    yield "report of a run whose metrics.csv has 600 MB", partial(write_report, [run], folder / "b.html"), LARGE
    fresh()
    for file in ("config.toml", "status.toml", "bundle.json"):
        fresh()
        os.truncate(run / file, BOMB)  # a hole: no disk is used
        read = partial(evenflow.load, run) if file == "bundle.json" else partial(_shown, run)
        yield f"run whose {file} has 3 GB", read, LARGE
    fresh()
    table = json.loads((run / "bundle.json").read_bytes())
    text = json.dumps(table).replace('"hidden_size": 4', '"hidden_size": 1000000')
    (run / "bundle.json").write_text(text, encoding="utf-8")
    yield "bundle of a layer with a million units", partial(evenflow.load, run), LARGE
    text = (folder / "run/config.toml").read_text(encoding="utf-8")
    for option, value in ((SIZE, 30_000), (SIZE, 1_000_000), (STEPS, 100_000), (STEPS, 100_000_000)):
        fresh()
        (run / "config.toml").write_text(re.sub(rf"(?m)^{option} = .*$", f"{option} = {value}", text), encoding="utf-8")
        yield f"doctor of a run whose config has {option} = {value}", partial(diagnose_target, str(run)), LARGE
    fresh()
    latest = (run / "checkpoint/latest").read_text(encoding="ascii").strip()
    for file in (*(f"{latest}/{name}" for name in ("manifest.json", "state.pt", "weights.safetensors")), "latest"):
        fresh()
        os.truncate(run / "checkpoint" / file, BOMB)
        yield f"checkpoint whose {Path(file).name} has 3 GB", lambda: Run(run).weights(), LARGE
    large: dict[str, Callable[[], object]] = {
        SEEDS: lambda: resumed_folders(folder),
        "sweep.json": lambda: SweepRecord(folder, {}),
        "recipe.toml": lambda: recipes.read(folder / "recipe.toml"),
    }
    for file, opens in large.items():
        (folder / file).touch()
        os.truncate(folder / file, BOMB)
        yield f"{file} of 3 GB", opens, LARGE
        (folder / file).unlink()


def _shown(folder: Path) -> None:
    run = Run(folder)
    assert run.status


ATTACKS = (Attack("memory", "small files that expand or claim to be large, read with 1 GB", limit_all, 0.5),)
