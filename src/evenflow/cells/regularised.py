"""`Regularised`: a cell with recurrent dropout, zoneout, layer normalisation or weight dropout inside its step."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import dropout, layer_norm

from evenflow.cells.cell import Cell, Matrix, Weights
from evenflow.checks import number

EPS = 1e-5  # added to the variance, as in `torch.nn.LayerNorm`


class Regularised(Cell):
    """The step of a cell, with noise in training and with normalised pre-activations.

    Recurrent dropout: the recurrent matrices read ``m h / (1 - p)``, with one mask m for all steps of a sequence.
    Zoneout: a unit of a new state keeps its value before the step with probability p; in evaluation the new state is
    the expectation, ``p s_{t-1} + (1 - p) s_t``. Layer normalisation: ``g (z - mean(z)) / std(z) + b`` in the place of
    each pre-activation z, over the units of one gate. Weight dropout: each number of the recurrent matrices is zero
    with probability p in one forward pass, the others are divided by 1 - p.

    Shapes:
        a ``(T, B, blocks * H)``, in evaluation; in training with masks of ones and zeros beside: of recurrent dropout,
        as wide as the first state, then of zoneout, as wide as each state that has it.

    Args:
        core: the cell.
        recurrent_dropout, weight_dropout: probabilities, at least 0 and below 1.
        zoneout: a probability for all states, or one for each of them in their order.
        layer_norm: whether there is layer normalisation.

    Weights:
        those of the cell; with layer normalisation also norm, the numbers g, one at the start.

    Note on the sources: Krueger et al. apply zoneout to the memory of an LSTM after its output is computed, and so does
    this. Ba et al. normalise W x and U h of gated cells apart; here their sum is normalised, since the normalised
    product with a single input is ±1 whatever the input is.

    >>> layer = GRU(2, 128, zoneout=0.1)  # a layer with such an option makes its cell so
    >>> type(layer.cell).__name__
    'Regularised'

    References: Gal and Ghahramani 2016; Krueger et al. 2017; Ba et al. 2016; Merity et al. 2018.
    """

    def __init__(
        self,
        core: Cell,
        recurrent_dropout: float = 0.0,
        zoneout: float | Sequence[float] = 0.0,
        layer_norm: bool = False,
        weight_dropout: float = 0.0,
    ) -> None:
        several: tuple[Any, ...] = (
            tuple(zoneout) if isinstance(zoneout, list | tuple) else (zoneout,) * len(core.states)
        )
        if len(several) != len(core.states):
            raise ValueError(
                f"zoneout must be one probability, or {len(core.states)} for the states {', '.join(core.states)} of "
                f"{core.name}, got {zoneout!r}"
            )
        for p in several:
            number("zoneout", p, least=0, below=1)
        if recurrent_dropout and not takes(core, "read"):
            raise ValueError(
                f"recurrent_dropout must be 0 with {core.name}, whose step does not say what its matrices read, "
                f"got {recurrent_dropout}"
            )
        if layer_norm and not takes(core, "normal"):
            raise ValueError(
                f"layer_norm must be False with {core.name}, whose step does not say what its pre-activations are; "
                "call torch.nn.functional.layer_norm in a step of your own"
            )
        if layer_norm and getattr(core, "gain", 1) != 1:
            raise ValueError(f"gain must be 1 with layer_norm, which divides by it again, got {core.gain}")  # type: ignore[attr-defined]
        self.wrapped = core
        self.recurrent_dropout, self.weight_dropout = float(recurrent_dropout), float(weight_dropout)
        self.zoneout, self.layer_norm = tuple(map(float, several)), bool(layer_norm)
        self.blocks, self.states, self.recurrent = core.blocks, core.states, core.recurrent
        self.dropped = core.fed_back
        self.takes_complex, self.equation = core.takes_complex, core.equation
        # The columns behind a are masks for the other regularisers.
        self.timed = core.timed and self.options().keys() <= {"weight_dropout"}
        self.parameters = (*core.parameters, "norm", "shift") if layer_norm else core.parameters
        if self.options() and type(core).project is not Cell.project:
            options = " and ".join(self.options())
            raise ValueError(f"{options} must be left out with {core.name}, which has a `project` of its own")

    @property
    def core(self) -> Cell:
        return self.wrapped

    @property
    def name(self) -> str:
        return f"{self.core.name} with {' and '.join(self.options())}"

    def options(self) -> dict[str, object]:
        """The regularisers that are on, as arguments of a layer."""
        zoneout = self.zoneout[0] if len(set(self.zoneout)) == 1 else self.zoneout
        listed = {"recurrent_dropout": self.recurrent_dropout, "zoneout": zoneout}
        listed |= {"layer_norm": self.layer_norm, "weight_dropout": self.weight_dropout}
        return {name: value for name, value in listed.items() if value}

    def settings(self) -> dict[str, object]:
        return self.core.settings() | self.options()

    def state_sizes(self, hidden_size: int) -> tuple[int, ...]:
        return self.core.state_sizes(hidden_size)

    def matrices(self, hidden_size: int) -> tuple[Matrix, ...]:
        return self.core.matrices(hidden_size)

    def start(
        self, input_size: int, hidden_size: int, bias: bool, generator: torch.Generator | None
    ) -> dict[str, Tensor]:
        weights = self.core.start(input_size, hidden_size, bias, generator)
        return weights | ({"norm": torch.ones(self.core.normalised(hidden_size))} if self.layer_norm else {})

    def prepare(self, weights: Weights) -> Weights:
        """With layer normalisation the bias comes after it, and so does not go into the pre-activations."""
        ready = self.core.prepare(weights)
        if not self.layer_norm or "bias" not in ready:
            return ready
        return {name: w for name, w in ready.items() if name != "bias"} | {"shift": ready["bias"]}

    @property
    def draws(self) -> bool:
        """Whether a pass in training differs from one in evaluation."""
        return bool(self.recurrent_dropout or any(self.zoneout) or self.weight_dropout)

    def drop_weights(self, weights: Weights) -> Weights:
        """The weights of one layer and direction for one pass in training."""
        p = self.weight_dropout
        return {name: dropout(w, p) if p and name in self.dropped else w for name, w in weights.items()}

    def masks(self, steps: Sequence[int], hidden_size: int, like: Tensor) -> Tensor | None:
        """The masks beside a for one pass in training over ``(T, B)`` steps; None if there are none."""
        sizes, masks = self.state_sizes(hidden_size), []
        if self.recurrent_dropout:
            kept = self._mask(1 - self.recurrent_dropout, (steps[1], sizes[0]), like)
            masks.append(kept.expand(*steps, sizes[0]))
        masks += [self._mask(p, (*steps, size), like) for p, size in zip(self.zoneout, sizes, strict=True) if p]
        return torch.cat(masks, -1) if len(masks) > 1 else masks[0] if masks else None

    def _mask(self, p: float, shape: Sequence[int], like: Tensor) -> Tensor:
        """Ones with probability p, and zeros; both numbers of a complex unit are alike."""
        *lead, size = shape
        parts = 2 if self.takes_complex else 1
        ones = (torch.rand(*lead, size // parts, dtype=like.dtype, device=like.device) < p).to(like.dtype)
        return ones if parts == 1 else torch.cat([ones] * parts, -1)

    def step(self, a: Tensor, *arguments: Any, **regularisers: Any) -> tuple[Tensor, ...]:
        before, rest = arguments[: len(self.states)], list(arguments[len(self.states) :])
        width = self.blocks * before[-1].shape[-1]
        training = a.shape[-1] > width
        if self.timed:
            alone = self.core.step(a, *arguments)
            return alone if isinstance(alone, tuple) else (alone,)
        a, beside = a.tensor_split([width], -1) if training else (a, a)
        options: dict[str, Any] = {}
        if self.layer_norm:
            norm, shift = rest[-2:]
            rest = rest[:-2]
            options["normal"] = _Normal(norm, shift)
        if training and self.recurrent_dropout:
            mask, beside = beside.tensor_split([before[0].shape[-1]], -1)
            kept = mask * (1 / (1 - self.recurrent_dropout))
            options["read"] = lambda h: h * kept
        new = self.core.step(a, *before, *rest, **options)
        states = []
        for p, old, state in zip(self.zoneout, before, new if isinstance(new, tuple) else (new,), strict=True):
            if p and training:
                keeps, beside = beside.tensor_split([old.shape[-1]], -1)
                # Not `torch.where`: the C loops with its marks of one byte and sums in double are not vectorised.
                state = keeps * old + (1 - keeps) * state
            elif p:
                state = p * old + (1 - p) * state
            states.append(state)
        return tuple(states)


class _Normal:
    """The layer normalisations of one step, in the order in which the step calls for them."""

    def __init__(self, norm: Tensor, shift: Tensor | None) -> None:
        self.norm, self.shift, self.at = norm, shift, 0

    def __call__(self, z: Tensor, blocks: int = 1) -> Tensor:
        """Normalise each of several blocks of units side by side."""
        here = slice(self.at, self.at + z.shape[-1])
        self.at = here.stop
        pieces = [layer_norm(piece, piece.shape[-1:], eps=EPS) for piece in z.chunk(blocks, -1)]
        scaled = torch.cat(pieces, -1) * self.norm[here]
        biased = self.shift is not None and here.start < self.shift.shape[-1]
        return scaled + self.shift[here] if biased and self.shift is not None else scaled


def regularised(
    cell: Cell,
    recurrent_dropout: float = 0.0,
    zoneout: float | Sequence[float] = 0.0,
    layer_norm: bool = False,
    weight_dropout: float = 0.0,
) -> Cell:
    """The cell with these regularisers, or the cell itself if all are off; see `Regularised`.

    >>> cell = cells.regularised(cells.GRUStep(), zoneout=0.1)
    >>> type(cell).__name__, type(cell.core).__name__
    ('Regularised', 'GRUStep')
    """
    number("recurrent_dropout", recurrent_dropout, least=0, below=1)
    number("weight_dropout", weight_dropout, least=0, below=1)
    if layer_norm not in (True, False):
        raise ValueError(f"layer_norm must be True or False, got {layer_norm!r}")
    wrapped = Regularised(cell, recurrent_dropout, zoneout, layer_norm, weight_dropout)
    return wrapped if wrapped.options() else cell


def takes(cell: Cell, keyword: str) -> bool:
    """Whether the step of a cell calls a function under this name."""
    return keyword in inspect.signature(type(cell).step).parameters
