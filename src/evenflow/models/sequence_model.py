"""A recurrent layer with a readout, and with an embedding for sequences of symbols."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Proxy
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

from evenflow.checks import number, one_of, whole_number
from evenflow.layers.last_state import last_state
from evenflow.layers.recurrent import Recurrent
from evenflow.layers.sequences import unpacked
from evenflow.models.rebuild import layer_from_json, layer_to_json
from evenflow.runtime.constructor_call import Described

READOUTS = ("last", "every")


class SequenceModel(Described, nn.Module):
    """``y = W_o h + b_o`` after a recurrent layer, at the last step or at every step.

    With hidden units in the readout ``y = W_o max(0, W_r h + b_r) + b_o``: then even a layer without activation, whose
    last state is a linear function of the sequence, can be enough to separate classes.

    Shapes:
        inputs ``(T, B, I)``, or whole numbers ``(T, B)`` with a vocabulary; outputs ``(B, O)`` with readout ``"last"``
        and ``(T, B, O)`` with ``"every"``.

    Args:
        layer: any layer of evenflow, or torch's RNN, GRU or LSTM, with batch_first=False; or the description of one
            in a config.json of Hugging Face's `PyTorchModelHubMixin`, which a subclass may also inherit from.
        output_size: O.
        readout: ``"last"``, an output after the last step, or ``"every"``, an output at every step.
        vocabulary: the number of symbols; adds an embedding as wide as the layer's input. None: no embedding.
        embedding_range: the embedding is drawn from U(-embedding_range, embedding_range), by default from N(0, 1). A
            small range, such as 0.1, suits words: the embeddings of rare words hardly move in training.
        input_dropout: dropout probability of the layer's input, after the embedding.
        output_dropout: dropout probability of the states that the readout reads.
        score_dropout: dropout probability of the outputs themselves (uRNN, 3).
        readout_units: the number of hidden units between the states and the outputs; None for none.
        generator: where initial values are drawn from, instead of torch's global generator.

    Starting value: readout Glorot uniform with biases zero, embedding N(0, 1) or as `embedding_range` says.

    >>> model = SequenceModel(RNN(2, 128, map="exponential", activation="abs"), 1)
    >>> outputs, state = model(torch.randn(784, 50, 2))
    >>> outputs.shape
    torch.Size([50, 1])

    Reference, for hidden units in the readout: Pascanu et al. 2014, deep output.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        if any(base.__name__ == "ModelHubMixin" for base in cls.__mro__):
            # How the mixin writes a layer into config.json; the constructor reads it.
            options["coders"] = {nn.Module: (layer_to_json, dict)} | (options.get("coders") or {})
        super().__init_subclass__(**options)

    def __init__(
        self,
        layer: nn.Module | Mapping[str, Any],
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
        if isinstance(layer, Mapping):
            layer = layer_from_json(layer)
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
        self.readout, self.embedding_range = readout, embedding_range
        # The output of torch's LSTM with proj_size is narrower than hidden_size.
        units = getattr(layer, "proj_size", 0) or _size(layer, "hidden_size")
        like = next(itertools.chain(layer.parameters(), layer.buffers()))  # a reservoir has buffers only
        self.embedding = None
        with torch.device("cpu"):  # initial values are drawn on the CPU, whatever the default device
            if vocabulary is not None:
                if embedding_range is not None:
                    number("embedding_range", embedding_range, above=0)
                start = _embedding_start(vocabulary, _size(layer, "input_size"), embedding_range, generator)
                self.embedding = nn.Embedding.from_pretrained(start, freeze=False).to(like)
            self.layer = layer  # after the embedding: optimisers identify parameters by their order
            width = units * (2 if getattr(layer, "bidirectional", False) else 1)
            self.hidden = None if readout_units is None else _linear(width, readout_units, generator).to(like)
            self.output = _linear(readout_units or width, output_size, generator).to(like)
        # True if later steps cannot change earlier states; assumed only for layers with `bidirectional=False`.
        self.one_way = getattr(layer, "bidirectional", None) is False

    def forward(
        self,
        inputs: Tensor,
        state: Any = None,
        lengths: Tensor | None = None,
        padded: bool = False,
        resets: Tensor | None = None,
    ) -> tuple[Tensor, Any]:
        """Outputs and the layer's final state.

        Args:
            inputs: the batch.
            state: the initial state, as the layer returned it; None for the layer's own.
            lengths: the length of each sequence ``(B)``, if they differ; outputs beyond a sequence's end are those of
                a zero state.
            padded: with lengths, run every sequence to the end of the batch if the layer runs one way. The lengths are
                then not copied to the CPU, so a GPU does not wait; but outputs beyond the end and the final state
                depend on the padding, and states that grow on it may become infinite and the gradient NaN.
            resets: ``(T, B)``, True where the state restarts before the step, see `Recurrent.forward`; for layers of
                evenflow.
        """
        if isinstance(resets, Proxy) and not isinstance(self.layer, Recurrent):
            resets = None  # torch.fx traces with all arguments, and torch's layers take no resets
        restarts: dict[str, Any] = {} if resets is None else {"resets": resets}
        if lengths is not None:
            lengths = _one_each(lengths, inputs.shape[1])
        x = self._embedded(inputs)
        if lengths is not None and not (padded and self.one_way):
            steps = lengths.cpu()
            if len(steps) and not 1 <= int(steps.min()) <= int(steps.max()) <= len(inputs):
                raise ValueError(f"lengths must be from 1 to {len(inputs)}, the steps there are, got {steps.tolist()}")
            if resets is not None and (not isinstance(resets, Tensor) or resets.shape != inputs.shape[:2]):
                got = tuple(resets.shape) if isinstance(resets, Tensor) else type(resets).__name__
                raise ValueError(f"resets must have shape {tuple(inputs.shape[:2])} for this input, got {got}")
            packed = {name: pack_padded_sequence(mask, steps, enforce_sorted=False) for name, mask in restarts.items()}
            h, state = self.layer(pack_padded_sequence(x, steps, enforce_sorted=False), state, **packed)
            assert isinstance(h, PackedSequence)
            h = unpacked(h, len(inputs))
        elif (
            lengths is resets is None
            and self.readout == "last"
            and (end := last_state(self.layer, x, state)) is not None
        ):
            return self.read(end[0]), end
        else:
            h, state = self.layer(x, state, **restarts)
        return self.read(h if self.readout == "every" else self._last(h, lengths)), state

    def step(self, inputs: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        """Outputs ``(B, O)`` and the layer's state after one time step, see `Recurrent.step`.

        Args:
            inputs: ``(B, I)``, or whole numbers ``(B)`` with a vocabulary.
            state: the state before, as this method or a call of the model returned it. Default: the layer's own.
        """
        x = self._embedded(inputs)
        if isinstance(self.layer, Recurrent):
            h, state = self.layer.step(x, state)
        else:  # a layer of torch
            h, state = self.layer(x.unsqueeze(0), state)
            h = h.squeeze(0)
        return self.read(h), state

    def _embedded(self, inputs: Tensor) -> Tensor:
        """The layer's input."""
        if self.embedding is None:
            return self.drop_input(inputs)
        if isinstance(inputs, Tensor) and inputs.is_floating_point():
            raise ValueError(f"inputs must be whole numbers for a model with a vocabulary, got {inputs.dtype}")
        return self.drop_input(self.embedding(inputs))

    def read(self, h: Tensor) -> Tensor:
        """The readout of states, which may be stored in half precision."""
        if getattr(self.layer, "storage", None) is not None:
            h = h.to(next(self.layer.parameters()).dtype)
        return self.drop_scores(self.answer(self.drop_output(h)))

    def answer(self, h: Tensor) -> Tensor:
        """The readout without its dropout."""
        return self.output(h if self.hidden is None else torch.relu(self.hidden(h)))

    def _last(self, h: Tensor, lengths: Tensor | None) -> Tensor:
        if lengths is None:
            return h[-1]
        ends = (lengths.to(h.device) - 1).view(1, -1, 1)
        return h.gather(0, ends.expand(1, -1, h.shape[-1]))[0]

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw all weights anew, as a new model over a new layer does; the parameters stay the same objects.

        Args:
            generator: source of the initial values. Default: torch's global generator, which layers of torch always
                draw from.
        """
        if isinstance(self.layer, nn.RNNBase):
            self.layer.reset_parameters()
        else:
            self.layer.reset_parameters(generator)  # type: ignore[operator]
        with torch.no_grad(), torch.device("cpu"):
            if self.embedding is not None:
                sizes = self.embedding.num_embeddings, self.embedding.embedding_dim
                self.embedding.weight.copy_(_embedding_start(*sizes, self.embedding_range, generator))
            for linear in (self.hidden, self.output):
                if linear is not None:
                    fresh = _linear(linear.in_features, linear.out_features, generator)
                    linear.load_state_dict(fresh.state_dict())

    def parameter_counts(self) -> dict[str, int]:
        """The number of trained parameters of embedding, layer, hidden readout units and output, and their total."""
        parts = {"embedding": self.embedding, "layer": self.layer, "hidden": self.hidden, "output": self.output}
        counts = {
            name: sum(p.numel() for p in part.parameters() if p.requires_grad)
            for name, part in parts.items()
            if part is not None
        }
        return counts | {"total": sum(counts.values())}


def _one_each(lengths: Tensor, batch: int) -> Tensor:
    """The lengths as int64; checks their type and shape, not their values, which would make a GPU wait."""
    if isinstance(lengths, Proxy):
        raise ValueError(
            'lengths must be left out where torch.fx records the model: symbolic_trace(model, {"lengths": None})'
        )
    if not isinstance(lengths, Tensor) or lengths.dtype not in (torch.int64, torch.int32):
        got = lengths.dtype if isinstance(lengths, Tensor) else type(lengths).__name__
        raise ValueError(f"lengths must be a tensor of whole numbers, got {got}")
    if lengths.shape != (batch,):
        raise ValueError(f"lengths must have shape ({batch},), one for each sequence, got {tuple(lengths.shape)}")
    return lengths.long()


def _embedding_start(rows: int, width: int, reach: float | None, generator: torch.Generator | None) -> Tensor:
    start = torch.randn(rows, width, generator=generator)
    return start if reach is None else nn.init.uniform_(start, -reach, reach, generator=generator)


def _linear(inputs: int, outputs: int, generator: torch.Generator | None) -> nn.Linear:
    linear = nn.Linear(inputs, outputs)
    nn.init.xavier_uniform_(linear.weight, generator=generator)
    nn.init.zeros_(linear.bias)
    return linear


def _dropout(name: str, p: float) -> nn.Dropout:
    number(name, p, least=0, below=1)
    return nn.Dropout(p)


def _size(layer: nn.Module, name: str) -> int:
    value = getattr(layer, name, None)
    if not isinstance(value, int):
        raise ValueError(f"layer must be a recurrent layer with an {name}, got {type(layer).__name__}")
    return value
