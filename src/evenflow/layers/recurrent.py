"""`Recurrent`, the base of all recurrent layers: any cell with the signature and habits of `torch.nn.RNN`.

The file is past 300 lines because the class lists and describes every option that all layers share.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Proxy
from torch.nn.utils import parametrize
from torch.nn.utils.rnn import PackedSequence

from evenflow.cells import Cell, CellMaker, Regularised, Weights, regularised
from evenflow.layers.layer_graphs import LayerGraphs, replay_layer
from evenflow.layers.layer_options import check_layer_options
from evenflow.layers.layer_weights import MapChoice, check_map, reset_weights, start_weights
from evenflow.layers.sequences import Sequences
from evenflow.layers.stepped_layer import SteppedLayer
from evenflow.layers.torch_weights import take_torch_weights
from evenflow.maps import Map
from evenflow.runtime.constructor_call import Described
from evenflow.runtime.rewritten import NotQuantized, traced_call
from evenflow.runtime.torch_state import in_functorch
from evenflow.scan import STORAGES, checkpointed, project, scan


class Recurrent(Described, SteppedLayer, NotQuantized):
    """A cell run over time, with the signature, call forms and habits of `torch.nn.RNN`; every layer is one.

    Shapes:
        input ``(T, B, I)``, ``(B, T, I)`` with `batch_first`, ``(T, I)`` without a batch, or a `PackedSequence`;
        initial and final states ``(num_layers * directions, B, H)``; output as the input, ``directions * H`` wide.

    Args:
        cell: what one step computes, such as ``cells.GRUStep()`` or a function decorated with `evenflow.cell`.
        input_size: I, the numbers of the input at each step.
        hidden_size: H, the units of the state.
        num_layers: layers above each other; each reads the output of the one below. Default: 1.
        bias: whether the pre-activations have a bias, one vector per layer and direction. Default: True.
        batch_first: whether input and output are ``(B, T, ...)`` instead of ``(T, B, ...)``. Default: False.
        dropout: probability of dropout between the layers, in training. Default: 0.
        bidirectional: whether a second direction runs from the last step to the first. Default: False.
        map: what makes the recurrent matrix: a name of `maps.MAPS`, or a function of the matrix's size that returns a
            `maps.Map`; or one for each matrix of the cell by its name, ``{"W": "cayley", "V": "free"}``.
        initial_state: ``"zero"`` (default), or ``"learned"``: one trained vector per layer and direction.
        input_range: input weights start uniform between minus this and this. Default: Glorot uniform. Small weights
            leave saturating units (tanh) nearly linear at the start, so that gradients reach further back.
        engine: ``"auto"`` (default), the fastest scan there is; ``"torch"``, without compiled code; or
            ``"reference"``, the plain loop.
        checkpoint_every: save only the state of every so many steps and recompute the steps between in the backward
            pass: less memory for a second forward pass. About √T needs least memory. 1 saves all states and recomputes
            nothing where they suffice, see `scan.state_checkpoints`. Default: None, what is faster. Inside a
            `Population` and under `torch.func` everything is saved.
        storage: ``"bfloat16"`` or ``"float16"`` save the output, and what the backward pass reads of every step, in
            half the memory; weights and the running state stay in single precision. Default: None.
        generator: a `torch.Generator` for the starting values. Default: torch's global one.
        device, dtype: of the weights. Default: torch's default device and dtype.
        recurrent_dropout: probability p of recurrent dropout, in training: the recurrent matrices read
            ``m h / (1 - p)``, with one mask m for all steps of a sequence. Default: 0.
        zoneout: probability that a unit keeps its state in a step, in training; in evaluation new states are the
            expectation. One number for each state, in their order, where a cell has several: an LSTM's h and c have
            ``(0.05, 0.5)`` in the paper. Default: 0.
        layer_norm: whether pre-activations are normalised over the units of each gate, before the bias and with a
            trained factor ``norm_l0`` per unit; of LSTMs also the memory in the output. Default: False.
        weight_dropout: probability that a number of the free recurrent matrices is zero for a whole forward pass, in
            training. Default: 0.
        map_options: options of the map, as keyword arguments, see `maps`.

    Weights have torch's names, ``weight_ih_l0``, ``weight_hh_l0``, ``bias_l0``, and end in ``_reverse`` for the second
    direction. A matrix with a map is computed once per call; assign to ``weight_hh_l0`` to set it. A layer can be
    pickled whole.

    >>> layer = Recurrent(cells.Elman("abs"), 2, 128, map="exponential", num_layers=2)
    >>> output, h_n = layer(torch.randn(100, 8, 2))
    >>> output.shape, h_n.shape
    (torch.Size([100, 8, 128]), torch.Size([2, 8, 128]))
    """

    layers_run_in_turn = True  # False where one step runs through all layers of the stack
    takes_one_step = False  # True for a module of one time step, whose states have no dimension of layers
    graphs: LayerGraphs | None = None  # the captured passes of a layer that has run on a GPU
    _names: tuple[str, ...] = ()
    _shapes: Mapping[str, torch.Size] = {}  # layers pickled by early versions have none

    def __init__(
        self,
        cell: Cell | CellMaker,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        *,
        map: MapChoice = "free",
        initial_state: str = "zero",
        input_range: float | None = None,
        engine: str = "auto",
        checkpoint_every: int | None = None,
        storage: str | None = None,
        generator: torch.Generator | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        recurrent_dropout: float = 0.0,
        zoneout: float | Sequence[float] = 0.0,
        layer_norm: bool = False,
        weight_dropout: float = 0.0,
        **map_options: Any,
    ) -> None:
        super().__init__()
        if isinstance(cell, CellMaker):  # with the constants it has by default
            cell = cell()
        if not isinstance(cell, Cell):
            raise ValueError(
                f"cell must be a cell, such as evenflow.cells.GRUStep() or one of @evenflow.cell, got {cell!r}"
            )
        check_layer_options(
            self, input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, initial_state,
            input_range, engine, checkpoint_every, storage, generator, dtype,
        )  # fmt: skip
        self.input_size, self.hidden_size, self.num_layers = input_size, hidden_size, num_layers
        self.cell = regularised(cell, recurrent_dropout, zoneout, layer_norm, weight_dropout)
        if isinstance(self.cell, Regularised) and not self.layers_run_in_turn:
            options = " and ".join(self.cell.options())
            raise ValueError(f"{options} must be left out for {type(self).__name__}, whose layers share one step")
        check_map(self, map, map_options)
        self.engine, self.checkpoint_every = engine, checkpoint_every
        self.biased, self.batch_first, self.bidirectional = bool(bias), bool(batch_first), bool(bidirectional)
        if not self.takes_one_step:  # whose `bias` is the vector
            self.bias = self.biased
        self.dropout = float(dropout)
        self.initial_state, self.storage = initial_state, storage
        self.input_range = input_range
        free = "free" in map.values() if isinstance(map, Mapping) else map == "free"
        self.free_options = map_options if free else {}  # of the map that free matrices start by
        self.free_maps: dict[str, Map] = {}  # by matrix, those that only choose the starting value
        self._shapes = start_weights(self, map, map_options, generator)
        first = self.suffixes[0]
        self._names = tuple(name.removesuffix(first) for name in self._shapes if name.endswith(first))
        if self.layers_run_in_turn:
            self.cell.check(hidden_size, {name: self._shapes[name + first] for name in self._names})
        self.to(dtype=dtype or torch.get_default_dtype())
        if not any(p.is_meta for p in self.parameters()):  # some loaders create parameters without data
            self.to(device=torch.get_default_device() if device is None else device)

    def forward(
        self,
        input: Tensor | PackedSequence,
        hx: Tensor | tuple[Tensor, ...] | None = None,
        resets: Tensor | PackedSequence | None = None,
        dt: Tensor | PackedSequence | None = None,
    ) -> tuple[Tensor | PackedSequence, Tensor | tuple[Tensor, ...]]:
        """Run the layer; see the class for the shapes.

        Args:
            input: the sequences.
            hx: the initial state, a tuple where the cell has several states. Default: zero, or the learned one.
            resets: True at the first step of a piece, such as an episode of a rollout: a Boolean tensor ``(T, B)``,
                ``(B, T)`` with `batch_first`, ``(T,)`` without a batch; for packed input a `PackedSequence` of one
                Boolean a step, packed as the input. Before such a step the state is zero, or the learned initial state,
                in every layer of a stack; hx counts up to the first reset. A reverse direction restarts at the last
                step of each piece. Outputs and gradients are those of the pieces run one by one. Default: no resets.
            dt: for cells in continuous time, the time that passes before each step, at least 0, in the shapes of
                `resets`; a series at irregular times has ``dt[t] = time[t] - time[t - 1]``. A reverse direction takes
                the gap behind each step. Default: 1 for all steps.
        """
        if hx is not None:
            self._look_at(hx)
        if isinstance(input, Proxy):
            return traced_call(self, input, hx, resets, *((dt,) if self.cell.timed else ()))
        if dt is not None and not self.cell.timed:
            raise ValueError(f"dt must be left out for {self.cell.name}, whose step reads no time")
        if dt is not None and self._records:
            raise ValueError("dt must be left out inside record_runs, whose users run steps without it")
        if isinstance(input, Tensor) and input.is_cuda and dt is None:
            replayed = replay_layer(self, input, hx, resets)
            if replayed is not None:
                return replayed
        return self._forward(input, hx, resets, dt)

    def _forward(
        self,
        input: Tensor | PackedSequence,
        hx: Tensor | tuple[Tensor, ...] | None,
        resets: Tensor | PackedSequence | None = None,
        dt: Tensor | PackedSequence | None = None,
    ) -> tuple[Tensor | PackedSequence, Tensor | tuple[Tensor, ...]]:
        sequences = Sequences.read(input, self.input_size, self.batch_first)
        initial, restarts = self._read_states(sequences, hx), sequences.read_resets(resets)
        gaps = sequences.read_gaps(dt)
        x = sequences.padded
        finals: list[list[Tensor]] = []
        directions = 2 if self.bidirectional else 1
        for layer in range(self.num_layers):
            if layer and self.dropout and self.training:
                x = nn.functional.dropout(x, self.dropout)
            outputs = []
            for direction in range(directions):
                index = layer * directions + direction
                start = None if initial is None else [s[index] for s in initial]
                output, *ends = self._run_direction(x, index, sequences, start, restarts, gaps)
                finals.append(ends)
                outputs.append(sequences.reverse(output) if direction else output)
            x = torch.cat(outputs, -1) if self.bidirectional else outputs[0]
        final = tuple(sequences.write_state(torch.stack(member)) for member in zip(*finals, strict=True))
        return sequences.write(x), final[0] if len(final) == 1 else final

    def _run_direction(
        self,
        x: Tensor,
        index: int,
        sequences: Sequences,
        state: list[Tensor] | None,
        resets: Tensor | None = None,
        gaps: Tensor | None = None,
    ) -> tuple[Tensor, ...]:
        """The output ``(T, B, H)`` of one layer and direction, then each sequence's last state, ``(B, H)`` each."""
        cell, engine = self.cell, self.engine
        noise = cell if isinstance(cell, Regularised) and self.training else None
        weights: Weights = self.direction_weights(index)
        weights = cell.prepare(weights if noise is None else noise.drop_weights(weights))
        like = weights[(*cell.recurrent, *cell.parameters, "weight_ih")[0]]
        reverse = self.bidirectional and index % 2 == 1
        if reverse:
            x, resets = sequences.reverse(x), None if resets is None else sequences.reverse_resets(resets)
            gaps = None if gaps is None else sequences.reverse_gaps(gaps)
        learned = state is None and self.initial_state == "learned"
        if state is None:
            shapes = [(x.shape[1], size) for size in self.state_sizes]
            if learned:
                state = [weights[f"{name}0"].expand(shape) for name, shape in zip(cell.states, shapes, strict=True)]
            else:
                state = [x.new_zeros(shape) for shape in shapes]
        tap = None
        if self._taps is not None:
            zeros = self._new_tap(x.shape[:2], like)
            tap = sequences.reverse(zeros) if reverse else zeros
        beside = None if noise is None else noise.masks(x.shape[:2], self.hidden_size, weights["weight_ih"])
        if gaps is not None:  # of a cell without masks, see `Cell.timed`
            beside = gaps.unsqueeze(-1).to(like.dtype)
        every, sizes = self.checkpoint_every, sequences.batch_sizes
        restarts: dict[str, Any] = {"resets": resets, "learned": self.initial_state == "learned"}
        if every is not None and every < len(x) and not in_functorch():
            results = checkpointed(cell, x, tuple(state), weights, every, sizes, tap, engine, beside, **restarts)
            if self._records:
                self._record_run(index, x, state, learned, results[0], sequences, resets)
            return results
        storage = None if self.storage is None else STORAGES[self.storage]
        dtype = like.real.dtype
        casts = storage is not None and not x.is_meta and dtype != torch.float64  # autocast leaves float64 as it is
        if x.dtype == storage and not casts:  # the stored output of the layer below
            x = x.to(dtype)

        def pre_activations() -> Tensor:  # kept by the autograd graph, and so without a reference to the layer
            with torch.autocast(x.device.type, storage) if casts else nullcontext():
                a = project(cell, x, weights, engine)
            return a if beside is None else torch.cat((a, beside.to(a.dtype)), -1)

        a = pre_activations()
        options = restarts | {"again": pre_activations}
        states = scan(cell, a, tuple(state), weights, sizes, tap, engine, storage, **options)
        if self._records:  # in the precision of the weights, so that a step can be run again
            read, output = (x, states[0]) if storage is None else (x.to(dtype), states[0].to(dtype))
            self._record_run(index, read, state, learned, output, sequences, resets)
        ends = (sequences.last(s) for s in states)
        return states[0], *(ends if storage is None else (end.to(dtype) for end in ends))

    @property
    def state_sizes(self) -> tuple[int, ...]:
        """The numbers in each state of one layer and direction; the first is the size of the output."""
        return self.cell.state_sizes(self.hidden_size)

    @property
    def suffixes(self) -> list[str]:
        """The endings of the weights' names, ``_l0``, ``_l0_reverse``, ..., one for each layer and direction."""
        directions = ("", "_reverse") if self.bidirectional else ("",)
        return [f"_l{layer}{direction}" for layer in range(self.num_layers) for direction in directions]

    def direction_weights(self, index: int) -> dict[str, Tensor]:
        """The weights of one layer and direction by their names in the cell; a map computes its matrix.

        Args:
            index: which layer and direction, in the order of the final states.
        """
        suffix, weights = self.suffixes[index], {}
        for name in self._names:
            weight: Tensor = getattr(self, name + suffix)
            shape = self._shapes.get(name + suffix)
            if weight.shape != shape and shape is not None:  # assigned by the user
                raise ValueError(f"{name + suffix} must have shape {tuple(shape)}, got {tuple(weight.shape)}")
            weights[name] = weight
        return weights

    def step_weights(self, index: int) -> Weights:
        """The tensors that the cell's step reads: `direction_weights` as `Cell.prepare` returns them."""
        return self.cell.prepare(self.direction_weights(index))

    def _read_states(self, sequences: Sequences, hx: Tensor | tuple[Tensor, ...] | None) -> list[Tensor] | None:
        names = [f"{name}0" for name in self.cell.states]
        return None if hx is None else sequences.read_states(hx, names, len(self.suffixes), self.state_sizes)

    def flatten_parameters(self) -> None:
        """Do nothing: scripts written for `torch.nn.RNN` call it."""

    @property
    def mode(self) -> str:
        """torch's name for the kind of layer: ``"RNN_TANH"``, ``"GRU"``, ``"LSTM"``, or the name of the class."""
        name = parametrize.type_before_parametrizations(self).__name__
        return f"RNN_{str(self.cell.settings().get('activation', '')).upper()}" if name == "RNN" else name

    @property
    def proj_size(self) -> int:
        """The size of the output where it differs from `hidden_size`, as in torch's LSTM; else 0."""
        return 0 if self.state_sizes[0] == self.hidden_size else self.state_sizes[0]

    @property
    def all_weights(self) -> list[list[Tensor]]:
        """The weights of each layer and direction, in the order of `suffixes`; of a mapped matrix its value."""
        return [list(self.direction_weights(index).values()) for index in range(len(self.suffixes))]

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw all weights anew, as a new layer does; the parameters stay the same objects."""
        reset_weights(self, generator)

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *rest: Any) -> None:
        take_torch_weights(self, state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def extra_repr(self) -> str:
        def changed(defaults: Mapping[str, object]) -> list[str]:
            values = ((name, getattr(self, name), default) for name, default in defaults.items())
            return [f"{name}={value!r}" for name, value, default in values if value != default]

        sizes = {"batch_first": False, "dropout": 0.0, "bidirectional": False}
        ways = {"engine": "auto", "initial_state": "zero", "storage": None, "checkpoint_every": None}
        cell = [f"{name}={value!r}" for name, value in self.cell.settings().items()]
        first = [f"{self.input_size}, {self.hidden_size}", *changed({"num_layers": 1})]
        bias = [] if self.biased else ["bias=False"]
        return ", ".join([*first, *bias, *changed(sizes), *cell, *changed(ways)])
