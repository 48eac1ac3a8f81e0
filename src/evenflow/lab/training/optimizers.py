"""From gradients to updates: optimisers and gradient clipping, by the settings of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from evenflow.maps import mapped
from evenflow.optim import GeodesicAdam, GeodesicSGD, Joined, divide
from evenflow.runtime.import_path import imported

from .given_parts import NOTHING_GIVEN, OWN, GivenParts, check_own_optimizer
from .matrix_clipping import MAPPED, free_matrices

if TYPE_CHECKING:
    from .settings import Settings

Groups = list[dict[str, Any]]
MakeOptimizer = Callable[[Groups, "Settings"], torch.optim.Optimizer]
EPS, ADAGRAD_EPS = 1e-8, 1e-10  # torch's defaults
# Options of a parameter group that say how an optimiser runs on its device, which may change when a run is resumed.
DEVICE_OPTIONS = ("capturable", "fused", "foreach", "clip_norm")
SCOPES = ("all", "recurrent", "each", MAPPED)  # of gradient clipping
RECURRENT = "weight_hh"
MATRICES = ("weight_ih", "weight_hh")  # in the names of the parameters that Muon moves
MATRIX = "matrix"  # key of a group of these parameters


def adam(
    groups: Groups, settings: Settings, make: Callable[..., torch.optim.Optimizer] = torch.optim.Adam
) -> torch.optim.Optimizer:
    """Kingma and Ba 2015; or `make`, another of torch's optimisers with the same arguments."""
    eps, decay = settings.eps or EPS, settings.decay_of_weights
    return _counted_on_gpu(make(groups, lr=settings.lr, eps=eps, weight_decay=decay, fused=_one_kernel(groups)))


def adamw(groups: Groups, settings: Settings) -> torch.optim.Optimizer:
    """Loshchilov and Hutter 2019: Adam whose weight decay shrinks the weights themselves."""
    return adam(groups, settings, torch.optim.AdamW)


def of_torch(make: Callable[..., torch.optim.Optimizer], eps: float = EPS) -> MakeOptimizer:
    """The entry of `OPTIMIZERS` for one of torch's optimisers, from its class and its default `eps`."""

    def maker(groups: Groups, settings: Settings) -> torch.optim.Optimizer:
        return make(groups, lr=settings.lr, eps=settings.eps or eps, weight_decay=settings.decay_of_weights)

    return maker


def muon(groups: Groups, settings: Settings) -> torch.optim.Optimizer:
    """Jordan et al. 2024: a step of orthogonal matrices for the layers' matrices, AdamW for all other parameters.

    The step is scaled to the size of AdamW's, so that both share a learning rate.
    """
    matrices = [group for group in groups if group.get(MATRIX)]
    rest = [group for group in groups if not group.get(MATRIX)]
    decay = settings.decay_of_weights
    members: list[torch.optim.Optimizer] = []
    if rest:
        members.append(adamw(rest, settings))
    if matrices:
        members.append(torch.optim.Muon(matrices, lr=settings.lr, weight_decay=decay, adjust_lr_fn="match_rms_adamw"))
    return members[0] if len(members) == 1 else Joined(members)


def rmsprop(groups: Groups, settings: Settings) -> torch.optim.Optimizer:
    """Tieleman and Hinton 2012; `alpha` is the decay of the running mean of squares."""
    return _counted_on_gpu(
        torch.optim.RMSprop(
            groups,
            lr=settings.lr,
            alpha=settings.alpha,
            eps=settings.eps or EPS,
            momentum=settings.momentum,
            weight_decay=settings.decay_of_weights,
        )
    )


def sgd(groups: Groups, settings: Settings) -> torch.optim.Optimizer:
    """v ← μ v + g, then w ← w - η v, or w ← w - η (g + μ v) with Nesterov's momentum (Sutskever et al. 2013)."""
    return torch.optim.SGD(
        groups,
        lr=settings.lr,
        momentum=settings.momentum,
        nesterov=settings.nesterov,
        weight_decay=settings.decay_of_weights,
        fused=_one_kernel(groups),
    )


def geodesic_sgd(groups: Groups, settings: Settings) -> torch.optim.Optimizer:
    """Wen and Yin 2013, for orthonormal bases."""
    # clip_norm bounds the gradients of the bases only if all parameters are clipped and lr never grows.
    bounded = settings.clip_scope in ("all", "each") and settings.decay <= 1 and OWN not in settings.schedule
    return GeodesicSGD(groups, lr=settings.lr, clip_norm=settings.clip_norm if bounded else None)


def geodesic_adam(groups: Groups, settings: Settings) -> torch.optim.Optimizer:
    """Bécigneul and Ganea 2019, for orthonormal bases."""
    return GeodesicAdam(groups, lr=settings.lr)


OPTIMIZERS: dict[str, MakeOptimizer] = {
    "adam": adam,
    "rmsprop": rmsprop,
    "sgd": sgd,
    "adamw": adamw,
    "nadam": of_torch(torch.optim.NAdam),  # Dozat 2016: Adam with Nesterov's momentum
    "radam": of_torch(torch.optim.RAdam),  # Liu et al. 2020: Adam with a rectified variance, a warm-up of its own
    "adamax": of_torch(torch.optim.Adamax),  # Kingma and Ba 2015: the largest gradient, not the root mean square
    "adagrad": of_torch(torch.optim.Adagrad, ADAGRAD_EPS),  # Duchi et al. 2011
    **({"muon": muon} if hasattr(torch.optim, "Muon") else {}),
}
WITH_EPS = tuple(name for name in OPTIMIZERS if name != "sgd")
WEIGHT_DECAYS = {"adamw": 0.01, "muon": 0.1}  # torch's defaults; of the others 0
BASES: dict[str, MakeOptimizer] = {"sgd": geodesic_sgd, "adam": geodesic_adam}


def make_optimizer(model: nn.Module, settings: Settings, given: GivenParts = NOTHING_GIVEN) -> torch.optim.Optimizer:
    """The optimiser that the settings name or the caller gave, over the parameters that are trained.

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
    if isinstance(given.optimizer, torch.optim.Optimizer):
        check_own_optimizer(given.optimizer, model, orthonormal)
        return given.optimizer
    members: list[torch.optim.Optimizer] = []
    if ordinary:
        made = _named(_apart(model, ordinary) if settings.optimizer == "muon" else ordinary, settings, given)
        members = list(made.optimizers) if isinstance(made, Joined) else [made]
    if orthonormal:
        members.append(BASES[settings.bases](orthonormal, settings))
    return members[0] if len(members) == 1 else Joined(members)


def _named(groups: Groups, settings: Settings, given: GivenParts) -> torch.optim.Optimizer:
    """The optimiser of a name of `OPTIMIZERS`, or of a class of the user's own, which gets lr and a weight decay."""
    if OWN not in settings.optimizer:
        return OPTIMIZERS[settings.optimizer](groups, settings)
    make: Any = given.optimizer or imported("optimizer", settings.optimizer)
    if not (isinstance(make, type) and issubclass(make, torch.optim.Optimizer)):
        raise ValueError(f"optimizer must be a class of torch optimizers, got {settings.optimizer}")
    options = {} if settings.weight_decay is None else {"weight_decay": settings.weight_decay}
    try:
        return cast(Callable[..., torch.optim.Optimizer], make)(groups, lr=settings.lr, **options)
    except TypeError as error:
        raise ValueError(f"optimizer {settings.optimizer} cannot be made with lr and these groups: {error}") from error


def _apart(model: nn.Module, groups: Groups) -> Groups:
    """The groups with the layers' matrices in groups of their own; the parameters of maps are not among them."""
    own = {id(p) for p, _, _ in mapped(model)}
    chosen = {
        id(p)
        for name, p in model.named_parameters()
        if p.ndim == 2 and p.is_floating_point() and id(p) not in own and any(part in name for part in MATRICES)
    }
    divided = []
    for group in groups:
        for matrix in (False, True):
            params = [p for p in group["params"] if (id(p) in chosen) is matrix]
            if params:
                divided.append({**group, "params": params, MATRIX: matrix})
    return divided


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


def clip_groups(model: nn.Module, scope: str) -> list[list[nn.Parameter]]:
    """The trained parameters that are clipped, in groups that share one norm.

    Scope "all" is one group of all parameters, "recurrent" one group of those with "weight_hh" in their name, and
    "each" one group per parameter. "mapped" is one group for each recurrent matrix that takes a map and has none;
    `clipped_matrices` clips the gradients by those that have one.
    """
    if scope == MAPPED:
        return [[p] for p in free_matrices(model)]
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
