"""Gradient descent whose learning rate is found anew at every update, by a search along the gradient."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from evenflow.checks import number

TRIALS = 30  # of a search; 2⁻³⁰ of the first step is below the rounding of float32


class LineSearchDescent(torch.optim.Optimizer):
    """``w ← w - η g`` with the first η of ``η₀, β η₀, β² η₀, ...`` that lowers the loss enough:

        L(w - η g) <= L(w) - c η |g|²

    η₀ is ``lr`` at the first update and then the last η over β, at most ``largest``; so η can grow again with every
    update. If no trial lowers the loss enough, the weights stay, and the next search begins at the smallest trial.

    Args:
        params: to train, in one group.
        lr: η at the first trial.
        shrink: β.
        sufficient: c, the share of the decrease that the gradient promises.
        largest: the largest η.

    The loss must be the same function each time it is evaluated: the same batch, the same dropout masks. So the search
    is for whole data sets or large batches; with small ones it follows their noise.

    >>> optimizer = LineSearchDescent(model.parameters())
    >>> loss = task.loss(model(batch.inputs)[0], batch.targets)
    >>> loss.backward()
    >>> after = optimizer.step(lambda: task.loss(model(batch.inputs)[0], batch.targets))
    >>> bool(task.loss(model(batch.inputs)[0], batch.targets) < loss)
    True

    References: Armijo 1966; Galvan, 1.5, names line search among the ways to choose the learning rate.
    """

    def __init__(
        self, params: Any, lr: float = 1.0, shrink: float = 0.5, sufficient: float = 1e-4, largest: float = 1e4
    ) -> None:
        number("lr", lr, above=0)
        number("shrink", shrink, above=0, below=1)
        number("sufficient", sufficient, above=0, below=1)
        number("largest", largest, least=lr)
        super().__init__(params, {"lr": lr, "shrink": shrink, "sufficient": sufficient, "largest": largest})
        if len(self.param_groups) != 1:
            raise ValueError(
                f"params must be one group, because one step is searched for, got {len(self.param_groups)}"
            )

    @torch.no_grad()
    def step(self, closure: Callable[[], Tensor | float] | None = None, loss: float | None = None) -> float:  # type: ignore[override]
        """Search along the gradient that the parameters hold, and return the loss that was reached.

        Args:
            closure: evaluates the loss at the present weights; no gradient is needed.
            loss: at the present weights, if it is known already.
        """
        if closure is None:
            raise ValueError("closure must evaluate the loss, got None")
        group = self.param_groups[0]
        moved = [p for p in group["params"] if p.grad is not None]
        start = [p.detach().clone() for p in moved]
        slope = float(sum(torch.sum(p.grad.abs().double() ** 2) for p in moved))
        before = float(closure()) if loss is None else loss
        eta = float(group["lr"])
        for _ in range(TRIALS):
            for p, origin in zip(moved, start, strict=True):
                torch.add(origin, p.grad, alpha=-eta, out=p)
            after = float(closure())
            if math.isfinite(after) and after <= before - group["sufficient"] * eta * slope:
                group["lr"] = min(eta / group["shrink"], group["largest"])
                return after
            eta *= group["shrink"]
        for p, origin in zip(moved, start, strict=True):
            p.copy_(origin)
        group["lr"] = eta
        return before
