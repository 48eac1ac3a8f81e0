"""Several models of one shape as one: their batches run in one pass, with as many kernel launches as one model."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Sequence
from types import FunctionType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.utils import parametrize

from evenflow.maps import MAPS, Map, detach
from evenflow.maps.singular_values import SingularValues, WithSingularValues
from evenflow.models.model_noise import ModelNoise
from evenflow.models.sequence_model import SequenceModel

# Attributes that are not settings.
TRANSIENT = ("training", "graphs", "angle_range", "programs", "revision", "free_maps")
# Maps whose third parameter holds singular values; a user's own map may compute them in another way.
WITH_MARGIN = [map for map in MAPS.values() if issubclass(map, WithSingularValues)]


class MappedWeight(NamedTuple):
    """A weight with a map: the path of its module, and its name in the module."""

    path: str
    name: str

    @property
    def full(self) -> str:
        return f"{self.path}.{self.name}" if self.path else self.name


class Population(nn.Module):
    """M models, each with its own weights and its own batch, run in one pass.

    The models keep their own parameters, which are stacked for a pass and get their own gradients, so that any
    optimiser, checkpoint or probe works on each model. Maps with equal settings compute all M matrices at once, and so
    do `svd` and `factorized` maps with different margins; the recurrence is one call of its operator, which has a
    dimension for the models.

    Shapes:
        inputs ``(M, T, B, I)``, or ``(M, T, B)`` with a vocabulary; outputs ``(M, B, O)`` or ``(M, T, B, O)``; lengths
        ``(M, B)``; resets ``(M, T, B)``; states ``(M, num_layers, B, H)``, or a tuple of them.

    Args:
        models: `SequenceModel` objects that are equal except for their parameters; their layers run one way. Dropout
            masks differ between the models. The states of all steps are kept, whatever their `checkpoint_every`, with a
            warning.

    >>> models = [SequenceModel(create("sgornn", 2, 128), 1) for _ in range(16)]
    >>> outputs, _ = Population(models)(torch.randn(16, 784, 50, 2))
    >>> outputs.shape
    torch.Size([16, 50, 1])
    """

    def __init__(self, models: Sequence[SequenceModel]) -> None:
        super().__init__()
        _check(models)
        if getattr(models[0].layer, "checkpoint_every", None) is not None:
            warnings.warn(
                "a population keeps the states of all steps: checkpoint_every saves no memory in it",
                RuntimeWarning,
                stacklevel=2,
            )
        self.models = nn.ModuleList(models)
        self._mapped = [
            MappedWeight(path, name)
            for path, part in models[0].named_modules()
            if parametrize.is_parametrized(part)
            for name in part.parametrizations
        ]
        skeleton = copy.deepcopy(models[0])
        for weight in self._mapped:
            detach(skeleton.get_submodule(weight.path), weight.name)
        skeleton.one_way = True  # `_check` made sure of it
        self._skeleton = (skeleton,)  # in a tuple, so that its unused parameters are not the population's
        # Compared once, since comparing tensors makes a GPU wait.
        self._shared = {weight.full: self._has_one_map(weight) for weight in self._mapped}
        self._bare = {weight.full: self._map_without_margin(weight) for weight in self._mapped}
        self._draws = True  # until a pass in training has drawn no random number

    def forward(
        self,
        inputs: Tensor,
        state: Any = None,
        lengths: Tensor | None = None,
        resets: Tensor | None = None,
        generators: Sequence[torch.Generator] | None = None,
    ) -> tuple[Tensor, Any]:
        """Outputs and final states of all models; with lengths, states beyond a sequence's end depend on padding.

        Args:
            generators: one for each model, from which its dropout masks are drawn. Default: torch's global generator
                for all.
        """
        if len(inputs) != len(self.models):
            raise ValueError(
                f"inputs must have {len(self.models)} as first dimension, one for each model, got {tuple(inputs.shape)}"
            )
        skeleton = self._skeleton[0].train(self.training)

        def run(weights: dict[str, Tensor], x: Tensor, state: Any, *masks: Tensor | None) -> tuple[Tensor, Any]:
            lengths, resets = masks
            return functional_call(skeleton, weights, (x, state, lengths, True, resets))

        dims = (0, 0, *(None if v is None else 0 for v in (state, lengths, resets)))
        pass_of_all = vmap(run, in_dims=dims, randomness="different")
        if generators is None or not (self.training and self._draws):
            return pass_of_all(self._weights(), inputs, state, lengths, resets)
        with ModelNoise(generators) as noise:
            answer = pass_of_all(self._weights(), inputs, state, lengths, resets)
        self._draws = noise.drawn > 0
        return answer

    def _weights(self) -> dict[str, Tensor]:
        """Every parameter and buffer of the skeleton, stacked over the models."""
        mapped = {weight.full: self._matrices(weight) for weight in self._mapped}
        tensors = [dict(_tensors(model)) for model in self.models]
        plain = [name for name, _ in _tensors(self._skeleton[0]) if name not in mapped]
        return mapped | {name: torch.stack([each[name] for each in tensors]) for name in plain}

    def _chains(self, weight: MappedWeight) -> list[Any]:
        """The parametrization of this weight in each model."""
        return [model.get_submodule(weight.path).parametrizations[weight.name] for model in self.models]  # type: ignore[index]

    def _has_one_map(self, weight: MappedWeight) -> bool:
        """True if the map of any model computes this weight for all of them."""
        first, *others = self._chains(weight)
        if len(first) != 1 or not isinstance(first[0], Map) or first[0].moves_every is not None:
            return False
        return all(_is_alike(other[0], first[0]) for other in others)

    def _map_without_margin(self, weight: MappedWeight) -> Map | None:
        """A map that computes this weight from singular values; None unless the maps differ in their margins only."""
        chains = self._chains(weight)
        if self._shared[weight.full] or any(len(chain) != 1 or type(chain[0]) not in WITH_MARGIN for chain in chains):
            return None
        bare, *others = (copy.deepcopy(chain[0]) for chain in chains)
        for map in (bare, *others):
            map.spectrum = SingularValues(1.0, None, "sigmoid")
        return bare if all(_is_alike(other, bare) for other in others) else None

    def _matrices(self, weight: MappedWeight) -> Tensor:
        chains, bare = self._chains(weight), self._bare[weight.full]
        if not self._shared[weight.full] and bare is None:
            return torch.stack([getattr(model.get_submodule(weight.path), weight.name) for model in self.models])
        map = chains[0][0]
        raw = [list(chain.parameters(recurse=False)) for chain in chains]
        if bare is not None:
            for chain, parameters in zip(chains, raw, strict=True):
                parameters[2] = chain[0].singular_values(*chain[0].full(*parameters))
            map = bare
        return map(*(torch.stack(each) for each in zip(*raw, strict=True)))


def _tensors(model: nn.Module) -> list[tuple[str, Tensor]]:
    return [*model.named_parameters(), *model.named_buffers()]


def _check(models: Sequence[SequenceModel]) -> None:
    if not models:
        raise ValueError("models must be at least one model, got none")
    first = models[0]
    for place, model in enumerate(models):
        if not isinstance(model, SequenceModel):
            raise ValueError(f"models must be SequenceModels, got {type(model).__name__} at place {place}")
        if getattr(model.layer, "bidirectional", False):
            raise ValueError(f"models must have layers that run one way, got a bidirectional one at place {place}")
        shapes = [[(name, tuple(t.shape)) for name, t in _tensors(each)] for each in (first, model)]
        if shapes[0] != shapes[1] or not _is_alike(model, first, maps=False):
            raise ValueError(f"models must be equal except for their parameters, got another kind at place {place}")


def _is_alike(one: Any, other: Any, maps: bool = True) -> bool:
    """True if two modules, maps or cells have the same type, settings and buffers; `maps=False` leaves out maps."""
    if type(one) is not type(other) and repr(type(one)) != repr(type(other)):
        return False
    if isinstance(one, nn.Module):
        pairs = zip(one.named_children(), other.named_children(), strict=False)
        if not all((isinstance(a, Map) and not maps) or _is_alike(a, b, maps) for (_, a), (_, b) in pairs):
            return False
        if maps and not all(torch.equal(a, b) for a, b in zip(one.buffers(), other.buffers(), strict=True)):
            return False
    return _settings(one) == _settings(other)


def _settings(part: Any) -> dict[str, Any]:
    """The plain public attributes of a module, map or cell; those of the objects in it as dictionaries."""
    settings = {}
    for name, value in vars(part).items():
        if name.startswith("_") or isinstance(value, nn.Module | Tensor) or name in TRANSIENT:
            continue
        if name == "init" and type(part) in MAPS.values():  # only says where a map's parameters started
            continue
        plain = isinstance(value, str | int | float | bool | tuple | torch.dtype | FunctionType | None)
        settings[name] = value if plain or not hasattr(value, "__dict__") else (type(value).__name__, _settings(value))
    return settings
