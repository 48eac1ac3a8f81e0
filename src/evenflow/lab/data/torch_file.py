"""Read files of `torch.save` that may be damaged or malicious: nothing in them is run, and sizes have limits."""

from __future__ import annotations

import pickle
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .guarded import FilePath, cannot_read, opened


class MoreThanWeights(ValueError):
    """The file holds objects whose reading could run any code."""


class TooLarge(ValueError):
    """The file stands for more bytes than it may."""


def read_torch_file(path: FilePath, limit: int | None = None) -> Any:
    """The content of a file of `torch.save`: tensors, numbers, text, and lists and dictionaries of them.

    Args:
        limit: the most bytes that all members of the file together, and each tensor, may stand for. Default: the size
            of the file, because `torch.save` compresses nothing.

    Raises:
        ValueError: the file is missing, damaged, holds more than weights, or stands for more than the limit.
    """
    with opened(path, None) as file:
        most = max(Path(path).stat().st_size, 0) if limit is None else limit
        try:
            members = zipfile.ZipFile(file).infolist() if zipfile.is_zipfile(file) else []
        except Exception:  # damaged archives raise errors of many kinds
            raise cannot_read(path, "it is a damaged or truncated file of torch.save") from None
        if (expanded := sum(info.file_size for info in members)) > most:
            raise TooLarge(str(cannot_read(path, f"it expands to {expanded:,} bytes, more than {most:,}")))
        file.seek(0)
        try:
            content = torch.load(file, map_location="cpu", weights_only=True)
        except pickle.UnpicklingError:
            said = "it holds more than weights, and reading it could run any code"
            raise MoreThanWeights(str(cannot_read(path, said))) from None
        except Exception as error:  # a pickle can be wrong in many ways
            raise cannot_read(path, f"it is no file of torch.save, or damaged ({type(error).__name__})") from None
    for tensor in _tensors(content):
        if not tensor.is_sparse and (size := tensor.numel() * tensor.element_size()) > most:
            said = f"a tensor in it, of shape {tuple(tensor.shape)}, stands for {size:,} bytes, more than {most:,}"
            raise TooLarge(str(cannot_read(path, said)))
    return content


def _tensors(content: Any) -> Iterator[Tensor]:
    """All tensors in nested lists and dictionaries, each container once."""
    waiting, seen = [content], set[int]()
    while waiting:
        part = waiting.pop()
        if isinstance(part, Tensor):
            yield part
        elif isinstance(part, dict | list | tuple | set | frozenset) and id(part) not in seen:
            seen.add(id(part))
            waiting += [*part, *part.values()] if isinstance(part, dict) else part
