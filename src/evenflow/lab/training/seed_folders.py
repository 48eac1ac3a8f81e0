"""The folder of several seeds of one config: seeds.toml says which, so that none is missing when they go on.

seeds.toml      the seeds, and the config of the first
seed-0/ ...     a run folder for each
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from . import atomic
from .run_folder import CONFIG, RunWriter, refuse_used
from .tables import tables
from .train import read_config

SEEDS = "seeds.toml"


def place(folder: Path, seed: int) -> Path:
    """The run folder of one seed."""
    return folder / f"seed-{seed}"


@contextmanager
def noted(folder: Path, config: Mapping[str, Any], seeds: Sequence[int]) -> Iterator[None]:
    """Leave word in `folder` of the seeds that are about to be trained; taken back if none of them could begin."""
    import tomli_w

    task, system, settings = read_config(config)
    for seed in seeds:
        refuse_used(place(folder, seed))
    file, made = folder / SEEDS, [path for path in (folder, *folder.parents) if not path.exists()]
    before = file.read_bytes() if file.is_file() else None
    table = {"seeds": list(seeds), **tables(task, settings, {"system": system})}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        atomic.write(file, tomli_w.dumps(table).encode())
    except OSError as error:
        raise ValueError(f"folder {str(folder)!r} cannot be written: {error.strerror or error}") from error
    try:
        yield
    except ValueError:
        if not any(place(folder, seed).exists() for seed in seeds):
            if before is not None:
                atomic.write(file, before)
            else:
                with suppress(OSError):  # something else may lie there by now
                    file.unlink()
                    for path in made:
                        path.rmdir()
        raise


def all_begun(folder: Path) -> list[Path]:
    """The run folders of all seeds in order; those that a kill left without one begin now."""
    if (file := folder / SEEDS).is_file():
        try:
            table = tomllib.loads(file.read_text(encoding="utf-8"))
            seeds, training = [int(seed) for seed in table.pop("seeds")], table["training"]
        except (ValueError, OSError, KeyError, TypeError) as error:
            raise ValueError(f"{SEEDS} of {str(folder)!r} cannot be read: {error}") from error
        for seed in seeds:
            if not (place(folder, seed) / CONFIG).is_file():
                RunWriter.create(place(folder, seed), table | {"training": training | {"seed": seed}}).close()
    return sorted(
        (path.parent for path in folder.glob(f"seed-*/{CONFIG}")), key=lambda path: (len(path.name), path.name)
    )
