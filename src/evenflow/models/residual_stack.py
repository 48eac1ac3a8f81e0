"""Residual blocks around recurrent layers: what `SequenceModel` runs with ``block="residual"``."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterable, Iterator
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.fx import Proxy
from torch.nn.utils.rnn import PackedSequence

from evenflow.checks import number, whole_number
from evenflow.layers.recurrent import Recurrent
from evenflow.runtime.rewritten import traced_call

Sequences = Tensor | PackedSequence
State = Tensor | tuple[Tensor, ...]


class ResidualStack(nn.Module):
    """``x_0 = E x + e``, ``x_k = x_{k-1} + dropout((A y + a) ⊙ σ(C y + c))`` with ``y = layer_k(norm(x_{k-1}))``.

    E is left out if `input_size` is None. It is called like its layers, and its states are theirs, one block after the
    other.

    Shapes:
        input ``(T, B, I)``, ``(T, I)`` or a `PackedSequence`; output as the input, as wide as the layers' input; states
        ``(num_layers * members, B, H)`` with the members that one layer has.

    Args:
        layer: the layer of the first block; the others have copies of it with new weights.
        num_layers: the number of blocks.
        input_size: I, if E maps the input to the width of the blocks.
        dropout: probability of dropout of what a block adds.
        generator: where initial values are drawn from, instead of torch's global generator.

    Starting value: E, A and C Glorot uniform, biases zero; the scale of a norm is one, its shift zero.

    References: Dauphin et al. 2017, gated linear units; Smith et al. 2023 (S5), Orvieto et al. 2023 (LRU), the block.
    """

    storage = None  # the output is in the precision of the weights
    batch_first = False

    def __init__(
        self,
        layer: nn.Module,
        num_layers: int = 1,
        input_size: int | None = None,
        dropout: float = 0.0,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        whole_number("num_layers", num_layers, 1)
        number("dropout", dropout, least=0, below=1)
        inside = getattr(layer, "num_layers", 1)
        if inside > 1 and getattr(layer, "layers_run_in_turn", True):
            raise ValueError(
                f"layer must have num_layers=1 inside residual blocks, got {inside}: "
                f"give num_layers={inside} to the SequenceModel"
            )
        width: int = layer.input_size  # type: ignore[assignment]
        self.width = width  # of the output
        self.input_size = width if input_size is None else input_size
        self.hidden_size, self.num_layers = layer.hidden_size, num_layers
        self.bidirectional = getattr(layer, "bidirectional", None)
        self.checkpoint_every = getattr(layer, "checkpoint_every", None)
        self.members = inside * (2 if self.bidirectional else 1)  # of the states of one layer
        like = next(itertools.chain(layer.parameters(), layer.buffers()))  # a reservoir has buffers only
        with torch.device("cpu"):  # initial values are drawn on the CPU, whatever the default device
            self.encoder = None
            if input_size is not None:
                whole_number("input_size", input_size, 1)
                self.encoder = glorot_linear(input_size, width, generator).to(like)
            self.blocks = nn.ModuleList()
            for block in range(num_layers):
                each = layer if block == 0 else copy.deepcopy(layer)
                if block:
                    draw_layer(each, generator)
                self.blocks.append(ResidualBlock(each, width, dropout, like, generator))

    def forward(
        self,
        input: Sequences,
        hx: State | None = None,
        resets: Sequences | None = None,
        dt: Sequences | None = None,
    ) -> tuple[Sequences, State]:
        """Run all blocks, see `Recurrent.forward`."""
        if isinstance(input, Proxy):
            return traced_call(self, input, hx, resets, *(() if dt is None else (dt,)))
        packed = input if isinstance(input, PackedSequence) else None
        x = self._encoded(input.data if isinstance(input, PackedSequence) else input)
        options = {name: value for name, value in (("resets", resets), ("dt", dt)) if value is not None}
        finals = []
        for block, state in self._each(hx):
            u = block.norm(x)
            y, final = block.layer(u if packed is None else packed._replace(data=u), state, **options)
            finals.append(final)
            x = block.add(x, y if packed is None else y.data)
        return x if packed is None else packed._replace(data=x), _joined(finals)

    def step(self, input: Tensor, hx: State | None = None) -> tuple[Tensor, State]:
        """Take one time step, see `Recurrent.step`."""
        x, finals = self._encoded(input), []
        for block, state in self._each(hx):
            y, final = step_layer(block.layer, block.norm(x), state)
            finals.append(final)
            x = block.add(x, y)
        return x, _joined(finals)

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw all weights anew, as a new stack over a new layer does."""
        encoder = self.encoder
        for block, _ in self._each(None):
            draw_layer(block.layer, generator)
            if encoder is not None:
                draw_linear(encoder, generator)
                encoder = None
            block.norm.reset_parameters()
            draw_linear(block.gated, generator)

    @property
    def layers(self) -> list[nn.Module]:
        """The layer of each block."""
        return [block.layer for block, _ in self._each(None)]

    def _encoded(self, x: Tensor) -> Tensor:
        if not isinstance(x, Tensor) or x.dim() < 1 or x.shape[-1] != self.input_size:
            got = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
            raise ValueError(f"input must have {self.input_size} numbers at each step, got {got}")
        return x if self.encoder is None else self.encoder(x)

    def _each(self, hx: State | None) -> Iterator[tuple[ResidualBlock, State | None]]:
        """Each block with its state."""
        states: Iterable[State | None] = [None] * len(self.blocks) if hx is None else self._states(hx)
        return zip(cast("Iterable[ResidualBlock]", self.blocks), states, strict=True)

    def _states(self, hx: State) -> Iterable[State]:
        parts = [hx] if isinstance(hx, Tensor) else list(hx)
        total = len(self.blocks) * self.members
        for part in parts:
            if not isinstance(part, Tensor) or part.dim() < 2 or len(part) != total:
                got = tuple(part.shape) if isinstance(part, Tensor) else type(part).__name__
                raise ValueError(f"state must have {total} as first dimension, {self.members} a block, got {got}")
        pieces = [part.split(self.members) for part in parts]
        return pieces[0] if isinstance(hx, Tensor) else zip(*pieces, strict=True)

    def extra_repr(self) -> str:
        return f"{self.input_size}, {self.width}, num_layers={self.num_layers}"


class ResidualBlock(nn.Module):
    """One block of a `ResidualStack`.

    Args:
        layer: its layer, which reads `width` numbers a step.
        width: the numbers that the block reads and returns.
        dropout: probability of dropout of what the block adds.
        like: a tensor with the dtype and the device of the new weights.
        generator: where initial values are drawn from.
    """

    def __init__(
        self, layer: nn.Module, width: int, dropout: float, like: Tensor, generator: torch.Generator | None
    ) -> None:
        super().__init__()
        self.norm, self.layer = nn.LayerNorm(width).to(like), layer
        self.gated = glorot_linear(output_width(layer), 2 * width, generator).to(like)
        self.dropout = nn.Dropout(dropout)

    def add(self, x: Tensor, y: Tensor) -> Tensor:
        """x and the gated output y of the layer, which may be stored in half precision."""
        y = y if torch.is_autocast_enabled(y.device.type) else y.to(self.gated.weight.dtype)
        return x + self.dropout(nn.functional.glu(self.gated(y), -1))


def output_width(layer: nn.Module) -> int:
    """The numbers that a layer returns at each step."""
    if isinstance(layer, ResidualStack):
        return layer.width
    # The output of an LSTM with proj_size is narrower than hidden_size.
    units = getattr(layer, "proj_size", 0) or size_of(layer, "hidden_size")
    return units * (2 if getattr(layer, "bidirectional", False) else 1)


def size_of(layer: nn.Module, name: str) -> int:
    """The size of a layer that its attribute `name` holds."""
    value = getattr(layer, name, None)
    if not isinstance(value, int):
        raise ValueError(f"layer must be a recurrent layer with an {name}, got {type(layer).__name__}")
    return value


def step_layer(layer: nn.Module, x: Tensor, state: Any) -> tuple[Tensor, Any]:
    """The output and the state of a layer after one step."""
    if isinstance(layer, Recurrent | ResidualStack):
        return layer.step(x, state)
    h, state = layer(x.unsqueeze(0), state)  # a layer of torch
    return h.squeeze(0), state


def draw_layer(layer: nn.Module, generator: torch.Generator | None) -> None:
    """Draw the weights of a layer anew; layers of torch always draw from torch's global generator."""
    if isinstance(layer, nn.RNNBase):
        layer.reset_parameters()
    else:
        layer.reset_parameters(generator)  # type: ignore[operator]


def glorot_linear(inputs: int, outputs: int, generator: torch.Generator | None) -> nn.Linear:
    """A linear module, its weights Glorot uniform, its biases zero."""
    linear = nn.Linear(inputs, outputs)
    nn.init.xavier_uniform_(linear.weight, generator=generator)
    nn.init.zeros_(linear.bias)
    return linear


def draw_linear(linear: nn.Linear, generator: torch.Generator | None) -> None:
    """Draw the weights of a linear module anew, as `glorot_linear` does."""
    with torch.device("cpu"):
        linear.load_state_dict(glorot_linear(linear.in_features, linear.out_features, generator).state_dict())


def _joined(states: list[State]) -> State:
    """The states of all blocks as those of one layer."""
    if isinstance(states[0], Tensor):
        return torch.cat(states)  # type: ignore[arg-type]
    return tuple(torch.cat(members) for members in zip(*states, strict=True))
