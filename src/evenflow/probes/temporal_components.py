"""The gradient as a sum over time steps, from one backward pass: one component for the parameters of each step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from evenflow.layers.layer_run import LayerRun
from evenflow.models.residual_stack import ResidualStack
from evenflow.models.sequence_model import SequenceModel
from evenflow.probes.model_layer import need_plain_steps, need_sequences, record_runs
from evenflow.probes.plotted import Plotted, draw_profile
from evenflow.probes.temporal_parts import EmbeddingPart, LayerPart, ReadoutPart, TemporalPart

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass
class Alignment:
    """How a direction d compares with the gradient g: Galvan's condition 3.33, ``1 + α² - 2 α cos θ <= μ²``.

    Attributes:
        cosine: cos θ, of the angle between d and g.
        ratio: α = |d| / |g|.
    """

    cosine: Tensor
    ratio: Tensor

    @property
    def gap(self) -> Tensor:
        """``√(1 + α² - 2 α cos θ) = |d - g| / |g|``, the smallest μ for which the condition holds.

        The proof needs a μ below 1, and a smaller one if the loss is badly conditioned.
        """
        return (1 + self.ratio**2 - 2 * self.ratio * self.cosine).clamp(min=0).sqrt()


def alignment(direction: Sequence[Tensor], gradient: Sequence[Tensor]) -> Alignment:
    """The angle and the ratio between two lists of tensors, each taken as one vector.

    >>> alignment([torch.tensor([2.0, 0.0])], [torch.tensor([1.0, 0.0])]).gap
    tensor(1.)
    """
    d, g = norm(direction), norm(gradient)
    return Alignment(inner(direction, gradient) / (d * g), d / g)


def inner(a: Sequence[Tensor], b: Sequence[Tensor]) -> Tensor:
    """The inner product of two lists of tensors, each taken as one vector."""
    return torch.stack([torch.sum(x * y.conj()).real for x, y in zip(a, b, strict=True)]).sum()


def norm(a: Sequence[Tensor]) -> Tensor:
    """The norm of a list of tensors, taken as one vector."""
    return torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(x) for x in a]))


class TemporalComponents(Plotted):
    """∇L as Σ_t ∇L|_t, where ∇L|_t is the gradient by the copy of *all* parameters that step t uses (Galvan, 3.1).

    `temporal_components` and `ModelCall.components` make these objects.

    Only step t uses its copy of a layer's weights, so ∇L|_t is computed from ∂L/∂h_t and that one step; for a plain
    layer it is ``∂L/∂a_t h_{t-1}ᵀ`` and so on. The T gradients are never stored.

    Attributes:
        norms: ``(T)``, the norm of each component over all trained parameters together; a recurrent matrix counts as
            the matrix itself, whatever its map. In float64.
        parameters, gradient: the trained parameters, and the true gradient by each.
        loss: the loss.

    >>> components = temporal_components(model, batch.inputs, batch.targets, task.loss)
    >>> components.norms.shape
    torch.Size([20])
    """

    def __init__(
        self, parameters: list[nn.Parameter], gradient: list[Tensor], loss: Tensor, parts: list[TemporalPart]
    ) -> None:
        self.parameters, self.gradient, self.loss, self._parts = parameters, gradient, loss, parts
        squares = [part.squares() for part in parts]
        steps = max(len(square) for square in squares)  # a readout may run on after every sequence has ended
        padded = [nn.functional.pad(square, (0, steps - len(square))) for square in squares]
        self.norms = torch.stack(padded).sum(0).sqrt()

    def combine(self, coefficients: Tensor) -> list[Tensor]:
        """``Σ_t c_t ∇L|_t`` by each of the parameters, for c ``(T)``; a map is differentiated once."""
        with torch.enable_grad():
            total = torch.stack([part.weighted(coefficients) for part in self._parts]).sum()
        return _gradients(total, self.parameters)

    def draw(self, axes: Axes) -> None:
        """The norms of the components against the time step."""
        norms = self.norms.detach().double().cpu().numpy()
        draw_profile(axes, range(1, len(norms) + 1), norms, "", "time step t", "norm of the component")

    def component(self, t: int) -> list[Tensor]:
        """∇L|_t by each of the parameters."""
        coefficients = torch.zeros_like(self.norms)
        coefficients[t] = 1
        return self.combine(coefficients)


def temporal_components(
    model: SequenceModel,
    inputs: Tensor,
    targets: Tensor,
    loss: Callable[[Tensor, Tensor], Tensor],
    lengths: Tensor | None = None,
) -> TemporalComponents:
    """The temporal components of the loss of `model` on one batch.

    Shapes:
        inputs ``(T, B, I)``, or ``(T, B)`` of whole numbers.

    Args:
        model: a `SequenceModel` over an evenflow layer that runs one way and whose state is one vector (so no LSTM).
        inputs, targets: a batch.
        loss: function of outputs and targets.
        lengths: the length of each sequence ``(B)``, if they differ.

    >>> components = temporal_components(model, batch.inputs, batch.targets, task.loss)
    >>> bool(components.norms[0] < components.norms[-1])  # they fall towards the first step where the gradient vanishes
    True

    Reference: Galvan, 3.1 and figure 3.1.
    """
    need_sequences("inputs", inputs if inputs.dim() == 3 else inputs.unsqueeze(-1))
    with torch.enable_grad(), capture_call(model) as call:
        value = loss(model(inputs, lengths=lengths)[0], targets)
    return call.components(value)


@contextmanager
def capture_call(model: SequenceModel) -> Iterator[ModelCall]:
    """Record one call of `model` inside the block, for the components of a loss of its outputs."""
    if not isinstance(model, SequenceModel):
        raise ValueError(f"temporal components need a SequenceModel, got {type(model).__name__}")
    if isinstance(model.layer, ResidualStack):
        raise ValueError("temporal components need a model without residual blocks, got block='residual'")
    if model.columns is not None:
        raise ValueError("temporal components need a model without column_embeddings")
    drops = {"output_dropout": model.drop_output, "score_dropout": model.drop_scores}
    if model.embedding is not None:
        drops["input_dropout"] = model.drop_input
    for name, drop in drops.items():
        if drop.training and drop.p:  # the parts of readout and embedding would be computed with another mask
            raise ValueError(f"temporal components need a model without {name}, or model.eval(), got {drop.p}")
    call = ModelCall(model)
    hook = model.register_forward_hook(call.record, with_kwargs=True)
    try:
        with record_runs(model, taps=True) as call.runs:
            yield call
    finally:
        hook.remove()


class ModelCall:
    """One call of `model`: its arguments, its outputs, and the runs of its layers; see `capture_call`."""

    def __init__(self, model: SequenceModel) -> None:
        self.model = model
        self.runs: list[LayerRun] = []
        self.calls: list[tuple[Tensor, Tensor, Tensor | None]] = []

    def record(self, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], result: tuple[Tensor, Any]) -> None:
        inputs = args[0] if args else kwargs["inputs"]
        lengths = args[2] if len(args) > 2 else kwargs.get("lengths")
        self.calls.append((inputs, result[0], lengths))

    def components(self, loss: Tensor) -> TemporalComponents:
        """The components of `loss`: one backward pass through time, and one through all steps in parallel."""
        if len(self.calls) != 1:
            raise ValueError(f"temporal components need one call of the model, got {len(self.calls)}")
        need_plain_steps(self.runs, "temporal_components")
        inputs, outputs, lengths = self.calls[0]
        parameters = [p for p in self.model.parameters() if p.requires_grad]
        if not parameters:
            raise ValueError("temporal components need a model with something to train, got one without")
        taps = [cast(Tensor, run.tap) for run in self.runs]
        d_outputs, *gradients = _gradients(loss, [outputs, *taps, *parameters])
        d_states, gradient = gradients[: len(taps)], gradients[len(taps) :]
        layers = [LayerPart(run, d) for run, d in zip(self.runs, d_states, strict=True)]
        parts: list[TemporalPart] = [*layers, ReadoutPart(self.model, self.runs[-1], d_outputs, lengths)]
        if self.model.embedding is not None and self.model.embedding.weight.requires_grad:
            parts.insert(-1, EmbeddingPart(layers[0], inputs))
        return TemporalComponents(parameters, gradient, loss.detach(), parts)


def _gradients(value: Tensor, tensors: Sequence[Tensor]) -> list[Tensor]:
    """The gradient of `value` by each of the tensors, zeros for a tensor that it does not depend on."""
    return list(torch.autograd.grad(value, tensors, retain_graph=True, allow_unused=True, materialize_grads=True))
