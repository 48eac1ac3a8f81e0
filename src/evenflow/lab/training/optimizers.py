"""Adam, RMSprop and SGD (plain, with momentum, with Nesterov's momentum), from the settings of a run."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from evenflow.maps import mapped
from evenflow.optim import GeodesicAdam, GeodesicSGD, Joined, divide

if TYPE_CHECKING:
    from .settings import Settings

Groups = list[dict[str, Any]]
EPSILON = 1e-8  # torch's own


def adam(groups: Groups, settings: Settings) -> torch.optim.Optimizer:
    """Kingma and Ba 2015."""
    return _counted_on_gpu(
        torch.optim.Adam(
            groups,
            lr=settings.lr,
            eps=settings.eps or EPSILON,
            weight_decay=settings.weight_decay,
            fused=_one_kernel(groups),
        )
    )


def rmsprop(groups: Groups, settings: Settings) -> torch.optim.Optimizer:
    """Tieleman and Hinton 2012; the running mean of squares keeps `alpha` of itself at each step."""
    return _counted_on_gpu(
        torch.optim.RMSprop(
            groups,
            lr=settings.lr,
            alpha=settings.alpha,
            eps=settings.eps or EPSILON,
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
    # Clipped among the recurrent weights alone, bases elsewhere have gradients of any length. And a rate may grow.
    known = settings.clip_scope != "recurrent" and settings.decay <= 1
    return GeodesicSGD(groups, lr=settings.lr, clip_norm=settings.clip_norm if known else None)


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

    What makes a map's matrix may have a rate of its own. The spectrum of a factorized map always has one, and its
    orthonormal bases an optimiser that keeps them so.
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


# How an optimiser runs on its device, which may be another one than that of the run it goes on with.
WAYS = ("capturable", "fused", "foreach", "clip_norm")


def load(optimizer: torch.optim.Optimizer, saved: dict[str, Any]) -> None:
    """Give an optimiser back what it remembered, on whatever device it is now."""
    members, states = [optimizer], [saved]
    if isinstance(optimizer, Joined) and isinstance(saved.get("optimizers"), list):
        members, states = list(optimizer.optimizers), saved["optimizers"]
    for member, state in zip(members, states, strict=False):
        groups = zip(state.get("param_groups", []), member.param_groups, strict=False)
        for group, own in groups:
            group.update({way: own[way] for way in WAYS if way in own})
            if "lr" in group:
                group["lr"] = float(group["lr"])
    optimizer.load_state_dict(saved)


def _one_kernel(groups: Groups) -> bool | None:
    """On a GPU one fused kernel updates all weights; it knows real numbers only."""
    return True if all(p.is_cuda and p.is_floating_point() for group in groups for p in group["params"]) else None


def _counted_on_gpu(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """Where all weights are on a GPU their steps are counted there too, so that an update can be recorded."""
    if all(p.is_cuda for group in optimizer.param_groups for p in group["params"]):
        for group in optimizer.param_groups:
            group["capturable"] = True
        optimizer._warned_capturable_if_run_uncaptured = True  # as the first updates are
    return optimizer
