"""Bundles: a folder with a model, its weights and the description of its data. Every run folder is one.

    bundle.json            how the model is made, the columns, scaling and labels, and the version that wrote it
    weights.safetensors    the weights; in a run folder checkpoint/best.safetensors

Nothing is pickled. Loading a model with a cell, map or activation of the user's own imports the module it is from.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import nn

from evenflow.checks import one_of
from evenflow.models.data_schema import DataColumn, DataSchema
from evenflow.models.flat_model import FlatModel
from evenflow.models.model_weights import load_weights, read_weights_file, weights_file, weights_of
from evenflow.models.predictor import Predictor, check_fits, model_sizes
from evenflow.models.pretrained_bundles import bundle_folder
from evenflow.models.rebuild import describe_model, difference, obstacle, rebuild
from evenflow.models.sequence_model import SequenceModel
from evenflow.runtime.constructor_call import OBSTACLE
from evenflow.version import VERSION

BUNDLE, WEIGHTS, RUN_WEIGHTS, RUN = "bundle.json", "weights.safetensors", "checkpoint/best.safetensors", "config.toml"
FORMAT = 1
LARGEST = 1 << 26  # bytes of bundle.json


def save(
    model: SequenceModel | FlatModel | Predictor, path: str | os.PathLike[str], *, schema: DataSchema | None = None
) -> None:
    """Write a model as a folder that `load` reads, on any machine and without the training data.

    The folder is complete or not there: it is written under another name and renamed. An earlier bundle in its place is
    replaced; another folder or file is not.

    Args:
        model: a model, or a `Predictor`, which has a schema already.
        path: the folder.
        schema: what the model reads and what its outputs mean. Default: inputs and outputs are plain numbers.

    >>> evenflow.save(model, "models/adding", schema=task.schema())
    >>> evenflow.load("models/adding").predict(windows).shape
    (30,)
    """
    if isinstance(model, Predictor):
        if schema is not None:
            raise ValueError("schema must be left out for a Predictor, which has its own")
        schema = model.schema
        model = model.model
    if schema is None:
        schema = plain_schema(model)
    description, folder = bundle_text(model, schema, WEIGHTS), Path(path).absolute()
    if os.path.lexists(folder) and not (folder / BUNDLE).is_file() and not _empty(folder):
        raise ValueError(f"path {str(folder)!r} exists and holds no bundle: choose another name")
    if (folder / RUN).exists():
        raise ValueError(f"path {str(folder)!r} is a run folder, which holds its own bundle: choose another name")
    temporary = folder.with_name(f".writing-{folder.name}")
    replaced = folder.with_name(f".replaced-{folder.name}")
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        (temporary / WEIGHTS).write_bytes(weights_file(weights_of(model))[0])
        (temporary / BUNDLE).write_text(description, encoding="utf-8")
        if folder.exists():
            shutil.rmtree(replaced, ignore_errors=True)
            os.rename(folder, replaced)
        os.rename(temporary, folder)
        shutil.rmtree(replaced, ignore_errors=True)
    except OSError as error:
        raise ValueError(f"path {str(folder)!r} cannot be written: {error.strerror or error}") from error
    finally:
        with suppress(OSError):
            shutil.rmtree(temporary, ignore_errors=True)
            if replaced.exists() and not folder.exists():
                os.rename(replaced, folder)


def load(path: str | os.PathLike[str], *, device: torch.device | str = "cpu") -> Predictor:
    """The model in a bundle or a run folder, with the best weights of the run, ready to predict.

    Args:
        path: the folder that `save` or a training wrote; or the name of a trained model that ships with evenflow, one
            of `pretrained`. A folder of the same name comes first.
        device: where to put the model.

    Raises:
        ValueError: the folder is missing or no bundle, damaged or of a newer version, or needs a cell that is missing.

    >>> motion = SequenceModel(LSTM(2, 16), 2)
    >>> result = evenflow.fit(motion, (windows, activities), folder="runs/motion", epochs=1, progress=False)
    >>> predictor = evenflow.load("runs/motion")
    >>> predictor.schema.labels
    ('resting', 'walking')
    """
    folder = bundle_folder(path)
    table = _read_table(folder)
    try:
        schema = DataSchema.from_dict(table.get("schema"))
    except (ValueError, TypeError) as error:
        raise ValueError(f"{BUNDLE} of {str(folder)!r} is damaged: {error}") from error
    described = table.get("model")
    if not isinstance(described, Mapping):
        raise ValueError(f"{BUNDLE} of {str(folder)!r} is damaged: it describes no model")
    if (reason := obstacle(described)) is not None:
        raise ValueError(f"the model of {str(folder)!r} cannot be made again: it was made with {reason}")
    file = table.get("weights")
    try:
        one_of("weights", file, (WEIGHTS, RUN_WEIGHTS))
    except ValueError as error:
        raise ValueError(f"{BUNDLE} of {str(folder)!r} is damaged: {error}") from error
    if not (folder / str(file)).is_file():
        why = "the run has not been validated yet" if file == RUN_WEIGHTS else "the file is missing"
        raise ValueError(f"{str(folder)!r} has no weights in {file}: {why}")
    weights, notes, _ = read_weights_file(folder / str(file))
    if not notes:
        raise ValueError(f"weights {folder / str(file)} are damaged or not of evenflow: they carry no SHA-256")
    most = max([len(weights), *(size for weight in weights.values() for size in weight.shape)])
    try:
        model = rebuild(described, most)
    except ValueError as error:
        raise ValueError(f"the model of {str(folder)!r} cannot be made again: {error}") from error
    floats = [weight.dtype for weight in weights.values() if weight.is_floating_point()]
    model.to(floats[0] if floats else None)
    load_weights(model, weights, folder)
    try:
        return Predictor(model, schema).to(device)  # type: ignore[arg-type]  # it checks the class
    except ValueError as error:
        raise ValueError(f"{BUNDLE} of {str(folder)!r} is damaged: {error}") from error


def bundle_text(model: nn.Module, schema: DataSchema, weights: str, partial: bool = False) -> str:
    """The content of bundle.json.

    Args:
        weights: the file of the weights in the folder.
        partial: write a model that cannot be made again too, with the reason in its place. Otherwise it raises a
            ValueError.
    """
    described = describe_model(model)
    reason = f"a model of its own, {type(model).__name__}" if described is None else obstacle(described)
    if reason is None and described is not None:
        try:
            check_fits(model, schema)
            reason = None if partial else difference(model, described)
        except ValueError as error:
            if not partial:
                raise
            reason = f"a schema that does not fit ({error})"
    if reason is not None:
        if not partial:
            raise ValueError(f"model cannot be saved so that it can be made again: it was made with {reason}")
        described = {OBSTACLE: reason}
    table = {
        "format": FORMAT,
        "evenflow": VERSION,
        "model": described,
        "weights": weights,
        "schema": schema.to_dict(),
    }
    return json.dumps(table, indent=1, ensure_ascii=False) + "\n"


def plain_schema(model: nn.Module) -> DataSchema:
    """The schema of a model whose inputs and outputs are plain numbers."""
    sizes = model_sizes(model)
    inputs = sizes["inputs"] or 1
    return DataSchema(
        "regression",
        sizes["readout"],
        tuple(DataColumn(f"x{column}") for column in range(1 if sizes["vocabulary"] else inputs)),
        tuple(DataColumn(f"y{column}") for column in range(sizes["outputs"])),
        sizes["vocabulary"],
    )


def _read_table(folder: Path) -> dict[str, Any]:
    where = repr(str(folder))
    if folder.is_file():
        raise ValueError(f"path {where} is a file, and a model is loaded from a run folder or from a folder of save")
    if not folder.is_dir():  # a link to nothing
        raise ValueError(f"there is no folder {where}")
    if not (folder / BUNDLE).is_file():
        if (folder / RUN).is_file():
            raise ValueError(
                f"run {where} has no {BUNDLE}: it is from a version that did not save how to predict; "
                "`evenflow resume` adds the file if the training data are still there"
            )
        raise ValueError(f"folder {where} holds no model: it has no {BUNDLE}")
    try:
        if (folder / BUNDLE).stat().st_size > LARGEST:
            raise ValueError(f"it is larger than {LARGEST:,} bytes")
        table = json.loads((folder / BUNDLE).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{BUNDLE} of {where} cannot be read: {error}") from error
    if not isinstance(table, dict) or type(table.get("format")) is not int:
        raise ValueError(f"{BUNDLE} of {where} is damaged or not of evenflow: it has no format number")
    if table["format"] > FORMAT:
        raise ValueError(
            f"{BUNDLE} of {where} has format {table['format']}, written by evenflow {str(table.get('evenflow'))[:20]}; "
            f"this version reads formats up to {FORMAT}: install a newer evenflow"
        )
    return table


def _empty(folder: Path) -> bool:
    return folder.is_dir() and not any(folder.iterdir())
