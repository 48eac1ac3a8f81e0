"""Train a model that ships with evenflow, write its bundle, and measure the bundle.

    python tools/make_pretrained.py NAME [--data FOLDER] [--runs runs/pretrained]

`tools/pretrained/NAME.toml` has the tables of the run, as in config.toml, and the sentences of the card. The run is in
RUNS/NAME; one that was interrupted resumes, and one that has finished is used as it is. The bundle, with its card, is
written to `src/evenflow/models/bundles/NAME`. The weights are those with the best validation. The numbers of the card
are measured by loading the bundle; the test part is used for nothing else.
"""

from __future__ import annotations

import argparse
import datetime
import json
import tomllib
from pathlib import Path
from typing import Any

import torch

import evenflow
from evenflow.lab.tasks import Position
from evenflow.lab.tasks.data_set import DataSet
from evenflow.lab.tasks.task import Task
from evenflow.lab.training.config import read_config
from evenflow.lab.training.fit import train_or_resume
from evenflow.lab.training.launch import hardware
from evenflow.models.bundle import BUNDLE, WEIGHTS
from evenflow.models.pretrained_bundles import BUNDLES, CARD, card_text

SETTINGS = Path(__file__).parent / "pretrained"
DRAWN = 10_000  # sequences of a task without a finite test part
LARGEST = 2 * 10**6  # bytes of a bundle


def measure(model: torch.nn.Module, task: Task, seed: int) -> dict[str, Any]:
    """The mean metric over a part of a data set, or over sequences drawn with this seed."""
    if isinstance(task, DataSet):
        batches = list(task.every_batch(100, Position(0, 1), torch.device("cpu")))
    else:
        generator = torch.Generator().manual_seed(seed)
        batches = [task.batch(100, generator) for _ in range(DRAWN // 100)]
    total = weight = 0.0
    with torch.no_grad():
        for batch in batches:
            outputs = model(batch.inputs, lengths=batch.lengths)[0]
            total += task.weight(batch) * task.metric(outputs, batch.targets).item()
            weight += task.weight(batch)
    return {"value": total / weight, "sequences": sum(batch.inputs.shape[1] for batch in batches)}


def make(name: str, data: str | None, runs: Path) -> dict[str, Any]:
    """Write the bundle of a model and return its card."""
    settings = tomllib.loads((SETTINGS / f"{name}.toml").read_text(encoding="utf-8"))
    card, config = settings.pop("card"), settings
    place = {} if data is None else {"data": data}
    task, system, training = read_config({**config, "task": config["task"] | place})
    run = train_or_resume(runs / name, task, system, training)
    folder = BUNDLES / name
    folder.parent.mkdir(exist_ok=True)
    evenflow.save(evenflow.load(run.folder).model, folder, schema=task.schema())
    loaded = evenflow.load(folder)
    size = sum((folder / file).stat().st_size for file in (BUNDLE, WEIGHTS))
    if size > LARGEST:
        raise SystemExit(f"{name} has {size:,} bytes, more than {LARGEST:,}")
    test = task.test()
    card |= {
        **config,
        "command": f"python tools/make_pretrained.py {name}" + (" --data FOLDER" if data is not None else ""),
        "metric": task.metric_name,
        "validation": measure(loaded.model, task.held_out(), 1),
        "test": measure(loaded.model, task if test is None else test, 2),
        "updates": run.status["step"],
        "parameters": sum(p.numel() for p in loaded.model.parameters()),
        "bytes": size,
        "evenflow": evenflow.__version__,
        "torch": torch.__version__,
        "hardware": hardware("cpu"),
        "date": datetime.date.today().isoformat(),
    }
    (folder / CARD).write_text(json.dumps(card, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return card


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("name", choices=sorted(path.stem for path in SETTINGS.glob("*.toml")))
    parser.add_argument("--data", help="the data folder, see `evenflow data list`")
    parser.add_argument("--runs", type=Path, default=Path("runs/pretrained"))
    options = parser.parse_args()
    make(options.name, options.data, options.runs)
    print(card_text(evenflow.pretrained()[options.name]))


if __name__ == "__main__":
    main()
