"""A recurrent layer with a readout, and with an embedding for sequences of symbols."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Proxy
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

from evenflow.checks import number, one_of, whole_number
from evenflow.layers.last_state import last_state
from evenflow.layers.recurrent import Recurrent
from evenflow.layers.sequences import unpacked
from evenflow.models.column_embeddings import ColumnEmbeddings
from evenflow.models.rebuild import layer_from_json, layer_to_json
from evenflow.models.residual_stack import (
    ResidualStack,
    draw_layer,
    draw_linear,
    glorot_linear,
    output_width,
    size_of,
    step_layer,
)
from evenflow.runtime.constructor_call import Described

READOUTS = ("last", "every")
BLOCKS = ("residual",)


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
        block: ``"residual"``: the layer is repeated in residual blocks, each ``x + dropout(GLU(layer(norm(x))))``,
            with the gated linear unit ``GLU(y) = (A y + a) ⊙ σ(C y + c)``. The width of x is the layer's input_size,
            and the readout reads the last x. Default: None, the layer alone.
        num_layers: the number of blocks: the first one holds the layer itself, the others copies with new weights.
        input_size: of a model with blocks, the numbers of an input, or the width of the embedding; a trained linear
            map takes them to the width of the blocks. Default: the layer's input_size, without that map.
        dropout: dropout probability of what a block adds.
        column_embeddings: columns of the input that hold whole numbers, positions of categories, and that trained
            vectors take the place of: triples of the column, the number of values, and the size of the vectors. The
            layer's input_size is that with the vectors. None: no such columns.
        generator: where initial values are drawn from, instead of torch's global generator.

    Starting value: readout, A, C and the map of the input Glorot uniform with biases zero, embedding N(0, 1) or as
    `embedding_range` says.

    >>> model = SequenceModel(RNN(2, 128, map="exponential", activation="abs"), 1)
    >>> outputs, state = model(torch.randn(784, 50, 2))
    >>> outputs.shape
    torch.Size([50, 1])

    >>> model = SequenceModel(create("sgornn", 128, 128), 10, block="residual", num_layers=4, input_size=1)
    >>> model(torch.randn(784, 50, 1))[0].shape
    torch.Size([50, 10])

    References: Pascanu et al. 2014, deep output, for hidden units in the readout; Dauphin et al. 2017 for gated linear
    units; Smith et al. 2023 (S5) and Orvieto et al. 2023 (LRU) for the block.
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
        block: str | None = None,
        num_layers: int = 1,
        input_size: int | None = None,
        dropout: float = 0.0,
        column_embeddings: Sequence[Sequence[int]] | None = None,
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
        if block is not None:
            one_of("block", block, BLOCKS)
        elif (num_layers, input_size, dropout) != (1, None, 0):
            sizes = {"num_layers": num_layers, "input_size": input_size, "dropout": dropout}
            raise ValueError(f"num_layers, input_size and dropout must be left out without a block, got {sizes}")
        like = next(itertools.chain(layer.parameters(), layer.buffers()))  # a reservoir has buffers only
        self.embedding = self.columns = None
        if block is not None:
            layer = ResidualStack(layer, num_layers, input_size, dropout, generator)
        width = output_width(layer)
        with torch.device("cpu"):  # initial values are drawn on the CPU, whatever the default device
            if vocabulary is not None:
                if embedding_range is not None:
                    number("embedding_range", embedding_range, above=0)
                start = _embedding_start(vocabulary, size_of(layer, "input_size"), embedding_range, generator)
                self.embedding = nn.Embedding.from_pretrained(start, freeze=False).to(like)
            if column_embeddings:
                if vocabulary is not None:
                    raise ValueError(f"column_embeddings must be left out with a vocabulary, got {column_embeddings!r}")
                self.columns = ColumnEmbeddings(column_embeddings, generator).to(like)
                size = size_of(layer, "input_size")
                if not self.columns.places[-1] < size - self.columns.added:
                    raise ValueError(
                        f"layer must have an input_size for all columns and vectors, got {size} for "
                        f"column_embeddings={column_embeddings!r}"
                    )
            self.layer = layer  # after the embedding: optimisers identify parameters by their order
            self.hidden = None if readout_units is None else glorot_linear(width, readout_units, generator).to(like)
            self.output = glorot_linear(readout_units or width, output_size, generator).to(like)
        # True if later steps cannot change earlier states; assumed only for layers with `bidirectional=False`.
        self.one_way = getattr(layer, "bidirectional", None) is False

    def forward(
        self,
        inputs: Tensor,
        state: Any = None,
        lengths: Tensor | None = None,
        padded: bool = False,
        resets: Tensor | None = None,
        dt: Tensor | None = None,
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
            dt: ``(T, B)``, the time that passes before each step, see `Recurrent.forward`; for layers of evenflow in
                continuous time.
        """
        if isinstance(resets, Proxy):  # torch.fx traces with all arguments
            known = isinstance(self.layer, Recurrent)  # torch's layers take neither
            resets, dt = resets if known else None, dt if known and self.layer.cell.timed else None
        masks: dict[str, Any] = {name: v for name, v in (("resets", resets), ("dt", dt)) if v is not None}
        if lengths is not None:
            lengths = _one_each(lengths, inputs.shape[1])
        x = self._embedded(inputs)
        if lengths is not None and not (padded and self.one_way):
            steps = lengths.cpu()
            if len(steps) and not 1 <= int(steps.min()) <= int(steps.max()) <= len(inputs):
                raise ValueError(f"lengths must be from 1 to {len(inputs)}, the steps there are, got {steps.tolist()}")
            for name, mask in masks.items():
                if not isinstance(mask, Tensor) or mask.shape != inputs.shape[:2]:
                    got = tuple(mask.shape) if isinstance(mask, Tensor) else type(mask).__name__
                    raise ValueError(f"{name} must have shape {tuple(inputs.shape[:2])} for this input, got {got}")
            packed = {name: pack_padded_sequence(mask, steps, enforce_sorted=False) for name, mask in masks.items()}
            h, state = self.layer(pack_padded_sequence(x, steps, enforce_sorted=False), state, **packed)
            assert isinstance(h, PackedSequence)
            h = unpacked(h, len(inputs))
        elif (
            lengths is None
            and not masks
            and self.readout == "last"
            and (end := last_state(self.layer, x, state)) is not None
        ):
            return self.read(end[0]), end
        else:
            h, state = self.layer(x, state, **masks)
        return self.read(h if self.readout == "every" else self._last(h, lengths)), state

    def step(self, inputs: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        """Outputs ``(B, O)`` and the layer's state after one time step, see `Recurrent.step`.

        Args:
            inputs: ``(B, I)``, or whole numbers ``(B)`` with a vocabulary.
            state: the state before, as this method or a call of the model returned it. Default: the layer's own.
        """
        x = self._embedded(inputs)
        h, state = step_layer(self.layer, x, state)
        return self.read(h), state

    def _embedded(self, inputs: Tensor) -> Tensor:
        """The layer's input."""
        if self.embedding is None:
            return self.drop_input(inputs if self.columns is None else self.columns(inputs))
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
        draw_layer(self.layer, generator)
        with torch.no_grad(), torch.device("cpu"):
            if self.embedding is not None:
                sizes = self.embedding.num_embeddings, self.embedding.embedding_dim
                self.embedding.weight.copy_(_embedding_start(*sizes, self.embedding_range, generator))
            if self.columns is not None:
                self.columns.reset_parameters(generator)
            for linear in (self.hidden, self.output):
                if linear is not None:
                    draw_linear(linear, generator)

    def parameter_counts(self) -> dict[str, int]:
        """The number of trained parameters of embeddings, layer, hidden readout units and output, and their total."""
        embedding = self.embedding if self.columns is None else self.columns
        parts = {"embedding": embedding, "layer": self.layer, "hidden": self.hidden, "output": self.output}
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


def _dropout(name: str, p: float) -> nn.Dropout:
    number(name, p, least=0, below=1)
    return nn.Dropout(p)
