"""Hessian-free optimisation: Newton steps by conjugate gradients, without a matrix."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from evenflow.checks import number, whole_number
from evenflow.layers import Recurrent
from evenflow.maps import parameter_groups
from evenflow.optim.conjugate_gradient import conjugate_gradient
from evenflow.optim.gauss_newton import GaussNewton
from evenflow.optim.processes import mean_over_processes
from evenflow.probes.model_layer import outputs_of

Batch = Sequence[Any]  # inputs, targets and, where sequences differ in length, lengths: a `tasks.Batch`
# The rule of Levenberg and Marquardt (Galvan, 2.26): above `GOOD` the model was trusted too little.
GOOD, POOR, LESS, MORE = 3 / 4, 1 / 4, 2 / 3, 3 / 2
# The line search: the factor between two tries, and the share of the decrease of the linear model that is enough.
SHORTER, SHARE, TRIES = 0.8, 1e-2, 60


class Progress(NamedTuple):
    """The result of one step.

    Attributes:
        before, after: the loss on the batch of the gradient.
        ratio: ρ, the change of the loss over the change in the quadratic model, before the line search.
        damping: λ for the next step.
        rate: the factor of the direction from the line search; 0 if no try descended.
        products: number of Gauss-Newton products on the batch of the curvature, each as costly as about two gradients.
        evaluations: number of forward passes on the batch of the gradient, besides that of the gradient.
        norm: norm of the gradient.

    >>> step = HessianFree(model, task.loss).step(batch, batch)
    >>> step.after <= step.before
    True
    """

    before: float
    after: float
    ratio: float
    damping: float
    rate: float
    products: int
    evaluations: int
    norm: float


def answer(model: nn.Module, batch: Batch) -> Tensor:
    """Return the outputs of `model` on a batch, without its final states."""
    return outputs_of(model, batch[0], batch[2] if len(batch) > 2 else None)


class HessianFree(torch.optim.Optimizer):
    """Minimises ``M(δ) = ∇Lᵀδ + ½ δᵀ(G + λI + λμS)δ`` by truncated conjugate gradients, and steps by δ.

    G is the Gauss-Newton matrix of the loss and S that of the squared change of the states (see `GaussNewton`); neither
    is formed. Conjugate gradients start from the scaled previous δ; the iterate with the smallest loss is taken, and a
    line search scales it. λ follows the rule of Levenberg and Marquardt: with
    ``ρ = (L(θ + δ) - L(θ)) / (∇Lᵀδ + ½ δᵀGδ)``, λ ← 2λ/3 where ρ > 3/4, and λ ← 3λ/2 where ρ < 1/4.

    Args:
        model: any model with second derivatives. While the curvature is computed, layers of evenflow run by engines
            that have them, elsewhere by their fast engines. No dropout: the loss must be a function of the weights.
        loss: function of outputs and targets, convex in the outputs, a mean over the batch.
        damping: the initial λ.
        structural: μ; 0 for Tikhonov damping alone. Some structural damping helps recurrent networks.
        iterations, tolerance: of `conjugate_gradient`.
        warmth: the factor of the previous δ from which conjugate gradients start.
        answer: function from model and batch to outputs.
        padded: whether `answer` runs ragged batches padded; the curvature then leaves out states beyond the end of
            each sequence.

    >>> optimizer = HessianFree(model, task.loss, structural=0.03)
    >>> step = optimizer.step(task.batch(1000, generator), task.batch(200, generator))
    >>> step.after < step.before
    True

    With several processes each has its own batches; gradients, products and losses are averaged, so that all processes
    take the same step. Call the model itself, not its DDP wrapper.

    Note on the updates: equation 2.20 of Galvan lacks θ_k, and 2.25 has the previous δ where it means the present one.

    References: Martens 2010; Martens and Sutskever 2011; Galvan, 2.2.2.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Callable[[Tensor, Tensor], Tensor],
        *,
        damping: float = 0.1,
        structural: float = 0.0,
        iterations: int = 100,
        tolerance: float = 5e-4,
        warmth: float = 0.95,
        answer: Callable[[nn.Module, Batch], Tensor] = answer,
        padded: bool = False,
    ) -> None:
        number("damping", damping, above=0)
        number("structural", structural, least=0)
        number("warmth", warmth, least=0, most=1)
        whole_number("iterations", iterations, 1)
        trained = [p for p in model.parameters() if p.requires_grad]
        if len({(p.dtype, p.device) for p in trained}) > 1 or any(p.is_complex() for p in trained):
            raise ValueError("HessianFree needs real parameters of one dtype on one device")
        if any(group["stiefel"] for group in parameter_groups(model, 1.0)):
            raise ValueError("HessianFree would move the bases of a factorized map off the orthogonal matrices")
        if any(_has_dropout(part) for part in model.modules()):
            raise ValueError("HessianFree needs a model without dropout, because it compares losses")
        self.model, self.loss, self.answer, self.padded = model, loss, answer, padded
        self._answer_module = _AnswerModule(model, answer)
        self._names = [name for name, p in self._answer_module.named_parameters() if p.requires_grad]
        defaults = {
            "damping": damping,
            "structural": structural,
            "iterations": iterations,
            "tolerance": tolerance,
            "warmth": warmth,
        }
        super().__init__(trained, defaults)

    def __getstate__(self) -> dict[str, Any]:
        # A copy has a copy of the model, with the copied parameters.
        own = ("model", "loss", "answer", "padded", "_answer_module", "_names")
        return {**super().__getstate__(), **{name: getattr(self, name) for name in own}}

    def curvature(self, batch: Batch) -> GaussNewton:
        """Return the Gauss-Newton matrix on a batch."""
        group = self.param_groups[0]
        return GaussNewton(
            self.model,
            group["params"],
            lambda: self.answer(self.model, batch),
            lambda outputs: self.loss(outputs, batch[1]),
            states=group["damping"] * group["structural"] > 0,
            lengths=batch[2] if self.padded and len(batch) > 2 else None,
        )

    def step(self, batch: Batch, curvature: Batch | None = None) -> Progress:  # type: ignore[override]
        """Make one step.

        Args:
            batch: for the gradient, the losses and the line search.
            curvature: for the products; may be smaller. Default: `batch`.
        """
        group = self.param_groups[0]
        parameters: list[nn.Parameter] = group["params"]
        damping, structural = group["damping"], group["damping"] * group["structural"]
        theta = GaussNewton.join([p.detach() for p in parameters])
        before, gradient = self._gradient(batch, parameters)
        source = batch if curvature is None else curvature
        matrix = self.curvature(source)

        def damped(v: Tensor) -> Tensor:
            return mean_over_processes(matrix.product(v, structural)) + damping * v

        start = group["warmth"] * GaussNewton.join([self._previous(p) for p in parameters])
        solution = conjugate_gradient(damped, -gradient, start, group["iterations"], group["tolerance"])
        evaluations = 0

        def value(delta: Tensor) -> float:
            nonlocal evaluations
            evaluations += 1
            return self._value(batch, matrix.split(theta + delta))

        delta, reached = self._best(solution.kept, value)
        predicted = float(gradient.dot(delta) + 0.5 * delta.dot(mean_over_processes(matrix.product(delta))))
        ratio = (reached - before) / predicted if predicted < 0 else -math.inf
        group["damping"] = damping * (LESS if ratio > GOOD else MORE if not ratio >= POOR else 1.0)
        slope, rate = float(gradient.dot(delta)), 1.0
        tries, moves = 0, math.isfinite(slope) and bool(delta.any())
        while moves and not reached <= before + SHARE * rate * slope and tries < TRIES:
            rate, tries = SHORTER * rate, tries + 1
            reached = value(rate * delta)
        if not moves or not reached <= before:
            rate, reached = 0.0, before
        products = solution.iterations + 1 + bool(start.any())
        with torch.no_grad():
            for p, piece in zip(parameters, matrix.split(delta), strict=True):
                self.state[p]["direction"] = piece.clone() if rate else torch.zeros_like(piece)
                p.add_(piece, alpha=rate)
        norm = float(gradient.norm())
        return Progress(before, reached, ratio, group["damping"], rate, products, evaluations, norm)

    def _gradient(self, batch: Batch, parameters: list[nn.Parameter]) -> tuple[float, Tensor]:
        with torch.enable_grad():
            loss = self.loss(self.answer(self.model, batch), batch[1])
        gradients = torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)
        whole = mean_over_processes(torch.cat([loss.detach().reshape(1), GaussNewton.join(gradients)]))
        return float(whole[0]), whole[1:]

    def _previous(self, p: nn.Parameter) -> Tensor:
        return self.state[p]["direction"] if "direction" in self.state[p] else torch.zeros_like(p)

    @torch.no_grad()
    def _value(self, batch: Batch, values: list[Tensor]) -> float:
        """Return the loss at other values, without changing the parameters, which the graph of the products reads."""
        outputs = torch.func.functional_call(self._answer_module, dict(zip(self._names, values, strict=True)), (batch,))
        loss = float(mean_over_processes(self.loss(outputs, batch[1])))
        return loss if math.isfinite(loss) else math.inf

    @staticmethod
    def _best(iterates: list[Tensor], value: Callable[[Tensor], float]) -> tuple[Tensor, float]:
        """Return the iterate and its loss, going back from the last one while the loss falls."""
        best, reached = iterates[-1], value(iterates[-1])
        for earlier in reversed(iterates[:-1]):
            loss = value(earlier)
            if loss > reached:
                break
            best, reached = earlier, loss
        return best, reached


class _AnswerModule(nn.Module):
    """`answer` as a module, for `functional_call`."""

    def __init__(self, model: nn.Module, answer: Callable[[nn.Module, Batch], Tensor]) -> None:
        super().__init__()
        self.model, self.answer = model, answer

    def forward(self, batch: Batch) -> Tensor:
        return self.answer(self.model, batch)


def _has_dropout(part: nn.Module) -> bool:
    share = part.p if isinstance(part, nn.modules.dropout._DropoutNd) else getattr(part, "dropout", 0.0)
    drawn = isinstance(part, Recurrent) and part.cell.draws
    return part.training and (drawn or (isinstance(share, float) and share > 0))
