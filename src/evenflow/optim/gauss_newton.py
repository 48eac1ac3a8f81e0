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

    It is the curvature of the loss with the model replaced by its linear approximation, and positive where the loss is
    convex in the outputs. With `states`, also ``v ↦ Jₛᵀ Jₛ v`` for the states of the recurrent layers, the curvature of
    half their squared change, a mean over the batch: structural damping.

    Args:
        model: whose parameters are moved; while the graph is built its layers run in ways that have a gradient of the
            gradient.
        parameters: with respect to which.
        answer: model to outputs, on the batch that the curvature is of.
        loss: outputs to the loss, a mean over the batch.
        states: whether the states' curvature is wanted too.
        lengths: the steps of each sequence ``(B)``, where they run padded: states beyond the end do not count.

    Note on J v: forward mode would need a rule for every hand-written gradient (scans, maps). J v is instead the
    gradient of uᵀJ v by u, which needs a gradient of the gradient alone; that graph is built once and serves every
    product. Both passes together cost about as much as two gradients.

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
            # States that no parameter moves, as those of a reservoir, have no curvature.
            moved = [run for run in runs if states and run.states.requires_grad]
            self.heads = [outputs, *(run.states for run in moved)]
            if states and not moved:
                raise ValueError(
                    "structural damping needs a recurrent layer of evenflow whose states are trained, got none"
                )
            self.seeds = [torch.zeros_like(head, requires_grad=True) for head in self.heads]
            self.pulled = _gradients(self.heads, self.parameters, self.seeds, create_graph=True)
            self.leaf = outputs.detach().requires_grad_()
            (self.slope,) = _gradients([loss(self.leaf)], [self.leaf], None, create_graph=True)
        # Of packed sequences the states beyond the end are zero, whatever the weights.
        self.shares = [_share(run.states, None if run.sequences.packed else lengths) for run in moved]

    def product(self, v: Tensor, structural: float = 0.0) -> Tensor:
        """``(JᵀHJ + structural JₛᵀJₛ) v`` for v ``(N)``, the parameters in one row."""
        pushed = _gradients(self.pulled, self.seeds, self.split(v))
        curved = torch.zeros_like(self.leaf)
        if self.slope.requires_grad:  # a loss that is linear in the outputs has no curvature
            (curved,) = _gradients([self.slope], [self.leaf], [pushed[0]])
        damped = [structural * share * push for push, share in zip(pushed[1:], self.shares, strict=True)]
        return self.join(_gradients(self.heads, self.parameters, [curved, *damped]))

    def split(self, v: Tensor) -> list[Tensor]:
        return [
            piece.view_as(p)
            for piece, p in zip(v.split([p.numel() for p in self.parameters]), self.parameters, strict=True)
        ]

    @staticmethod
    def join(tensors: Sequence[Tensor]) -> Tensor:
        return torch.cat([t.reshape(-1) for t in tensors])


def _share(states: Tensor, lengths: Tensor | None) -> Tensor:
    """What each state ``(T, B, H)`` counts for in a mean over the batch."""
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
    """Run the layers in ways that have a gradient of the gradient: ours by its tangent, torch's without cuDNN."""
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
