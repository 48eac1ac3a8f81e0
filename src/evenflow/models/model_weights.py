"""The weights of a model: copied out, copied in, and in a safetensors file that notices damage."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

NOTES = "best"  # the key of the notes in the file; run folders have used it from the first version on


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """A copy of the model's weights on the CPU, each tensor with its own memory."""
    return {name: tensor.detach().cpu().clone().contiguous() for name, tensor in model.state_dict().items()}


def load_weights(model: nn.Module, weights: Mapping[str, Tensor], origin: object) -> None:
    """Copy `weights` into the model; a ValueError names the first tensor that does not fit.

    Args:
        origin: where the weights come from, for the message.
    """
    expected = model.state_dict()
    for name in [*expected, *weights]:
        if name not in weights:
            raise ValueError(f"weights in {origin} do not fit the model: {name} is missing")
        if name not in expected:
            raise ValueError(f"weights in {origin} do not fit the model: {name} is not one of the model's")
        if weights[name].shape != expected[name].shape:
            raise ValueError(
                f"weights in {origin} do not fit the model: {name} has shape {tuple(weights[name].shape)}, "
                f"the model needs {tuple(expected[name].shape)}"
            )
    # copy_ rather than load_state_dict, which would compute the parameters of a map from its matrix.
    with torch.no_grad():
        for name, tensor in expected.items():
            tensor.copy_(weights[name])


def weights_file(weights: Mapping[str, Tensor], **notes: Any) -> tuple[bytes, str]:
    """The bytes of a file of weights, with notes and the SHA-256 of its content, and this SHA-256."""
    digest = _digest(weights)
    metadata = json.dumps({**notes, "sha256": digest})
    return safetensors.torch.save(dict(weights), metadata={NOTES: metadata}), digest


def read_weights_file(path: Path, what: str = "weights") -> tuple[dict[str, Tensor], dict[str, Any], str]:
    """The weights, the notes and the SHA-256 of a file that `weights_file` made; early versions wrote no notes.

    Args:
        what: the file in words, for messages.

    Raises:
        ValueError: the file is damaged.
    """
    try:
        with safe_open(path, "pt") as file:
            metadata = (file.metadata() or {}).get(NOTES)
            weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  not a dictionary
        notes = {} if metadata is None else dict(json.loads(metadata))
        digest = _digest(weights)
        expected = notes["sha256"] if notes else digest
    except (SafetensorError, ValueError, KeyError, TypeError, OSError) as error:
        raise ValueError(f"{what} {path} are damaged: {error}") from error
    if digest != expected:
        raise ValueError(f"{what} {path} are damaged: they are not what was written")
    return weights, notes, digest


def _digest(weights: Mapping[str, Tensor]) -> str:
    """The SHA-256 of the names, dtypes, shapes and bytes of weights."""
    digest = hashlib.sha256()
    for name, tensor in sorted(weights.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
