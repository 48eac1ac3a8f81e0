"""`GatedFeedbackRNN`: a stack of layers that is one recurrence."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from evenflow.cells import GatedFeedback, Weights
from evenflow.checks import number
from evenflow.layers.recurrent import Recurrent
from evenflow.layers.sequences import Sequences
from evenflow.runtime.shared_arguments import with_shared_arguments
from evenflow.runtime.torch_state import in_functorch
from evenflow.scan import checkpointed, project, scan


@with_shared_arguments
class GatedFeedbackRNN(Recurrent):
    """A stack of layers, each fed by the states of all layers one step before, through one gate for each pair.

    ``h^j_t = tanh(W^j h^{j-1}_t + b^j + Σ_i g^{ij}_t U^{ij} h^i_{t-1})``, ``g^{ij}_t = σ(w^{ij} h^{j-1}_t + u^{ij}
    h*_{t-1})``, or GRU or LSTM units with the same sum in their candidate; see `cells.GatedFeedback`.

    Shapes:
        as in `Recurrent`; the output is the last layer's, the states are those of all layers.

    Args:
        num_layers: how many layers. Default: 3.
        unit: ``"tanh"`` (default), ``"gru"`` or ``"lstm"``.
        forget_bias: the starting value of the bias of an LSTM's forget gate. Default: 1.
        dropout: probability of dropout from a layer to the next one and its gates, in training; never from step to
            step. Default: 0.
        bidirectional: False. Every layer reads the states of all layers one step before, so that the two directions
            would each need states of the other that do not exist yet.
        map: ``"free"`` (default), or a map on each U^{ij} as ``{"weight_hh": "cayley"}``.
        others: as in `Recurrent`.

    Starting value: each U^{ij} orthogonal, W, w and u Glorot uniform, b zero; the gates are near a half.

    >>> layer = GatedFeedbackRNN(2, 128, unit="gru")
    >>> output, h_n = layer(torch.randn(100, 50, 2))
    >>> output.shape, h_n.shape
    (torch.Size([100, 50, 128]), torch.Size([3, 50, 128]))

    References: Chung et al. 2015; Galvan, 2.1.4.
    """

    cell: GatedFeedback
    layers_run_in_turn = False

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 3,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        *,
        unit: str = "tanh",
        forget_bias: float | None = None,
        **options: Any,
    ) -> None:
        if bidirectional:
            raise ValueError(
                "bidirectional must be False with gated feedback, where every layer needs the states of all layers "
                f"one step before, got {bidirectional}"
            )
        if forget_bias is not None and unit != "lstm":
            raise ValueError(f"forget_bias is a setting of unit='lstm' alone, got {forget_bias} with {unit!r}")
        start = 1.0 if forget_bias is None else forget_bias
        number("forget_bias", start)
        cell = GatedFeedback(unit, num_layers, start)
        super().__init__(cell, input_size, hidden_size, num_layers, bias, batch_first, dropout, **options)

    def _forward(
        self,
        input: Tensor | PackedSequence,
        hx: Tensor | tuple[Tensor, ...] | None,
        resets: Tensor | PackedSequence | None = None,
        dt: Tensor | PackedSequence | None = None,  # always None: the cell is not timed
    ) -> tuple[Tensor | PackedSequence, Tensor | tuple[Tensor, ...]]:
        sequences = Sequences.read(input, self.input_size, self.batch_first)
        initial, mask = self._read_states(sequences, hx), sequences.read_resets(resets)
        weights = self.step_weights()
        x, sizes, every = sequences.padded, sequences.batch_sizes, self.checkpoint_every
        like = weights["weight_hh_gate"]
        start = (
            self._start(x.shape[1], like, weights) if initial is None else [torch.cat(tuple(s), -1) for s in initial]
        )
        restarts: dict[str, Any] = {"resets": mask, "learned": self.initial_state == "learned"}
        beside = self._beside(x.shape[:2], like)
        if every is not None and every < len(x) and not in_functorch():
            options = restarts | {"engine": self.engine, "beside": beside}
            states, *after = checkpointed(self.cell, x, tuple(start), weights, every, sizes, **options)
        else:
            a = project(self.cell, x, weights, self.engine)
            a = a if beside is None else torch.cat((a, beside), -1)
            states, *others = scan(self.cell, a, tuple(start), weights, sizes, None, self.engine, **restarts)
            after = [sequences.last(member) for member in (states, *others)]
        learned = initial is None and self.initial_state == "learned"
        if self._records:
            self._record_run(0, x, start, learned, states, sequences, mask)
        output = states[..., -self.hidden_size :]
        ends = [torch.stack(member.split(self.hidden_size, -1)) for member in after]
        final = tuple(sequences.write_state(member) for member in ends)
        return sequences.write(output), final[0] if len(final) == 1 else final

    def step_weights(self, index: int = 0) -> Weights:
        """The tensors that the cell's step reads, of all layers."""
        members = range(self.num_layers)
        return self.cell.prepare(
            {n + self.suffixes[j]: w for j in members for n, w in self.direction_weights(j).items()}
        )

    def _start(self, batch: int, like: Tensor, weights: Weights) -> list[Tensor]:
        """The first state of all layers, zero or learned."""
        letters = self.cell.states
        if self.initial_state == "zero":
            return [like.new_zeros(batch, self.num_layers * self.hidden_size) for _ in letters]
        return [weights[f"{letter}0"].expand(batch, -1) for letter in letters]

    def _beside(self, steps: tuple[int, ...], like: Tensor) -> Tensor | None:
        """Columns beside the projected input for what happens between the layers: taps, and factors of dropout."""
        columns, shape = [], (*steps, self.hidden_size)
        if self._taps is not None:
            columns += [self._new_tap(steps, like) for _ in range(self.num_layers)]
        if self.dropout and self.training:
            columns += [nn.functional.dropout(like.new_ones(shape), self.dropout) for _ in range(self.num_layers - 1)]
        return torch.cat(columns, -1) if columns else None

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, unit={self.cell.unit!r}"
