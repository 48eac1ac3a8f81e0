"""How far back an input still changes the output."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pad_packed_sequence

from evenflow.checks import number, whole_number
from evenflow.models.residual_stack import ResidualStack
from evenflow.probes.layer_inputs import LayerInput, layer_inputs, need_calls
from evenflow.probes.model_layer import Layer, eval_mode, find_stack, outputs_of
from evenflow.probes.plotted import Plotted, draw_profile

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FRACTION = 1e-3
SUMS = 16  # outputs up to which each has a backward pass of its own; above, that many random sums of them have one


@dataclass(frozen=True)
class MemoryLength(Plotted):
    """How far back a model looks.

    Attributes:
        steps: the largest lag at which an input's effect is at least `fraction` of the largest effect at any lag; 0
            if only the last input counts.
        sensitivity: the Frobenius norm ``‖∂y_T/∂x_{T-lag}‖`` for lag 0, 1, ..., T - 1, root mean square over the batch.
        fraction: see `memory_length`.

    >>> memory = memory_length(layer, x)
    >>> memory.sensitivity.shape, memory.fraction
    ((20,), 0.001)
    """

    steps: int
    sensitivity: NDArray[np.float64]
    fraction: float

    def draw(self, axes: Axes) -> None:
        """The sensitivity against the lag."""
        draw_profile(axes, np.arange(len(self.sensitivity)), self.sensitivity, "", "lag", "norm of ∂y_T/∂x")

    @property
    def complete(self) -> bool:
        """True if the first input still counts, so that the memory may be longer than the sequences."""
        return self.steps == len(self.sensitivity) - 1


def memory_length(
    model: nn.Module,
    inputs: Tensor | PackedSequence,
    lengths: Tensor | None = None,
    *,
    fraction: float = FRACTION,
    sums: int = SUMS,
) -> MemoryLength:
    """The largest lag at which ``‖∂y_T/∂x_{T-lag}‖`` is at least a fraction of its largest value.

    y_T is the output of the model, or of the layer, after the last step of each sequence. x is the input of the
    recurrent layer: symbols count after their embedding.

    Args:
        model: a layer, or any module that contains one recurrent layer (evenflow's or torch's) and returns its outputs,
            or a tuple that starts with them: ``(B, O)``, or with a time dimension at the layer's place for it; ``(O)``
            or ``(T, O)`` for one sequence without a batch dimension.
        inputs, lengths: as the model takes them.
        fraction: 0.001 by default.
        sums: the largest number of backward passes. The norms of an output of more numbers are estimated from that
            many random sums of these numbers.

    The sensitivity is a first-order effect at these inputs. A gate that is shut at these inputs hides an effect that
    it would let through at others.

    >>> memory_length(RNN(2, 64, map="exponential", activation="abs"), torch.randn(500, 4, 2)).steps
    499
    """
    number("fraction", fraction, above=0, below=1)
    whole_number("sums", sums, 1)
    layer = find_stack(model)
    with eval_mode(model), layer_inputs(layer) as calls:
        outputs = outputs_of(model, inputs, lengths)
        need_calls(model, calls)
        y = _last(outputs, layer, lengths, calls)
        if not torch.isfinite(y).all():
            raise ValueError("the model's answer must be finite to have a memory length, got one that is not")
        leaves = [leaf for leaf, _ in calls]
        squares = [torch.zeros(leaf.shape[:-1], dtype=torch.float64, device=leaf.device) for leaf in leaves]
        rows = _rows(y.flatten(1), sums)
        for row in rows.unbind(0):
            grads = torch.autograd.grad((y.flatten(1) * row).sum(), leaves, retain_graph=True, allow_unused=True)
            for square, grad in zip(squares, grads, strict=True):
                if grad is not None:
                    square += grad.double().square().sum(-1)
        by_lag = _by_lag(squares, [packed for _, packed in calls], layer.batch_first)
    scale = 1 if y.flatten(1).shape[1] <= sums else len(rows)
    sensitivity = np.sqrt(by_lag / scale)
    with np.errstate(invalid="ignore"):
        large = np.nan_to_num(sensitivity, nan=np.inf) >= fraction * np.nanmax(sensitivity)
    steps = int(np.flatnonzero(large)[-1]) if sensitivity.any() else 0
    return MemoryLength(steps, sensitivity, fraction)


def _last(answer: Any, layer: Layer | ResidualStack, lengths: Tensor | None, calls: list[LayerInput]) -> Tensor:
    """The output after the last step, ``(B, ...)``; ``(1, ...)`` for one sequence without a batch dimension."""
    if isinstance(answer, PackedSequence):
        padded, ends = pad_packed_sequence(answer, batch_first=True)
        return padded[torch.arange(len(padded), device=padded.device), ends.to(padded.device) - 1]
    if not isinstance(answer, Tensor) or answer.dim() not in (1, 2, 3):
        raise ValueError(f"the model must give a tensor (B, O) or with a time dimension, got {type(answer).__name__}")
    unbatched = calls[0][1] is None and calls[0][0].dim() == 2
    if unbatched and answer.dim() == 1:
        return answer.unsqueeze(0)
    if unbatched and answer.dim() == 2:
        steps = sum(len(leaf) for leaf, _ in calls)
        if len(answer) not in (1, steps):
            raise ValueError(f"the model must give (O) or ({steps}, O) for one sequence, got {tuple(answer.shape)}")
        return answer[-1:]
    if answer.dim() < 3:
        return answer.unsqueeze(-1) if answer.dim() == 1 else answer
    by_row = answer if layer.batch_first else answer.transpose(0, 1)
    if lengths is None:
        return by_row[:, -1]
    return by_row[torch.arange(len(by_row), device=answer.device), lengths.to(answer.device) - 1]


def _rows(y: Tensor, sums: int) -> Tensor:
    """The identity, or `sums` rows of random signs if an output has more numbers than that."""
    width = y.shape[1]
    if width <= sums:
        return torch.eye(width, dtype=y.dtype, device=y.device)
    signs = torch.randint(0, 2, (sums, width), generator=torch.Generator().manual_seed(0))
    return (signs * 2 - 1).to(y)


def _by_lag(squares: list[Tensor], packed: list[PackedSequence | None], batch_first: bool) -> NDArray[np.float64]:
    """Mean squares over the batch, ``(T,)``, the last step of each sequence first."""
    if packed[0] is not None:
        if len(squares) > 1:
            raise ValueError(f"packed sequences must reach the layer in one call, got {len(squares)}")
        padded, lengths = pad_packed_sequence(packed[0]._replace(data=squares[0].unsqueeze(-1)))
        values = padded[..., 0].cpu()
        t = torch.arange(len(values)).unsqueeze(1)
        source = (lengths - 1 - t).clamp(min=0)
        alive = t < lengths
        summed = torch.where(alive, values.gather(0, source), 0.0).sum(1)
        return (summed / alive.sum(1)).numpy()
    whole = torch.cat([s.unsqueeze(1) if s.dim() == 1 else s.transpose(0, 1) if batch_first else s for s in squares])
    return whole.mean(1).flip(0).cpu().numpy()
