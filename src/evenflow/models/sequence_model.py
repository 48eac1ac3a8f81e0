"""From a sequence to an answer: embedding or raw input, recurrent layer, readout."""

from __future__ import annotations

import itertools
import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

from evenflow.checks import one_of, whole_number
from evenflow.layers.last_state import last_state
from evenflow.layers.sequences import unpacked

READOUTS = ("last", "every")


class SequenceModel(nn.Module):
    """``y = W_o h + b_o`` after a recurrent layer, at the last step or at every step.

    With hidden units in the readout ``y = W_o max(0, W_r h + b_r) + b_o``: then even a layer without activation, whose
    last state is a linear mixture of all that it has read, may be enough to tell classes apart.

    Shapes:
        inputs ``(T, B, I)``, or whole numbers ``(T, B)`` with a vocabulary; outputs ``(B, O)`` with readout ``"last"``
        and ``(T, B, O)`` with ``"every"``.

    Args:
        layer: any layer of evenflow, or torch's RNN, GRU or LSTM, time first.
        output_size: O.
        readout: ``"last"`` or ``"every"``.
        vocabulary: how many symbols there are; adds an embedding as wide as the layer's input.
        embedding_range: the embedding starts uniform between minus this and this, N(0, 1) without. Words are better
            off with a small one, 0.1 for instance: each has hundreds of numbers, of which rare ones hardly ever move.
        input_dropout, output_dropout: share of the layer's inputs (of the embedding, if there is one) and of the states
            that the readout sees which training sets to zero; at least 0 and below 1.
        score_dropout: the same of the outputs themselves, as one document has it (uRNN, 3).
        readout_units: hidden units between the states and the outputs; None for none.

    Starting value: readout Glorot uniform with biases zero, embedding N(0, 1) or as `embedding_range` says.

    >>> model = SequenceModel(RNN(2, 128, map="exponential", activation="abs"), 1)
    >>> outputs, state = model(torch.randn(784, 50, 2))
    >>> outputs.shape
    torch.Size([50, 1])

    Reference, for hidden units in the readout: Pascanu et al. 2014, deep output.
    """

    def __init__(
        self,
        layer: nn.Module,
        output_size: int,
        *,
        readout: str = "last",
        vocabulary: int | None = None,
        embedding_range: float | None = None,
        input_dropout: float = 0.0,
        output_dropout: float = 0.0,
        score_dropout: float = 0.0,
        readout_units: int | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        one_of("readout", readout, READOUTS)
        self.drop_input = _dropout("input_dropout", input_dropout)
        self.drop_output = _dropout("output_dropout", output_dropout)
        self.drop_scores = _dropout("score_dropout", score_dropout)
        whole_number("output_size", output_size, 1)
        if readout_units is not None:
            whole_number("readout_units", readout_units, 1)
        if vocabulary is not None:
            whole_number("vocabulary", vocabulary, 1)
        elif embedding_range is not None:
            raise ValueError(f"embedding_range must be left out without a vocabulary, got {embedding_range!r}")
        if getattr(layer, "batch_first", False):
            raise ValueError("layer must be time first (batch_first=False) inside a SequenceModel")
        self.readout = readout
        # torch's LSTM may give out fewer numbers than it has units.
        units = getattr(layer, "proj_size", 0) or _size(layer, "hidden_size")
        like = next(itertools.chain(layer.parameters(), layer.buffers()))  # a reservoir has buffers alone
        self.embedding = None
        with torch.device("cpu"):  # where starting values are drawn, whatever the default device
            if vocabulary is not None:
                start = torch.randn(vocabulary, _size(layer, "input_size"), generator=generator)
                if embedding_range is not None:
                    nn.init.uniform_(start, *_around_zero(embedding_range), generator=generator)
                self.embedding = nn.Embedding.from_pretrained(start, freeze=False).to(like)
            self.layer = layer  # after the embedding: optimisers know parameters by their order
            width = units * (2 if getattr(layer, "bidirectional", False) else 1)
            self.hidden = None if readout_units is None else _linear(width, readout_units, generator).to(like)
            self.output = _linear(readout_units or width, output_size, generator).to(like)
        # Whether what comes later changes nothing before it; of a layer that does not say so it is not assumed.
        self.one_way = getattr(layer, "bidirectional", None) is False

    def forward(
        self, inputs: Tensor, state: Any = None, lengths: Tensor | None = None, padded: bool = False
    ) -> tuple[Tensor, Any]:
        """Outputs and the layer's final state.

        Args:
            state: where the layer begins, as it gave it back; None for its own.
            lengths: the steps of each sequence ``(B)`` where they differ; outputs beyond the end are those of a zero
                state.
            padded: with lengths, run every sequence to the end of the batch, where the layer runs one way. Then nothing
                looks at the lengths, and a GPU need not wait; but outputs beyond the end and the final state are those
                of the padding, and states that grow without end may become infinite there, and the gradient a NaN.
        """
        if lengths is not None:
            lengths = _one_each(lengths, inputs.shape[1])
        x = inputs
        if self.embedding is not None:
            if inputs.is_floating_point():
                raise ValueError(f"inputs must be whole numbers for a model with a vocabulary, got {inputs.dtype}")
            x = self.embedding(inputs)
        x = self.drop_input(x)
        if lengths is not None and not (padded and self.one_way):
            steps = lengths.cpu()
            if len(steps) and not 1 <= int(steps.min()) <= int(steps.max()) <= len(inputs):
                raise ValueError(f"lengths must be from 1 to {len(inputs)}, the steps there are, got {steps.tolist()}")
            h, state = self.layer(pack_padded_sequence(x, steps, enforce_sorted=False), state)
            assert isinstance(h, PackedSequence)
            h = unpacked(h, len(inputs))
        elif lengths is None and self.readout == "last" and (end := last_state(self.layer, x, state)) is not None:
            return self.read(end[0]), end
        else:
            h, state = self.layer(x, state)
        seen = h if self.readout == "every" else self._last(h, lengths)
        return self.read(seen), state

    def read(self, seen: Tensor) -> Tensor:
        """The readout of states, which may be stored in half precision."""
        if getattr(self.layer, "storage", None) is not None:
            seen = seen.to(next(self.layer.parameters()).dtype)
        return self.drop_scores(self.answer(self.drop_output(seen)))

    def answer(self, seen: Tensor) -> Tensor:
        """The readout without its dropout."""
        return self.output(seen if self.hidden is None else torch.relu(self.hidden(seen)))

    def _last(self, h: Tensor, lengths: Tensor | None) -> Tensor:
        if lengths is None:
            return h[-1]
        ends = (lengths.to(h.device) - 1).view(1, -1, 1)
        return h.gather(0, ends.expand(1, -1, h.shape[-1]))[0]

    def parameter_counts(self) -> dict[str, int]:
        """Trained numbers by part: embedding, layer, hidden units of the readout, output, and their total."""
        parts = {"embedding": self.embedding, "layer": self.layer, "hidden": self.hidden, "output": self.output}
        counts = {
            name: sum(p.numel() for p in part.parameters() if p.requires_grad)
            for name, part in parts.items()
            if part is not None
        }
        return counts | {"total": sum(counts.values())}


def _one_each(lengths: Tensor, batch: int) -> Tensor:
    """The lengths, one whole number for each sequence; what they are is not looked at."""
    if not isinstance(lengths, Tensor) or lengths.dtype not in (torch.int64, torch.int32):
        got = lengths.dtype if isinstance(lengths, Tensor) else type(lengths).__name__
        raise ValueError(f"lengths must be a tensor of whole numbers, got {got}")
    if lengths.shape != (batch,):
        raise ValueError(f"lengths must have shape ({batch},), one for each sequence, got {tuple(lengths.shape)}")
    return lengths.long()


def _linear(inputs: int, outputs: int, generator: torch.Generator | None) -> nn.Linear:
    made = nn.Linear(inputs, outputs)
    nn.init.xavier_uniform_(made.weight, generator=generator)
    nn.init.zeros_(made.bias)
    return made


def _dropout(name: str, share: float) -> nn.Dropout:
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share < 1:
        raise ValueError(f"{name} must be at least 0 and below 1, got {share!r}")
    return nn.Dropout(share)


def _around_zero(reach: float) -> tuple[float, float]:
    if isinstance(reach, bool) or not isinstance(reach, int | float) or not 0 < reach < math.inf:
        raise ValueError(f"embedding_range must be a number above 0, got {reach!r}")
    return -reach, reach


def _size(layer: nn.Module, name: str) -> int:
    value = getattr(layer, name, None)
    if not isinstance(value, int):
        raise ValueError(f"layer must be a recurrent layer with an {name}, got {type(layer).__name__}")
    return value
