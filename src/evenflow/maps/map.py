"""The base class of maps, which turn free numbers into a constrained matrix.

The file is past 300 lines because it is one class, with the contract of each method beside it.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import torch
from torch import Tensor, nn

from evenflow.checks import one_of, whole_number
from evenflow.maps.last_matrix import LastMatrix
from evenflow.maps.rounding import rounded
from evenflow.maps.written_numbers import check_shapes, warn_of_orthogonal
from evenflow.runtime.captured_function import CapturedFunction, recomputed_gradients
from evenflow.runtime.constructor_call import Described
from evenflow.runtime.cuda_graphs import GraphCache
from evenflow.runtime.torch_state import (
    ieee_products,
    in_dispatch_mode,
    is_batched_gradient,
    is_observed,
    stream_id,
)

HALF = (torch.bfloat16, torch.float16)
COMPLEX = {torch.float32: torch.complex64, torch.float64: torch.complex128}
PRECISIONS = {"float32": torch.float32, "float64": torch.float64}
WARM_UP = 3  # calls on a GPU that run plainly, so that a matrix that is computed once is not captured
LIMIT = 4  # captures of one map: shapes, dtypes and streams beyond these run plainly


class Map(Described, nn.Module):
    """A map from free numbers to a constrained matrix, in the form `torch.nn.utils.parametrize` takes.

    ``W = map(*raw)``, and ``map.right_inverse(W)`` returns numbers that give W. A subclass defines `raw_shapes`, and in
    full precision `matrix` (the equation), `inverse` (its inverse) and `start` (the initial numbers). A map whose
    gradient is written by hand defines `evaluate`, `vjp` and `plain` in place of `matrix`.

    Shapes:
        raw: each ``(..., *shape)`` for the shapes in `raw_shapes`; matrix: ``(..., rows, columns)``. Leading
        dimensions are independent models.

    Args:
        rows, columns: size of the matrix; `columns` defaults to `rows`.
        precision: ``"float32"`` or ``"float64"``: the dtype of the computation. Default: the dtype of the numbers, or
            float32 for bfloat16 and float16.

    A bfloat16 or float16 matrix is computed in float32 and rounded once at the end, with autocast or without: eight
    bits of mantissa cannot hold an orthogonal matrix. A real orthogonal matrix is converted from float64 to float32 by
    `rounded`, whose columns are closer to orthonormal than those of the nearest float32 entries.

    Without gradients a matrix on a CPU is computed once and kept until a number changes.

    >>> class Diagonal(Map):
    ...     @property
    ...     def raw_shapes(self):
    ...         return ((self.rows,),)
    ...     def matrix(self, d):
    ...         return torch.diag_embed(d)
    ...     def inverse(self, W):
    ...         return (W.diagonal(dim1=-2, dim2=-1),)
    ...     def start(self, generator=None):
    ...         return (torch.ones(self.rows),)
    >>> attach(nn.Linear(3, 3), "weight", Diagonal(3)).weight.detach()
    tensor([[1., 0., 0.],
            [0., 1., 0.],
            [0., 0., 1.]])
    """

    # Whether the matrix is orthogonal (or unitary) for all numbers.
    orthogonal = False
    # Whether its operations can be captured as a CUDA graph: False for a map that reads numbers on the host.
    capturable = True
    _checked = False  # whether `warn_of_orthogonal` has seen the first numbers that were written
    _first_version: int | None = None  # of the numbers, in the first call

    def __init__(self, rows: int, columns: int | None = None, *, precision: str | None = None) -> None:
        super().__init__()
        columns = rows if columns is None else columns
        whole_number("rows", rows, 1)
        whole_number("columns", columns, 1)
        if precision is not None:
            one_of("precision", precision, PRECISIONS)
        self.rows, self.columns, self.precision = rows, columns, precision
        self.graphs = GraphCache[CapturedFunction](f"{type(self).__name__} runs", WARM_UP, LIMIT, recapture=True)
        self._constants: dict[torch.device, dict[str, Tensor]] = {}
        self.last = LastMatrix()

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_constants": {}}

    def prepare_capture(self, *raw: Tensor) -> None:
        """Called before a capture, for a map that measures its numbers to choose `captured_range`."""

    @property
    def captured_range(self) -> Hashable:
        """The range of numbers for which the next capture is valid. A change invalidates the captures before."""
        return tuple(child.captured_range for child in self._modules.values() if isinstance(child, Map)) or None

    def needs_recapture(self, *raw: Tensor) -> bool:
        """Return True if the numbers are about to leave `captured_range`; asked before each replay.

        Given the numbers, the map also notices that they changed while nothing was replayed.
        """
        return any(child.needs_recapture() for child in self._modules.values() if isinstance(child, Map))

    def _apply(self, *args: Any, **options: Any) -> Map:
        self.graphs.clear()  # graphs read the buffers at addresses that change now
        return super()._apply(*args, **options)

    def _load_from_state_dict(self, *args: Any, **options: Any) -> None:
        self.graphs.clear()
        super()._load_from_state_dict(*args, **options)

    def constants(self, device: torch.device) -> dict[str, Tensor]:
        """Return tensors that follow from the settings alone, such as indices, on a device; `constant` reads them."""
        return {}

    def constant(self, name: str, device: torch.device) -> Tensor:
        """Return one of `constants`, which are computed once for each device.

        They are no buffers, because programs that create a module without memory and fill it from a file leave random
        numbers in buffers that the file does not have.
        """
        if is_observed() or in_dispatch_mode():
            return self.constants(device)[name]
        if device not in self._constants:
            with torch.inference_mode(False):  # autograd will save them
                self._constants[device] = self.constants(device)
        return self._constants[device][name]

    @property
    def moves_every(self) -> int | None:
        """The updates after which `move` is due, for a map with a base that follows its matrix; see `move_bases`."""
        return None

    def move(self, *raw: Tensor) -> None:
        """Move the base to the present matrix, and change the numbers so that the matrix stays as it is."""

    def project(self, *raw: Tensor) -> None:
        """Bring the numbers back, in place, to where they may be, after an update; see `move_bases`."""

    def reset_buffers(self) -> None:
        """Write the initial values into the buffers, for a map that has any."""
        for child in self._modules.values():
            if isinstance(child, Map):
                child.reset_buffers()

    def need_square(self) -> None:
        """Raise a ValueError if rows and columns differ."""
        if self.rows != self.columns:
            raise ValueError(f"{type(self).__name__} needs a square matrix, got {self.rows} x {self.columns}")

    # Defined by a subclass: the equation, its inverse and its starting value.

    @property
    def raw_shapes(self) -> tuple[tuple[int, ...], ...]:
        """The shapes of the free numbers of one model."""
        raise NotImplementedError

    def matrix(self, *raw: Tensor) -> Tensor:
        """Return the matrix ``(..., rows, columns)`` of the free numbers; by default by `evaluate` and `vjp`.

        `plain` takes their place under compilers, tracers, `torch.func` and forward mode.
        """
        return self.plain(*raw) if is_observed() or raw[0].is_meta else _ByHand.apply(self, *raw)

    def evaluate(self, *raw: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return the matrix, and the tensors that `vjp` needs besides it."""
        raise NotImplementedError

    def vjp(self, G: Tensor, W: Tensor, *saved: Tensor) -> tuple[Tensor, ...]:
        """Return the gradients of the free numbers, from the gradient G of the matrix W."""
        raise NotImplementedError

    def plain(self, *raw: Tensor) -> Tensor:
        """Return the matrix by operations that torch can differentiate to any order: what tests compare `vjp` with."""
        raise NotImplementedError

    def inverse(self, matrix: Tensor) -> tuple[Tensor, ...]:
        """Return free numbers that give `matrix`, or raise a ValueError that says why there are none."""
        raise NotImplementedError

    def start(self, generator: torch.Generator | None = None) -> tuple[Tensor, ...]:
        """Return the free numbers of a new layer, in float32 on the CPU."""
        raise NotImplementedError

    # Provided for every map.

    def forward(self, *raw: Tensor) -> Tensor:
        if not raw[0].is_meta and torch.is_autocast_enabled(raw[0].device.type):
            with torch.autocast(raw[0].device.type, enabled=False):
                return self.forward(*raw)
        if not is_observed() and not self._checked:
            self._check_first_write(raw)
        replayed = self._replay(raw) if raw[0].is_cuda else None
        return self.last.get(self, raw, self.compute) if replayed is None else replayed

    def _check_first_write(self, raw: tuple[Tensor, ...]) -> None:
        """Check the numbers once, when they have changed for the first time: that is when a user initialises them."""
        version = sum(0 if r.is_inference() else r._version for r in raw)
        if self._first_version is None:
            self._first_version = version
        elif version != self._first_version:
            self._checked = True
            warn_of_orthogonal(type(self).__name__, raw, self.stiefel)

    def _replay(self, raw: tuple[Tensor, ...]) -> Tensor | None:
        """Return the matrix by a captured CUDA graph; None in the first calls and inside another capture."""
        if not self.capturable or is_observed() or torch.cuda.is_current_stream_capturing():
            return None
        if any(type(r) not in (Tensor, nn.Parameter) for r in raw):  # subclasses of tensors may redefine operations
            return None
        device = raw[0].device
        # With the settings, as a margin may be changed later.
        key = (stream_id(device), device, self.extra_repr(), raw[0].dtype, *(r.shape for r in raw))
        if self.needs_recapture(*raw):
            self.graphs.clear(ready=key)
        captured = self.graphs.get(key, device, lambda: self._capture(raw), lambda: self.captured_range)
        return captured(self._compute_tuple, raw)[0] if captured is not None and captured.available else None

    def _capture(self, raw: tuple[Tensor, ...]) -> CapturedFunction:
        with torch.inference_mode(False), torch.enable_grad():
            self.prepare_capture(*raw)
            return CapturedFunction(self._compute_tuple, raw, requires_grad=[True] * len(raw))

    def _compute_tuple(self, *raw: Tensor) -> tuple[Tensor]:
        return (self.compute(*raw),)

    def compute(self, *raw: Tensor) -> Tensor:
        """Return the matrix in the dtype of the numbers, by the operations of `matrix`."""
        check_shapes(type(self).__name__, raw, self.raw_shapes)
        matrix, dtype = self.matrix(*self.full(*raw)), raw[0].dtype
        if self.orthogonal and (matrix.dtype, dtype) == (torch.float64, torch.float32):
            nearest = matrix.float()
            # Rounding leaves the gradient unchanged.
            return nearest + (rounded(matrix.detach()) - nearest.detach())
        # There is no complex bfloat16: a complex matrix of half-precision numbers stays in complex64.
        return matrix.to(COMPLEX.get(dtype, matrix.dtype) if matrix.is_complex() else dtype)

    def right_inverse(self, matrix: Tensor) -> Tensor | tuple[Tensor, ...]:
        if matrix.shape[-2:] != (self.rows, self.columns):
            raise ValueError(
                f"{type(self).__name__} makes matrices of {self.rows} x {self.columns}, got one of shape "
                f"{tuple(matrix.shape)}"
            )
        self.graphs.clear()
        self._checked = True
        full = matrix.float() if matrix.dtype in HALF else matrix
        raw = tuple(r.to(matrix.dtype.to_real()) for r in self.inverse(full.detach()))
        return raw[0] if len(raw) == 1 else raw

    def product(self, h: Tensor, *raw: Tensor) -> Tensor:
        """Return ``h Wᵀ`` for rows h ``(..., columns)``, without forming W where that is cheaper."""
        return h @ self(*raw).mT

    def full(self, *raw: Tensor) -> tuple[Tensor, ...]:
        """Return the numbers in the dtype in which the matrix is computed."""
        if self.precision is not None:
            return tuple(r.to(PRECISIONS[self.precision]) for r in raw)
        return tuple(r.float() for r in raw) if raw[0].dtype in HALF else raw

    @property
    def parameter_count(self) -> int:
        """How many free numbers one matrix takes."""
        return sum(torch.Size(shape).numel() for shape in self.raw_shapes)

    @property
    def rates(self) -> tuple[float, ...]:
        """The factor of the learning rate for each raw tensor; see `parameter_groups`."""
        return (1.0,) * len(self.raw_shapes)

    @property
    def stiefel(self) -> tuple[bool, ...]:
        """Which raw tensors must keep orthonormal columns, and so need an optimiser such as `GeodesicSGD`."""
        return (False,) * len(self.raw_shapes)

    def extra_repr(self) -> str:
        return f"{self.rows}, {self.columns}" if self.rows != self.columns else f"{self.rows}"


class _ByHand(torch.autograd.Function):
    """`Map.evaluate` with `Map.vjp` as its gradient."""

    @staticmethod
    def forward(ctx: Any, map: Map, *raw: Tensor) -> Tensor:
        with ieee_products(raw[0]):
            W, saved = map.evaluate(*raw)
        ctx.map, ctx.count = map, len(raw)
        ctx.save_for_backward(*raw, W, *saved)
        return W

    @staticmethod
    def backward(ctx: Any, G: Tensor) -> tuple[Tensor | None, ...]:
        tensors = ctx.saved_tensors  # read once: `torch.utils.checkpoint` returns each tensor a single time
        raw, (W, *saved) = tensors[: ctx.count], tensors[ctx.count :]
        if torch.is_grad_enabled() or is_batched_gradient(G):
            needed = ctx.needs_input_grad[1:]
            return None, *recomputed_gradients(lambda *raw: (ctx.map.plain(*raw),), raw, needed, [G])
        # The ten bits of TF32 are enough for a gradient of a layer; after some twenty products they are not.
        with torch.autocast(W.device.type, enabled=False), ieee_products(W):
            return None, *ctx.map.vjp(G.to(W.dtype), W, *saved)
