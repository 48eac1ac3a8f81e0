"""Models for other runtimes, written from the graph of a cell's step: any cell that is translated can be exported.

>>> evenflow.export.to_onnx(model, "model.onnx")
>>> evenflow.export.to_c(model, "model.c")
>>> torch.export.export(model, (x,)).run_decompositions(evenflow.export.decompositions())
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from evenflow.export.decompositions import decompositions

if TYPE_CHECKING:
    from evenflow.export.export_scaling import Scaling
    from evenflow.layers import Recurrent
    from evenflow.models import SequenceModel

__all__ = ["decompositions", "to_c", "to_onnx"]


def to_c(
    model: SequenceModel | Recurrent,
    path: str | Path,
    *,
    weights: str = "float32",
    approximate: bool = False,
    softmax: bool = False,
    scaling: Scaling | None = None,
    output_scaling: Scaling | None = None,
) -> None:
    """Write a model, or a layer alone, as a C99 file and its header, for microcontrollers.

    The file ``model.c`` defines ``model_init``, ``model_step`` and ``model_result``; another name of the file gives
    another prefix. They allocate nothing: the state is a struct of the caller, and a step uses the stack. Matrices of
    the maps `Rotations` and `Householder` are stored as angles and vectors, others as they are.

    Shapes:
        ``step`` reads the I inputs of one step, or one symbol for a model with a vocabulary. ``result`` writes the O
        outputs of the readout after the steps so far, or the output of a layer.

    Args:
        model: a `SequenceModel` over a layer of this package, or the layer; not bidirectional; exported as in
            evaluation, in float32.
        path: the file to write, ending in ``.c``; the header beside it ends in ``.h``.
        weights: ``"float32"`` (default); or ``"int8"``, matrices as whole numbers with a scale for each row. Biases
            and parameters of steps stay float32. Rotations stay float32 if an angle is larger than a quarter turn.
        approximate: whether the file has its own elementary functions, with errors below 1e-6, instead of those of
            math.h.
        softmax: whether a softmax follows the model's readout.
        scaling: ``(mean, scale)``, one number of each for every input: the model reads ``(x - mean) / scale``.
        output_scaling: ``(mean, scale)``, one number of each for every output y: it becomes ``scale * y + mean``.

    >>> to_c(SequenceModel(evenflow.create("sgornn", 9, 128), 2), "model.c", softmax=True)
    """
    from evenflow.export.c99_model import write

    write(model, path, weights, approximate, softmax, scaling, output_scaling)


def to_onnx(
    model: SequenceModel | Recurrent,
    path: str | Path,
    *,
    states: bool = False,
    softmax: bool = False,
    scaling: Scaling | None = None,
    output_scaling: Scaling | None = None,
) -> None:
    """Write a model, or a layer alone, as an ONNX file.

    Each layer and direction is one Scan node with the cell's step as its body. Constrained matrices are computed once
    and stored as constants, so the file needs neither evenflow nor the map. The numbers of time steps and of sequences
    stay free.

    Shapes:
        input ``x`` ``(T, B, I)``, or whole numbers ``(T, B)`` for a model with a vocabulary; ``(B, T, I)`` for a layer
        with `batch_first`. Output ``y`` as the model gives it, and the final states, one for each state of the cell,
        ``(num_layers * directions, B, H)``, named as in the cell with ``_n`` (``h_n``, ``c_n``).

    Args:
        model: a `SequenceModel` over a layer of this package, or the layer; exported as in evaluation.
        path: the file to write.
        states: whether initial states are inputs too (``h_0``, ``c_0``); without, the model's own are used.
        softmax: whether a softmax follows the model's readout.
        scaling: ``(mean, scale)``, one number of each for every input: the model reads ``(x - mean) / scale``.
        output_scaling: ``(mean, scale)``, one number of each for every output y: it becomes ``scale * y + mean``.

    >>> to_onnx(SequenceModel(evenflow.create("sgornn", 9, 128), 2), "model.onnx", softmax=True)

    Needs the package onnx: ``pip install "evenflow[onnx]"``.
    """
    try:
        from evenflow.export.onnx_model import write
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("evenflow"):
            raise
        raise ImportError(
            f'to_onnx needs {error.name}, which is not installed: pip install "evenflow[onnx]"'
        ) from error
    write(model, path, states, softmax, scaling, output_scaling)
