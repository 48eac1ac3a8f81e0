"""From gradients to updates: optimisers, learning-rate schedules and gradient clipping, by the settings of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from evenflow.maps import mapped
from evenflow.optim import GeodesicAdam, GeodesicSGD, Joined, divide

if TYPE_CHECKING:
    from .settings import Settings

Groups = list[dict[str, Any]]
EPS = 1e-8  # torch's default
# Options of a parameter group that say how an optimiser runs on its device, which may change when a run is resumed.
DEVICE_OPTIONS = ("capturable", "fused", "foreach", "clip_norm")
SCOPES = ("all", "recurrent", "each")  # of gradient clipping
RECURRENT = "weight_hh"


def adam(groups: Groups, settings: Settings) -> torch.optim.Optimizer:
    """Kingma and Ba 2015."""
    return _counted_on_gpu(
        torch.optim.Adam(
            groups,
            lr=settings.lr,
            eps=settings.eps or EPS,
            weight_decay=settings.weight_decay,
            fused=_one_kernel(groups),
        )
    )


def rmsprop(groups: Groups, settings: Settings) -> torch.optim.Optimizer:
    """Tieleman and Hinton 2012; `alpha` is the decay of the running mean of squares."""
    return _counted_on_gpu(
        torch.optim.RMSprop(
            groups,
            lr=settings.lr,
            alpha=settings.alpha,
            eps=settings.eps or EPS,
            momentum=settings.momentum,
            weight_decay=settings.weight_decay,
        )
    )


def sgd(groups: Groups, settings: Settings) -> torch.optim.Optimizer:
    """v ← μ v + g, then w ← w - η v, or w ← w - η (g + μ v) with Nesterov's momentum (Sutskever et al. 2013)."""
    return torch.optim.SGD(
        groups,
        lr=settings.lr,
        momentum=settings.momentum,
        nesterov=settings.nesterov,
        weight_decay=settings.weight_decay,
        fused=_one_kernel(groups),
    )


def geodesic_sgd(groups: Groups, settings: Settings) -> torch.optim.Optimizer:
    """Wen and Yin 2013, for orthonormal bases."""
    # clip_norm bounds the gradients of the bases only if all parameters are clipped and lr never grows.
    bounded = settings.clip_scope != "recurrent" and settings.decay <= 1
    return GeodesicSGD(groups, lr=settings.lr, clip_norm=settings.clip_norm if bounded else None)


def geodesic_adam(groups: Groups, settings: Settings) -> torch.optim.Optimizer:
    """Bécigneul and Ganea 2019, for orthonormal bases."""
    return GeodesicAdam(groups, lr=settings.lr)


OPTIMIZERS: dict[str, Callable[[Groups, Settings], torch.optim.Optimizer]] = {
    "adam": adam,
    "rmsprop": rmsprop,
    "sgd": sgd,
}
BASES: dict[str, Callable[[Groups, Settings], torch.optim.Optimizer]] = {"sgd": geodesic_sgd, "adam": geodesic_adam}


def make_optimizer(model: nn.Module, settings: Settings) -> torch.optim.Optimizer:
    """The optimiser the settings name, over the parameters that are trained.

    The parameters of maps may have their own learning rate. The spectrum of a factorized map always has its own, and
    its orthonormal bases an optimiser that keeps them orthonormal.
    """
    ordinary, orthonormal = divide(model, settings.lr, settings.bases_lr, settings.map_lr)
    if not ordinary and not orthonormal:
        raise ValueError("model has no parameter to train, at least one must require a gradient")
    if settings.map_lr is not None and not any(p.requires_grad for p, _, _ in mapped(model)):
        raise ValueError("map_lr goes with a map, got a model in which no map has a parameter to train")
    for name, default in (("bases_lr", None), ("bases", "sgd")):
        if getattr(settings, name) != default and not orthonormal:
            raise ValueError(f"{name} goes with a factorized map, got a model with no orthonormal bases")
    if orthonormal and settings.precision == "bf16-true":
        raise ValueError("precision must not be bf16-true with a factorized map: its bases would not stay orthonormal")
    members = [OPTIMIZERS[settings.optimizer](ordinary, settings)] if ordinary else []
    if orthonormal:
        members.append(BASES[settings.bases](orthonormal, settings))
    return members[0] if len(members) == 1 else Joined(members)


def load(optimizer: torch.optim.Optimizer, saved: dict[str, Any]) -> None:
    """Restore an optimiser's state, which may have been saved on another device."""
    members, states = [optimizer], [saved]
    if isinstance(optimizer, Joined) and isinstance(saved.get("optimizers"), list):
        members, states = list(optimizer.optimizers), saved["optimizers"]
    for member, state in zip(members, states, strict=False):
        groups = zip(state.get("param_groups", []), member.param_groups, strict=False)
        for group, own in groups:
            group.update({name: own[name] for name in DEVICE_OPTIONS if name in own})
            if "lr" in group:
                group["lr"] = float(group["lr"])
    optimizer.load_state_dict(saved)


def _one_kernel(groups: Groups) -> bool | None:
    """True on a GPU, where one fused kernel updates all weights; it supports real numbers only."""
    return True if all(p.is_cuda and p.is_floating_point() for group in groups for p in group["params"]) else None


def _counted_on_gpu(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """Keep the step count on the GPU if all weights are there, so that an update can be captured."""
    if all(p.is_cuda for group in optimizer.param_groups for p in group["params"]):
        for group in optimizer.param_groups:
            group["capturable"] = True
        optimizer._warned_capturable_if_run_uncaptured = True  # the first updates run uncaptured on purpose
    return optimizer


# The factor on the learning rate at update `step` (from 0) of `steps`, with the settings decay and decay_every.
SCHEDULES: dict[str, Callable[[int, int, float, int], float]] = {
    "constant": lambda step, steps, decay, every: 1.0,
    "linear": lambda step, steps, decay, every: max(0.0, 1.0 - step / steps),
    "exponential": lambda step, steps, decay, every: float(decay ** (step / every)),
    "step": lambda step, steps, decay, every: float(decay ** (step // every)),
}


def lr_factor(schedule: str, step: int, steps: int, decay: float = 0.5, every: int = 1000) -> float:
    """The factor on the learning rate at update `step` (from 0) of `steps`.

    >>> [lr_factor("linear", step, 4) for step in range(5)]
    [1.0, 0.75, 0.5, 0.25, 0.0]
    """
    return SCHEDULES[schedule](step, steps, decay, every)


def clip_groups(model: nn.Module, scope: str) -> list[list[nn.Parameter]]:
    """The trained parameters that are clipped, in groups that share one norm.

    Scope "all" is one group of all parameters, "recurrent" one group of those with "weight_hh" in their name, and
    "each" one group per parameter.
    """
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    if scope == "each":
        return [[p] for _, p in named]
    return [[p for name, p in named if scope == "all" or RECURRENT in name]]


def gradient_norm(parameters: Iterable[Tensor]) -> Tensor:
    """The Euclidean norm of all gradients taken as one vector; it stays on the device, so nothing waits for it."""
    return torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])


def clip(
    parameters: list[nn.Parameter], norm: float | None, value: float | None, measured: Tensor | None = None
) -> None:
    """Clip gradients in place: first each entry to ``[-value, value]``, then the whole to ``norm``.

    Args:
        parameters: their gradients are clipped.
        norm, value: the largest norm and the largest absolute entry; None does not clip.
        measured: the norm of these gradients if it is known already; used only when `value` is None.

    A gradient shorter than `norm` stays the same, bit for bit.
    """
    if value is not None:
        torch.nn.utils.clip_grad_value_(parameters, value)
    if norm is not None:
        total = measured if measured is not None and value is None else gradient_norm(parameters)
        torch.nn.utils.clip_grads_with_norm_(parameters, norm, total)
