"""What users give to `fit` as data: a task, arrays, a Dataset or a DataLoader; all become a task."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from evenflow.checks import number
from evenflow.lab.data.own_npz import sequences_of
from evenflow.lab.data.own_sequences import padded

from .array_data import ArrayData
from .chosen_loss import ChosenLoss
from .loader_data import LoaderBatches, LoaderData, loader_batch
from .task import Task

ALLOWED = "a task, arrays (x, y), a Dataset or a DataLoader"


def given_task(data: Any, model: nn.Module, loss: Any = None, metric: Any = None, validation: Any = None) -> Task:
    """The task to train `model` on `data`; the arguments are those of `fit`."""
    if isinstance(data, Task):
        for name, value in (("loss", loss), ("metric", metric), ("validation", validation)):
            if value is not None:
                raise ValueError(f"{name} goes with data of your own, and task {data.name} has its own")
        return data
    chosen = ChosenLoss(loss, metric)
    if isinstance(data, DataLoader):
        return _from_loader(data, model, chosen, validation)
    if isinstance(data, str):
        raise ValueError(f"task must be {ALLOWED}, got {data!r}: write evenflow.tasks.make({data!r})")
    arrays = _arrays(data, "")
    share: dict[str, Any] = {}
    if isinstance(validation, float):
        number("validation", validation, above=0, below=1)
        share = {"share": validation}
    elif validation is not None:
        arrays |= _arrays(validation, "_valid")
    own = sequences_of("the data", arrays, chosen.kind)
    return ArrayData(kind=chosen.kind, own=own, digest=_digest(arrays), chosen=chosen, **share)


def _from_loader(data: DataLoader[Any], model: nn.Module, chosen: ChosenLoss, validation: Any) -> LoaderData:
    if not isinstance(validation, DataLoader):
        raise ValueError(f"validation must be a DataLoader where the data are one, got {type(validation).__name__}")
    first = loader_batch(next(iter(data), None))
    width = first.targets.shape[-1] if first.targets.is_floating_point() else _width(model, first.inputs)
    return LoaderData(LoaderBatches(data), validation, width, chosen, first)


@torch.no_grad()
def _width(model: nn.Module, inputs: Tensor) -> int:
    """How many numbers the model answers with; 0 if its answer has another form, which the check of the model names."""
    was_training, parameter = model.training, next(model.parameters(), None)
    try:
        answer = model.eval()(inputs[:, :1].to(parameter) if parameter is not None else inputs[:, :1])
    finally:
        model.train(was_training)
    return answer[0].shape[-1] if isinstance(answer, tuple | list) and isinstance(answer[0], Tensor) else 0


def _arrays(data: Any, end: str) -> dict[str, np.ndarray]:
    """The arrays of (x, y) or of a Dataset by the names of `read_npz`."""
    if isinstance(data, TensorDataset):
        data = data.tensors
    elif isinstance(data, IterableDataset) or (isinstance(data, Dataset) and not hasattr(data, "__len__")):
        raise ValueError("a Dataset must have a length and be read by number; put an IterableDataset in a DataLoader")
    elif isinstance(data, Dataset):
        items = [data[i] for i in range(len(data))]  # type: ignore[arg-type]
        if not items or not all(isinstance(item, tuple | list) and len(item) == 2 for item in items):
            raise ValueError("a Dataset must hold items (x, y), x of shape (T, C)")
        data = [_array(x) for x, _ in items], [_array(y) for _, y in items]
    if not isinstance(data, tuple | list) or len(data) != 2:
        what = "task" if not end else "validation"
        got = f"a {type(data).__name__}" + (f" of {len(data)}" if isinstance(data, tuple | list) else "")
        raise ValueError(f"{what} must be {ALLOWED if not end else 'a share, arrays (x, y) or a Dataset'}, got {got}")
    x, y = data
    arrays = {}
    if isinstance(x, list | tuple):
        x = [_array(each) for each in x]
        x = [each[:, None] if each.ndim == 1 else each for each in x]
        if not x or any(each.ndim != 2 or each.shape[1] != x[0].shape[1] or not len(each) for each in x):
            raise ValueError("x must hold sequences (T, C) with one C, a step at least in each")
        arrays[f"lengths{end}"] = np.array([len(each) for each in x])
        x = padded(x).swapaxes(0, 1)
    arrays[f"x{end}"] = _array(x)
    if y is not None:
        if isinstance(y, list | tuple) and len(y) and np.ndim(y[0]):
            y = [_array(each) for each in y]
            lengths = arrays.get(f"lengths{end}", np.array([]))
            steps = [len(each) for each in y]
            y = padded(y).swapaxes(0, 1) if steps == lengths.tolist() else np.stack(y) if len(set(steps)) == 1 else None
            if y is None:
                raise ValueError("y must hold one target for each sequence of x, or one for each of its steps")
        arrays[f"y{end}"] = _array(y)
    return arrays


def _array(values: Any) -> np.ndarray:
    if isinstance(values, Tensor):
        values = values.detach().cpu()
        return (values.float() if values.dtype == torch.bfloat16 else values).numpy()
    array = np.asarray(values)
    words = array.dtype.kind == "O" and all(isinstance(value, str) for value in array.flat)
    return array.astype(str) if words else array


def _digest(arrays: dict[str, np.ndarray]) -> str:
    """The SHA-256 of the names, shapes, types and numbers of arrays."""
    digest = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        digest.update(f"{name} {array.dtype} {array.shape} ".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()
