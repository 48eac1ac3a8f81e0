"""What every recurrent layer shares: the signature and the habits of `torch.nn.RNN`, for any cell."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from evenflow import maps
from evenflow.cells import Cell, CellMaker, FunctionCell
from evenflow.checks import number, one_of, unknown, unknown_option, whole_number
from evenflow.layers.layer_run import LayerRun
from evenflow.layers.layer_weights import LayerWeights, MapChoice
from evenflow.layers.replayed import replay_layer
from evenflow.layers.sequences import Sequences
from evenflow.runtime.torch_state import in_functorch
from evenflow.scan import ENGINES, STORAGES, checkpointed, project, scan

INITIAL_STATES = ("zero", "learned")


class Recurrent(LayerWeights):
    """A cell run over time: what every layer shares.

    Shapes:
        input ``(T, B, I)``, ``(B, T, I)`` with `batch_first`, ``(T, I)`` without a batch, or a `PackedSequence`;
        initial and final states ``(num_layers * directions, B, H)``; output as the input, ``directions * H`` wide.

    Args:
        input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, device, dtype: as in
            `torch.nn.RNN`. There is one bias vector per layer and direction, as in the documents.
        map: what the recurrent matrix is made by, a name of `maps.MAPS` or a function of the matrix's size that returns
            a `maps.Map`; or one for each matrix of the cell by its name, ``{"W": "cayley", "V": "free"}``. Options of
            the map follow as keywords.
        initial_state: ``"zero"``, or ``"learned"`` for one trained vector per layer and direction.
        input_range: input weights start uniform between minus this and this, in place of Glorot's; small ones leave
            units that saturate (tanh) nearly linear at the start, so that a gradient reaches further back.
        engine: ``"auto"`` takes the fastest scan there is, ``"torch"`` one without compiled code, ``"reference"`` the
            plain loop.
        checkpoint_every: keep the state of every so many steps alone, and run the steps between them again in the
            backward pass: less memory for a second forward pass. About √T is the least; 1 keeps all states, and where
            they are enough (see `scan.state_checkpoints`) runs nothing again; None keeps what is faster. In a
            `Population` and under `torch.func` all is kept.
        storage: ``"bfloat16"`` or ``"float16"`` keep the output, and what the backward pass needs of every step, in
            half the memory; the weights and the state from step to step stay in single precision. None keeps all so.
        generator: where starting values are drawn from, instead of torch's global one.

    Weights carry torch's names: ``weight_ih_l0``, ``weight_hh_l0``, ``bias_l0``, with ``_reverse`` for the way back.
    A matrix with a map is computed once per call; assign to ``weight_hh_l0`` to set it. A layer pickles whole.
    """

    one_after_another = True  # the layers of a stack; else a step runs through all of them
    _records: tuple[list[LayerRun], ...] = ()  # the lists that every run is added to
    _handed: Sequence[Tensor] = ()  # taps that a recording brings, to be listened to instead of new ones

    def __init__(
        self,
        cell: Cell | CellMaker,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        *,
        map: MapChoice = "free",
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        initial_state: str = "zero",
        input_range: float | None = None,
        engine: str = "auto",
        checkpoint_every: int | None = None,
        storage: str | None = None,
        generator: torch.Generator | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **map_options: Any,
    ) -> None:
        super().__init__()
        if isinstance(cell, CellMaker):  # with the constants it has by default
            cell = cell()
        if not isinstance(cell, Cell):
            raise ValueError(
                f"cell must be a cell, such as evenflow.cells.GRUStep() or one of @evenflow.cell, got {cell!r}"
            )
        for name, value in (("input_size", input_size), ("hidden_size", hidden_size), ("num_layers", num_layers)):
            whole_number(name, value, 1)
        for name, value in (("bias", bias), ("batch_first", batch_first), ("bidirectional", bidirectional)):
            if value not in (True, False):
                raise ValueError(f"{name} must be True or False, got {value!r}")
        number("dropout", dropout)
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout must be at least 0 and below 1, got {dropout}")
        if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
            raise ValueError(f"dtype must be a floating point torch.dtype, got {dtype!r}")
        if generator is not None and not isinstance(generator, torch.Generator):
            raise ValueError(f"generator must be a torch.Generator, got {generator!r}")
        one_of("initial_state", initial_state, INITIAL_STATES)
        if input_range is not None:
            number("input_range", input_range)
            if not 1e-30 <= input_range <= 1e30:  # which single precision holds
                raise ValueError(f"input_range must be a number from 1e-30 to 1e30, got {input_range}")
        one_of("engine", engine, ENGINES)
        if checkpoint_every is not None:
            whole_number("checkpoint_every", checkpoint_every, 1)
        if storage is not None:
            one_of("storage", storage, STORAGES)
            if checkpoint_every is not None or not self.one_after_another:
                where = "with checkpoint_every" if checkpoint_every else f"for {type(self).__name__}"
                raise ValueError(f"storage must be None {where}, got {storage!r}")
        self.input_size, self.hidden_size, self.num_layers = input_size, hidden_size, num_layers
        self._check_map(cell, map, map_options)
        self.cell, self.engine, self.checkpoint_every = cell, engine, checkpoint_every
        self.bias, self.batch_first, self.bidirectional = bool(bias), bool(batch_first), bool(bidirectional)
        self.dropout = float(dropout)
        self.initial_state, self.storage = initial_state, storage
        self._taps: list[Tensor] | None = None
        self._start_weights(map, map_options, input_range, generator)
        if self.one_after_another:
            cell.check(hidden_size, {name: self._shapes[name + self.suffixes[0]] for name in self._names})
        place = torch.get_default_device() if device is None else device
        self.to(device=place, dtype=dtype or torch.get_default_dtype())

    def _check_map(self, cell: Cell, map: MapChoice, map_options: Mapping[str, Any]) -> None:
        matrices = {matrix.name: matrix for matrix in cell.matrices(self.hidden_size)}
        if isinstance(map, Mapping):
            for name in map:
                if name not in matrices:
                    raise ValueError(unknown(f"matrix of {cell.name} in map", name, matrices))
        elif map != "free" and not any(matrix.mapped for matrix in matrices.values()):
            hint = f"; for a map on each block give map={{{next(iter(matrices))!r}: {map!r}}}"
            own = hint if isinstance(cell, FunctionCell) else ""
            raise ValueError(f"{cell.name} has no map on its gates, so map must be 'free', got {map!r}{own}")
        for choice in map.values() if isinstance(map, Mapping) else [map]:
            for name in map_options:
                if (known := maps.options_of(choice)) is not None and name not in known:
                    raise ValueError(unknown_option(type(self), name, f"its map {choice!r}", known))

    def forward(
        self, input: Tensor | PackedSequence, hx: Tensor | tuple[Tensor, ...] | None = None
    ) -> tuple[Tensor | PackedSequence, Tensor | tuple[Tensor, ...]]:
        if isinstance(input, Tensor) and input.is_cuda and (found := replay_layer(self, input, hx)) is not None:
            return found
        return self._passed(input, hx)

    def _flat(self, input: Tensor, *states: Tensor, taps: Sequence[Tensor] = ()) -> tuple[Tensor, ...]:
        """`_passed` from tensors to tensors, with these taps and no others."""
        outer = self._taps, self._handed
        self._taps, self._handed = [] if taps else None, taps
        try:
            output, final = self._passed(input, (states if len(states) > 1 else states[0]) if states else None)
        finally:
            self._taps, self._handed = outer
        assert isinstance(output, Tensor)
        return output, *((final,) if isinstance(final, Tensor) else final)

    def _passed(
        self, input: Tensor | PackedSequence, hx: Tensor | tuple[Tensor, ...] | None
    ) -> tuple[Tensor | PackedSequence, Tensor | tuple[Tensor, ...]]:
        sequences = Sequences.read(input, self.input_size, self.batch_first)
        given = self._read_states(sequences, hx)
        x = sequences.padded
        finals: list[list[Tensor]] = []
        directions = 2 if self.bidirectional else 1
        for layer in range(self.num_layers):
            if layer and self.dropout and self.training:
                x = nn.functional.dropout(x, self.dropout)
            outputs = []
            for direction in range(directions):
                index = layer * directions + direction
                output, *ends = self._run(x, index, sequences, None if given is None else [s[index] for s in given])
                finals.append(ends)
                outputs.append(sequences.reverse(output) if direction else output)
            x = torch.cat(outputs, -1) if self.bidirectional else outputs[0]
        final = tuple(sequences.write_state(torch.stack(member)) for member in zip(*finals, strict=True))
        return sequences.write(x), final[0] if self.cell.state_size == 1 else final

    def _run(self, x: Tensor, index: int, sequences: Sequences, state: list[Tensor] | None) -> tuple[Tensor, ...]:
        """The output ``(T, B, H)`` of one layer and direction, then each sequence's last state, ``(B, H)`` each."""
        weights = self.step_weights(index)
        backwards = self.bidirectional and index % 2 == 1
        x = sequences.reverse(x) if backwards else x
        learned = state is None and self.initial_state == "learned"
        if state is None:
            shape = (x.shape[1], self.hidden_size)
            if learned:
                state = [weights[f"{name}0"].expand(shape) for name in self.cell.states]
            else:
                state = [x.new_zeros(shape)] * self.cell.state_size
        tap = None
        if self._taps is not None:
            zeros = self._new_tap(x.shape[:2], weights[self.cell.recurrent[0]])
            tap = sequences.reverse(zeros) if backwards else zeros
        every, sizes = self.checkpoint_every, sequences.batch_sizes
        if every is not None and every < len(x) and not in_functorch():
            results = checkpointed(self.cell, x, tuple(state), weights, every, sizes, tap, self.engine)
            self._record_run(index, x, state, learned, results[0], sequences)
            return results
        storage = None if self.storage is None else STORAGES[self.storage]
        dtype = weights[self.cell.recurrent[0]].real.dtype
        casts = storage is not None and not x.is_meta and dtype != torch.float64  # which autocast leaves as it is
        if x.dtype == storage and not casts:  # what the layer below has stored
            x = x.to(dtype)

        cell, engine = self.cell, self.engine  # the graph holds `into`, and is not to hold the layer

        def into() -> Tensor:
            with torch.autocast(x.device.type, storage) if casts else nullcontext():
                return project(cell, x, weights, engine)

        states = scan(cell, into(), tuple(state), weights, sizes, tap, engine, storage, again=into)
        ends = (sequences.last(s) for s in states)
        if storage is None:
            self._record_run(index, x, state, learned, states[0], sequences)
            return states[0], *ends
        if self._records:  # in the weights' precision, so that a step can be run again
            self._record_run(index, x.to(dtype), state, learned, states[0].to(dtype), sequences)
        return states[0], *(end.to(dtype) for end in ends)

    def _record_run(
        self, index: int, x: Tensor, start: Sequence[Tensor], learned: bool, states: Tensor, sequences: Sequences
    ) -> None:
        tap = self._taps[-1] if self._taps else None
        for runs in self._records:
            runs.append(LayerRun(self, index, x, tuple(start), learned, states, sequences, tap))

    def _new_tap(self, steps: Sequence[int], like: Tensor) -> Tensor:
        """Zeros ``(T, B, H)`` among the taps, for their gradient alone."""
        assert self._taps is not None
        if self._handed:
            zeros, *self._handed = self._handed
        else:  # not `new_zeros`, of which a compiler makes no leaf
            zeros = torch.zeros(*steps, self.hidden_size, dtype=like.dtype, device=like.device, requires_grad=True)
        self._taps.append(zeros)
        return zeros

    def _read_states(self, sequences: Sequences, hx: Tensor | tuple[Tensor, ...] | None) -> list[Tensor] | None:
        if hx is None:
            return None
        names = [f"{name}0" for name in self.cell.states]
        several = f"a pair ({', '.join(names)})" if len(names) == 2 else f"a tuple ({', '.join(names)})"
        wanted = f"one tensor {names[0]}" if len(names) == 1 else several
        states = (hx,) if isinstance(hx, Tensor) else tuple(hx) if isinstance(hx, tuple | list) else ()
        if not all(isinstance(state, Tensor) for state in states) or not states:
            raise ValueError(f"the initial state must be {wanted}, got {type(hx).__name__} {hx!r:.60}")
        if len(states) != self.cell.state_size:
            raise ValueError(f"the initial state must be {wanted}, got {len(states)} tensors")
        return [
            sequences.read_state(state, len(self.suffixes), self.hidden_size, name)
            for state, name in zip(states, names, strict=True)
        ]

    @contextmanager
    def taps(self) -> Iterator[list[Tensor]]:
        """Listen to the states: each scan inside the block adds a tensor whose `grad`, after backward, is ∂L/∂h_t.

        One tensor ``(T, B, H)`` per layer and direction and call, in the order of the final states; rows of packed
        input stand longest first.

        >>> with layer.taps() as taps:
        ...     output, _ = layer(x)
        >>> output[-1].sum().backward()
        >>> taps[0].grad.norm(dim=-1)  # how much of the gradient reaches back to each step
        """
        outer, self._taps = self._taps, []
        try:
            yield self._taps
        finally:
            self._taps = outer

    @contextmanager
    def record_runs(self, runs: list[LayerRun] | None = None) -> Iterator[list[LayerRun]]:
        """Inside the block, add a `LayerRun` to a list for each layer and direction that runs, in that order.

        Args:
            runs: the list, if several layers are to share one; a new one by default.

        >>> with layer.record_runs() as runs:
        ...     output, _ = layer(x)
        >>> runs[0].states.shape
        torch.Size([100, 50, 128])
        """
        runs = [] if runs is None else runs
        outer, self._records = self._records, (*self._records, runs)
        try:
            yield runs
        finally:
            self._records = outer

    @property
    def recorded(self) -> bool:
        """True inside `record_runs`: every step must be computed by this layer itself."""
        return bool(self._records)

    @property
    def observed(self) -> bool:
        """True inside `record_runs` or `taps`."""
        return self.recorded or self._taps is not None

    def flatten_parameters(self) -> None:
        """Nothing to do; here because scripts written for `torch.nn.RNN` call it."""

    def extra_repr(self) -> str:
        shown = [f"{self.input_size}, {self.hidden_size}"]
        defaults = {"num_layers": 1, "bias": True, "batch_first": False, "dropout": 0.0, "bidirectional": False}
        shown += [f"{k}={getattr(self, k)}" for k, default in defaults.items() if getattr(self, k) != default]
        shown += [f"{k}={value!r}" for k, value in self.cell.settings().items()]
        if self.engine != "auto":
            shown.append(f"engine={self.engine!r}")
        if self.initial_state != "zero":
            shown.append(f"initial_state={self.initial_state!r}")
        if self.storage is not None:
            shown.append(f"storage={self.storage!r}")
        if self.checkpoint_every is not None:
            shown.append(f"checkpoint_every={self.checkpoint_every}")
        return ", ".join(shown)
