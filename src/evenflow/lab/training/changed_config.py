"""Whether config.toml is still that of the checkpoint of a run; it holds the earlier values of allowed changes.

[changed]
steps = [1000, 2000]    the run began with 1,000 updates, was then to make 2,000, and now makes more
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from . import atomic, checkpoint
from .config import CHANGED
from .run_folder import CHECKPOINT, CONFIG, Run
from .run_writer import lock, to_toml
from .settings import FREE, Settings

# What may change in a run, because it acts from the next update on. The optimiser holds its own learning rates.
CHANGEABLE = (
    "steps",
    "epochs",
    "batch_size",
    "accumulate",
    "schedule",
    "warmup",
    "decay",
    "decay_every",
    "decay_patience",
    "clip_norm",
    "clip_value",
    "clip_scope",
    "log_every",
    "validate_every",
    "validation_batches",
    "patience",
    "stop_when_solved",
    "checkpoint_every",
)

Config = Mapping[str, Any]


def with_changes(before: Config, after: Config) -> dict[str, Any]:
    """The config `after` with the values that its training settings had in `before` and earlier."""
    changed = {name: list(values) for name, values in before.get(CHANGED, {}).items()}
    for name, (old, _) in _changed_settings(before, after).items():
        values = changed.setdefault(name, [])
        values += [] if _plain(old) in values else [_plain(old)]
    return {**after, CHANGED: changed} if changed else dict(after)


def check_unchanged(run: Run, saved: checkpoint.Checkpoint) -> None:
    """Raise a ValueError that names what has been edited in config.toml since the checkpoint; see `allow_changes`."""
    if saved.config is None:  # written before checkpoints held the config
        return
    earlier = run.config.get(CHANGED, {})
    differing = {
        name: pair for name, pair in _differences(saved.config, run.config).items()
        if _plain(pair[0]) not in earlier.get(name, [])
    }  # fmt: skip
    if not differing:
        return
    said = ", ".join(f"{name} (was {_plain(old)!r}, is {_plain(new)!r})" for name, (old, new) in differing.items())
    fixed = [name for name in differing if name not in CHANGEABLE]
    advice = (
        f"{', '.join(fixed)} may not change: put the old value back, or train another run from the weights (--from)"
        if fixed
        else f"put the old value back, or resume with --allow-changes {','.join(differing)}"
    )
    raise ValueError(f"{CONFIG} of run {str(run.folder)!r} has been edited since its checkpoint: {said}; {advice}")


def allow_changes(folder: str | os.PathLike[str], names: Iterable[str]) -> None:
    """Note in config.toml that these settings may differ from those of the checkpoint.

    Raises:
        ValueError: one of them may not change.
    """
    names = tuple(names)
    for name in names:
        if name not in CHANGEABLE:
            raise ValueError(f"allow_changes must name settings out of {', '.join(CHANGEABLE)}, got {name!r}")
    run = Run(folder)
    version = checkpoint.find(run.folder / CHECKPOINT) if names else None
    saved = None if version is None else checkpoint.load(run.folder / CHECKPOINT, version)
    if saved is None or saved.config is None:
        return
    old = dict(saved.config.get("training", {}))
    training = dict(run.config.get("training", {}))
    before = {**training, **{name: old.get(name) for name in names}}
    kept = {name: value for name, value in before.items() if value is not None}
    replace_config(run.folder, with_changes({**run.config, "training": kept}, run.config))


def replace_config(folder: Path, config: Config) -> None:
    """Write config.toml under the lock of the run."""
    with atomic.writable(folder):
        descriptor = lock(folder)
        try:
            atomic.write(folder / CONFIG, to_toml(config))
        finally:
            if descriptor is not None:
                os.close(descriptor)


def _differences(before: Config, after: Config) -> dict[str, tuple[Any, Any]]:
    """What differs, by name, with both values: settings by their own names, the rest as table.name."""
    changed = _changed_settings(before, after)
    # A model that the caller of `fit` has made comes without a table.
    for table in ("task", "system") if "system" in before else ("task",):
        one, other = dict(before.get(table, {})), dict(after.get(table, {}))
        for name in dict.fromkeys([*one, *other]):
            if (table, name) != ("task", "data") and one.get(name) != other.get(name):  # the data may have moved
                changed[f"{table}.{name}"] = (one.get(name), other.get(name))
    return changed


def _changed_settings(before: Config, after: Config) -> dict[str, tuple[Any, Any]]:
    old, new = (Settings.from_dict(config.get("training", {})) for config in (before, after))
    pairs = {name: (getattr(old, name), getattr(new, name)) for name in Settings.__dataclass_fields__}
    return {name: pair for name, pair in pairs.items() if name not in FREE and pair[0] != pair[1]}


def _plain(value: Any) -> Any:
    """The value as TOML can hold it."""
    return "none" if value is None else value
