"""Adam, RMSprop and SGD (plain, with momentum, with Nesterov's momentum), from the settings of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import torch
from torch import nn

if TYPE_CHECKING:
    from .settings import Settings


def adam(parameters: list[nn.Parameter], settings: Settings) -> torch.optim.Optimizer:
    """Kingma and Ba 2015."""
    return torch.optim.Adam(
        parameters, lr=settings.rate, weight_decay=settings.weight_decay, fused=_one_kernel(parameters)
    )


def rmsprop(parameters: list[nn.Parameter], settings: Settings) -> torch.optim.Optimizer:
    """Tieleman and Hinton 2012; the running mean of squares keeps `smoothing` of itself at each step."""
    return torch.optim.RMSprop(
        parameters,
        lr=settings.rate,
        alpha=settings.smoothing,
        momentum=settings.momentum,
        weight_decay=settings.weight_decay,
    )


def sgd(parameters: list[nn.Parameter], settings: Settings) -> torch.optim.Optimizer:
    """v ← μ v + g, then w ← w - η v, or w ← w - η (g + μ v) with Nesterov's momentum (Sutskever et al. 2013)."""
    return torch.optim.SGD(
        parameters,
        lr=settings.rate,
        momentum=settings.momentum,
        nesterov=settings.nesterov,
        weight_decay=settings.weight_decay,
        fused=_one_kernel(parameters),
    )


OPTIMIZERS: dict[str, Callable[[list[nn.Parameter], Settings], torch.optim.Optimizer]] = {
    "adam": adam,
    "rmsprop": rmsprop,
    "sgd": sgd,
}


def make_optimizer(parameters: Iterable[nn.Parameter], settings: Settings) -> torch.optim.Optimizer:
    """The optimiser the settings name, over the parameters that are trained."""
    trained = [p for p in parameters if p.requires_grad]
    if not trained:
        raise ValueError("model has no parameter to train, at least one must require a gradient")
    return OPTIMIZERS[settings.optimizer](trained, settings)


def _one_kernel(parameters: list[nn.Parameter]) -> bool | None:
    """On a GPU one fused kernel updates all weights; it knows real numbers only."""
    return True if all(p.is_cuda and p.is_floating_point() for p in parameters) else None
