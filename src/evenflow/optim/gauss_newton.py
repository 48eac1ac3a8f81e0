"""Products with the Gauss-Newton matrix of a model, without the matrix."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from evenflow.layers.recurrent import Recurrent
from evenflow.probes.model_layer import record_runs
from evenflow.scan.backend import LINEARIZED


class GaussNewton:
    """``v ↦ Jᵀ H J v``: J the Jacobian of the outputs by the parameters, H the Hessian of the loss by the outputs.

    This is the curvature of the loss of the linearised model; it is positive semidefinite if the loss is convex in the
    outputs. With `states`, also ``v ↦ Jₛᵀ Jₛ v`` for the states of the recurrent layers, the curvature of half their
    squared change, averaged over the batch: structural damping.

    Args:
        model: the model. While the graph is built, its layers use engines that have second derivatives.
        parameters: the parameters of the derivatives.
        answer: returns the outputs of the model on the batch of the curvature.
        loss: function from the outputs to the loss, a mean over the batch.
        states: also compute the curvature of the states.
        lengths: the lengths ``(B)`` of padded sequences: states beyond the end are left out.

    Note on J v: forward mode would need a rule for every hand-written gradient (scans, maps). Instead, J v is the
    gradient of uᵀJ v with respect to u. This needs second derivatives only, and its graph is built once for all
    products. A product costs about as much as two gradients.

    >>> parameters = list(model.parameters())
    >>> product = GaussNewton(
    ...     model, parameters, lambda: model(batch.inputs)[0], lambda outputs: task.loss(outputs, batch.targets)
    ... )

    References: Schraudolph 2002; Martens and Sutskever 2011.
    """

    def __init__(
        self,
        model: nn.Module,
        parameters: Sequence[nn.Parameter],
        answer: Callable[[], Tensor],
        loss: Callable[[Tensor], Tensor],
        states: bool = False,
        lengths: Tensor | None = None,
    ) -> None:
        self.parameters = list(parameters)
        with torch.enable_grad(), twice_differentiable(model), record_runs(model) as runs:
            outputs = answer()
            # States that depend on no parameter, as in a reservoir, have no curvature.
            trained_runs = [run for run in runs if states and run.states.requires_grad]
            self.heads = [outputs, *(run.states for run in trained_runs)]
            if states and not trained_runs:
                raise ValueError(
                    "structural damping needs a recurrent layer of evenflow whose states are trained, got none"
                )
            self.seeds = [torch.zeros_like(head, requires_grad=True) for head in self.heads]
            self.vjp_of_seeds = _gradients(self.heads, self.parameters, self.seeds, create_graph=True)
            self.leaf = outputs.detach().requires_grad_()
            (self.slope,) = _gradients([loss(self.leaf)], [self.leaf], None, create_graph=True)
        # The states of packed sequences beyond the end are always zero.
        self.shares = [_share(run.states, None if run.sequences.packed else lengths) for run in trained_runs]

    def product(self, v: Tensor, structural: float = 0.0) -> Tensor:
        """Return ``(JᵀHJ + structural JₛᵀJₛ) v`` for v ``(N)``, all parameters in one vector."""
        tangents = _gradients(self.vjp_of_seeds, self.seeds, self.split(v))
        output_gradient = torch.zeros_like(self.leaf)
        if self.slope.requires_grad:  # a loss that is linear in the outputs has no curvature
            (output_gradient,) = _gradients([self.slope], [self.leaf], [tangents[0]])
        damped = [structural * share * tangent for tangent, share in zip(tangents[1:], self.shares, strict=True)]
        return self.join(_gradients(self.heads, self.parameters, [output_gradient, *damped]))

    def split(self, v: Tensor) -> list[Tensor]:
        return [
            piece.view_as(p)
            for piece, p in zip(v.split([p.numel() for p in self.parameters]), self.parameters, strict=True)
        ]

    @staticmethod
    def join(tensors: Sequence[Tensor]) -> Tensor:
        return torch.cat([t.reshape(-1) for t in tensors])


def _share(states: Tensor, lengths: Tensor | None) -> Tensor:
    """Return the weight of each state ``(T, B, H)`` in a mean over the batch."""
    steps, batch, _ = states.shape
    if lengths is None:
        return states.new_full((), 1 / batch)
    running = torch.arange(steps, device=states.device).unsqueeze(-1) < lengths.to(states.device)
    return (running.to(states.dtype) / batch).unsqueeze(-1)


def _gradients(of: Sequence[Tensor], by: Sequence[Tensor], seeds: Sequence[Tensor] | None, create_graph: bool = False):  # type: ignore[no-untyped-def]
    return torch.autograd.grad(
        of, by, seeds, retain_graph=True, create_graph=create_graph, allow_unused=True, materialize_grads=True
    )


@contextmanager
def twice_differentiable(model: nn.Module) -> Iterator[None]:
    """Select engines with second derivatives: linearised steps in layers of evenflow, no cuDNN in those of torch."""
    layers = [part for part in model.modules() if isinstance(part, Recurrent)]
    chosen = [(layer.engine, layer.checkpoint_every) for layer in layers]
    try:
        for layer in layers:
            layer.engine, layer.checkpoint_every = LINEARIZED if layer.engine == "auto" else "reference", None
        with torch.backends.cudnn.flags(enabled=False):
            yield
    finally:
        for layer, before in zip(layers, chosen, strict=True):
            layer.engine, layer.checkpoint_every = before
