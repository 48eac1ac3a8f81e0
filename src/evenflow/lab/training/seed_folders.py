"""The folder of several seeds of one config; seeds.toml lists them, so that `resume` starts those not begun yet.

seeds.toml      the seeds, and the config of the first
seed-0/ ...     a run folder for each
"""

from __future__ import annotations

import tomllib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from evenflow.lab.data.guarded import read_text

from . import atomic
from .config import config_tables, read_config
from .run_folder import CONFIG, LARGEST_TABLE, Run
from .run_writer import RunWriter, check_unused, to_toml
from .train_population import train_population

SEEDS = "seeds.toml"


def seed_folder(folder: Path, seed: int) -> Path:
    """The run folder of one seed."""
    return folder / f"seed-{seed}"


@contextmanager
def seeds_written(
    folder: Path, config: Mapping[str, Any], seeds: Sequence[int], size: int | None = None
) -> Iterator[None]:
    """Write seeds.toml before the seeds are trained in the block; it is removed if none of them could start.

    Args:
        size: how many seeds train as a population; None for all.
    """
    task, system, settings = read_config(config)
    for seed in seeds:
        check_unused(seed_folder(folder, seed))
    file, created = folder / SEEDS, [path for path in (folder, *folder.parents) if not path.exists()]
    before = file.read_bytes() if file.is_file() else None
    table = {"seeds": list(seeds), "side_by_side": size, **config_tables(task, settings, system)}
    with atomic.writable(folder):
        folder.mkdir(parents=True, exist_ok=True)
        atomic.write(file, to_toml(table))
    try:
        yield
    except ValueError:
        if not any(seed_folder(folder, seed).exists() for seed in seeds):
            if before is not None:
                atomic.write(file, before)
            else:
                with suppress(OSError):  # the folder may hold other files by now
                    file.unlink()
                    for path in created:
                        path.rmdir()
        raise


def resumed_folders(folder: Path) -> list[Path]:
    """The run folders of all seeds in order; seeds that had no folder when the process was killed get one now."""
    if (file := folder / SEEDS).is_file():
        try:
            table = tomllib.loads(read_text(file, LARGEST_TABLE))
            table.pop("side_by_side", None)
            seeds, training = table.pop("seeds"), dict(table["training"])
        except (ValueError, OSError, LookupError, TypeError, RecursionError) as error:
            raise ValueError(f"{SEEDS} of {str(folder)!r} cannot be read: {error}") from error
        if not isinstance(seeds, list) or not all(type(seed) is int and 0 <= seed < 1 << 63 for seed in seeds):
            raise ValueError(f"{SEEDS} of {str(folder)!r} is damaged: its seeds are no list of seeds")
        for seed in seeds:
            if not (seed_folder(folder, seed) / CONFIG).is_file():
                RunWriter.create(seed_folder(folder, seed), table | {"training": training | {"seed": seed}}).close()
    elif runs := seed_runs(folder):
        warnings.warn(f"{SEEDS} of {str(folder)!r} is lost: the {len(runs)} seeds with a folder go on", stacklevel=2)
        configs = [Run(path).config for path in runs]
        atomic.write(file, to_toml({"seeds": [config["training"]["seed"] for config in configs], **configs[0]}))
    return seed_runs(folder)


def side_by_side(folder: Path) -> int | None:
    """How many seeds of a folder train as a population; None for all. For a folder that `resumed_folders` has read."""
    size = tomllib.loads(read_text(folder / SEEDS, LARGEST_TABLE)).get("side_by_side")
    return size if isinstance(size, int) and size > 0 else None


def train_seeds(configs: Sequence[Mapping[str, Any]], folders: Sequence[Path], progress: bool) -> None:
    """Train or resume configs as a population; a folder that was not made before an interruption is made now."""
    begun = [(folder / CONFIG).is_file() for folder in folders]
    if any(begun):
        for config, folder, there in zip(configs, folders, begun, strict=True):
            if not there:
                task, system, settings = read_config(config)
                RunWriter.create(folder, config_tables(task, settings, system)).close()
    train_population(configs, folders, resume=any(begun), progress=progress)


def seed_runs(folder: Path) -> list[Path]:
    """The run folders of the seeds that have one, in order; an empty list for another folder."""
    runs = (path.parent for path in folder.glob(f"seed-*/{CONFIG}"))
    return sorted(runs, key=lambda path: (len(path.name), path.name))
