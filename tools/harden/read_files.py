"""Every file that evenflow reads, good ones, each with what reads it: the targets of the fuzz."""

from __future__ import annotations

import gzip
import importlib
import json
import sys
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w
import torch

import evenflow
from evenflow.lab import data, recipes
from evenflow.lab.data.file_blocks import file_blocks
from evenflow.lab.diagnosis.cli_target import diagnose_target
from evenflow.lab.prediction.predict_file import predict_file
from evenflow.lab.recipes.provenance import FILE as ORIGIN
from evenflow.lab.recipes.recipe_record import FILE as RECORD
from evenflow.lab.report import write_report
from evenflow.lab.sweep.sweep_record import SweepRecord
from evenflow.lab.training import Run, checkpoint, read_config, train
from evenflow.lab.training.seed_folders import SEEDS, resumed_folders
from harden.run_kinds import KINDS, RECIPE, config

TESTS = Path(__file__).parents[2] / "tests"


@dataclass(frozen=True)
class ReadFile:
    """A file and what reads it.

    Attributes:
        name: for reports.
        path: the good file, which mutants of it replace.
        read: reads it; returns anything, or raises a ValueError of one line.
    """

    name: str
    path: Path
    read: Callable[[], object]


def made_data() -> Any:
    """The module of the tests that writes a small file of every format."""
    sys.path.append(str(TESTS))
    try:
        return importlib.import_module("made_data")
    finally:
        sys.path.remove(str(TESTS))


def data_files(folder: Path) -> Iterator[ReadFile]:
    """Data sets and a user's own files."""
    made_data().write(folder)
    own, ucr = folder / "own.csv", folder / "ucr"
    packed = folder / "packed.csv.gz"
    packed.write_bytes(gzip.compress(own.read_bytes()))
    timed = folder / "timed.csv"
    timed.write_text(_timed(), encoding="utf-8")
    yield ReadFile("csv", own, lambda: data.read_table(own))
    yield ReadFile("csv as numbers to predict", own, lambda: data.read_table(own, kind="next", sequence="sequence"))
    yield ReadFile("csv with times and gaps", timed, lambda: data.read_table(timed, time="when", missing="mean"))
    yield ReadFile("csv.gz", packed, lambda: data.read_table(packed))
    yield ReadFile("npz", folder / "own.npz", lambda: data.read_npz(folder / "own.npz"))
    cifar = folder / "cifar-10-batches-bin/test_batch.bin"
    yield ReadFile("cifar", cifar, lambda: data.read_cifar(folder, "test"))
    for part in ("images-idx3", "labels-idx1"):
        path = folder / "mnist" / f"t10k-{part}-ubyte.gz"
        yield ReadFile(f"idx {part}", path, lambda: data.read_mnist(folder, "test"))
    yield ReadFile("har subset", folder / "har/uci_har_subset.npz", lambda: data.read_har(folder, "subset"))
    for name in ("hapt_raw", "uci_har_index"):
        yield ReadFile(f"har {name}", folder / f"har/{name}.npz", lambda: data.read_har(folder, "rebuilt"))
    text = folder / "har/UCI HAR Dataset/test"
    for path in (text / "y_test.txt", text / "Inertial Signals/total_acc_x_test.txt"):
        yield ReadFile(f"har {path.name}", path, lambda: data.read_har(folder, "original"))
    yield ReadFile("ucr npz", ucr / "ECG5000.npz", lambda: data.read_ucr(folder, "ECG5000"))
    for ending, written in (("tsv", _tsv()), ("ts", _ts()), ("txt", _tsv().replace("\t", "  "))):
        path = ucr / f"Made{ending}_TRAIN.{ending}"
        path.write_text(written, encoding="utf-8")
        yield ReadFile(f"ucr {ending}", path, partial(data.read_ucr, folder, f"Made{ending}"))
    yield ReadFile("bits of labels", folder / "multilabel/bibtex.npz", lambda: data.read_multilabel(folder, "bibtex"))
    sparse = folder / "multilabel/mediamill_train.txt"
    for part in ("train", "test"):
        (sparse.parent / f"mediamill_{part}.txt").write_text("2 5 3\n0,2 0:0.5 4:1e-3\n 1:1\n", encoding="utf-8")
    yield ReadFile("sparse labels", sparse, lambda: data.read_multilabel(folder, "mediamill"))
    _small_music(folder / "music/Nottingham.mat")
    yield ReadFile("mat", folder / "music/Nottingham.mat", lambda: data.read_music(folder, "Nottingham"))
    words = folder / "ptb/ptb.valid.txt"
    yield ReadFile("words", words, lambda: data.read_words(folder, "valid"))
    yield ReadFile("characters", words, lambda: data.read_characters(folder, "valid"))


def parquet_files(folder: Path) -> Iterator[ReadFile]:
    """A user's own Parquet file, which pyarrow reads."""
    made_data().write(folder)
    yield ReadFile("parquet", folder / "own.parquet", lambda: data.read_table(folder / "own.parquet"))


def run_files(folder: Path) -> Iterator[ReadFile]:
    """The files of runs, records, configs, recipes, bundles and weights."""
    run = folder / "run"
    train(config({"name": "urnn"}, probe_every=2, checkpoint_every=4), run, progress=False)
    version = checkpoint.find(run / "checkpoint") or ""
    place = run / "checkpoint" / version
    for name, attributes in (
        ("config.toml", "config"),
        ("status.toml", "status diverged ended"),
        ("metrics.csv", "metrics measured"),
        ("probes.npz", "probes"),
        ("answers.npz", "answers"),
    ):
        if (run / name).exists():
            yield ReadFile(f"run {name}", run / name, partial(_attributes, run, attributes))
            yield ReadFile(f"report of {name}", run / name, lambda: write_report([run], folder / "page.html"))
    for path in (run / "checkpoint/latest", *sorted(place.iterdir())):
        yield ReadFile(f"checkpoint {path.name}", path, lambda: Run(run).weights())
    for path in sorted(place.iterdir()):
        yield ReadFile(f"trusted checkpoint {path.name}", path, lambda: checkpoint.load(run / "checkpoint", version))
    best = run / "checkpoint/best.safetensors"
    yield ReadFile("best weights", best, lambda: Run(run).weights("best"))
    yield ReadFile("bundle.json of a run", run / "bundle.json", lambda: evenflow.load(run))
    yield ReadFile("config", run / "config.toml", lambda: read_config(tomllib.loads(Run(run).folder.joinpath(
        "config.toml").read_text(encoding="utf-8"))))  # fmt: skip
    KINDS["sweep"].sitting(folder / "sweep")
    record = folder / "sweep/sweep.json"
    request = json.loads(record.read_bytes())["request"]
    yield ReadFile("sweep.json", record, lambda: SweepRecord(folder / "sweep", request))
    yield ReadFile("sweep.json of a sweep that goes on", record, lambda: KINDS["sweep"].sitting(folder / "sweep"))
    KINDS["seeds, plain"].sitting(folder / "seeds")
    yield ReadFile("seeds.toml", folder / "seeds" / SEEDS, lambda: resumed_folders(folder / "seeds"))
    KINDS["reproduce"].sitting(folder / "reproduced")
    for path in (folder / "reproduced" / RECORD, next((folder / "reproduced").rglob(ORIGIN))):
        yield ReadFile(f"recipe's {path.name}", path, lambda: KINDS["reproduce"].sitting(folder / "reproduced"))
    recipe = folder / "made/table-1.toml"
    recipe.parent.mkdir()
    contents = {key: value for key, value in RECIPE.items() if key not in ("document", "name")}
    recipe.write_text(tomli_w.dumps(contents), encoding="utf-8")
    yield ReadFile("recipe", recipe, lambda: recipes.read(recipe))
    yield from _bundles(folder)


def _bundles(folder: Path) -> Iterator[ReadFile]:
    model = evenflow.SequenceModel(evenflow.create("sgornn", 2, 6), 1)
    evenflow.save(model, folder / "bundle")
    for name in ("bundle.json", "weights.safetensors"):
        yield ReadFile(f"bundle {name}", folder / "bundle" / name, lambda: evenflow.load(folder / "bundle"))
    predictor = evenflow.load(folder / "bundle")
    new = folder / "new.csv"
    rows = "".join(f"s{n // 7},{n / 3:.3f},{-n / 5:.3f},{n // 7}.5\n" for n in range(40))
    new.write_text(f"sequence,x0,x1,y0\n{rows}", encoding="utf-8")
    schema = predictor.schema
    yield ReadFile("csv to predict", new, lambda: predict_file(predictor, new, folder / "out.csv"))
    yield ReadFile("csv to evaluate", new, lambda: list(file_blocks(new, schema, learned=True)))
    weights = folder / "layer.pt"
    torch.save(torch.nn.GRU(2, 3).state_dict(), weights)
    yield ReadFile("weights of torch", weights, lambda: diagnose_target(str(weights), length=4))


def _attributes(folder: Path, names: str) -> None:
    run = Run(folder)
    for name in names.split():
        getattr(run, name)


def _timed() -> str:
    rows = [f"s{n // 8},2024-01-01 00:{n % 8 + (n % 8 > 4):02d},{n / 7:.3f},{'' if n % 5 == 1 else n},w{n % 3}"
            for n in range(40)]  # fmt: skip
    return "\n".join(["sequence,when,a,b,word", *rows, ""])


def _tsv() -> str:
    draw = np.random.RandomState(0)
    return "".join("\t".join([str(n % 3), *(f"{v:.5f}" for v in draw.randn(12))]) + "\n" for n in range(9))


def _ts() -> str:
    lines = (line.split("\t") for line in _tsv().splitlines())
    rows = "".join(f"{','.join(numbers)}:{label}\n" for label, *numbers in lines)
    return f"# made\n@problemName Made\n@classLabel true 0 1 2\n@data\n{rows}"


def _small_music(path: Path) -> None:
    from scipy.io import savemat

    draw, parts = np.random.RandomState(0), {}
    for part in ("train", "valid", "test"):
        cell = np.empty((1, 2), dtype=object)
        for piece in range(2):
            cell[0, piece] = (draw.rand(3, 88) < 0.05).astype(np.float64)
        parts[f"{part}data"] = cell
    savemat(path, parts, do_compression=True)
