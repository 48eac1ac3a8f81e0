"""The recurrence of any cell as one operator of torch, with a backward pass over the whole sequence.

No autograd graph is built for each step: the step's own gradient runs from the last step to the first, and weight
gradients are products over all steps at the end. Compiled code does the work on a CPU, kernels do on a GPU, and torch
operations where there is neither.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from evenflow.maps.differentiated import ieee_products
from evenflow.scan import backend
from evenflow.scan.backend import LINEARIZED
from evenflow.scan.compiled_step import CompiledStep, compiled_step
from evenflow.scan.operator import batched, one_by_one, operator, plain_tensors, without_autocast
from evenflow.scan.storage import HALF
from evenflow.step import text
from evenflow.step.compute import Values, blocks, leaves, row
from evenflow.step.compute import step as one_step
from evenflow.step.tangent import tangent

Again = Callable[[], Tensor]


def _run_forward(
    a: Tensor,
    states: Sequence[Tensor],
    matrices: Sequence[Tensor],
    parameters: Sequence[Tensor],
    tap: Tensor | None,
    step: str,
    batch_sizes: Sequence[int] | None,
    engine: str,
) -> list[Tensor]:
    """All states, each ``(M, T, B, size)``, then what else the backward pass needs of every step: numbers and marks.

    Args:
        a: ``(M, T, B, size)``; states: each ``(M, B, size)``; matrices: each ``(M, rows, columns)``; parameters: those
            that the step is called with, each ``(M, size)``.
        tap: zeros, there for its gradient alone, and so not added.
        step: the text of a program, see `step.text`.
    """
    ready, wide = _widened([a, *states, *matrices, *parameters])
    a_wide, *rest = ready
    made = compiled_step(step)
    given = _parts(made, rest)
    run = backend.choose(made, engine, matrices[0] if matrices else a, ready)
    new, kept, marks = run.forward(made, a_wide, *given, batch_sizes)
    if wide:
        new, kept = [s.to(a.dtype) for s in new], kept.to(a.dtype)
    return [*new, kept, marks]


def _run_backward(
    grads: Sequence[Tensor | None],
    a: Tensor,
    states: Sequence[Tensor],
    matrices: Sequence[Tensor],
    parameters: Sequence[Tensor],
    results: Sequence[Tensor],
    step: str,
    batch_sizes: Sequence[int] | None,
    want_tap: bool,
    engine: str,
) -> list[Tensor]:
    """Gradients by a, the states, the matrices, the parameters and (where wanted, else empty) every first state.

    A missing gradient by a state counts as zeros; a is empty where the step does not read it going back.
    """
    made = compiled_step(step)
    count = len(states)
    stored = [*states, *matrices, *parameters, *results[: count + 1]]
    several, wide = _widened([a, *stored, *(g for g in grads if g is not None)])
    a_wide, *rest = several
    given, after = _parts(made, rest), rest[len(states) + len(matrices) + len(parameters) :]
    new, kept = after[:count], after[count]
    arriving = iter(after[count + 1 :])
    by_new = [None if g is None else next(arriving) for g in grads]
    run = backend.choose(made, engine, matrices[0] if matrices else new[0], [v for v in several if v.numel()])
    d_a, d_states, d_matrices, d_parameters, tap = run.backward(
        made, by_new, a_wide, *given, new, kept, results[count + 1], batch_sizes, want_tap
    )
    present = [d for d in d_parameters if d is not None]
    found = [d_a, *d_states, *d_matrices, *present, new[0].new_empty(0) if tap is None else tap]
    if wide:
        likes = [results[0], *states, *matrices, *parameters, results[0]]
        found = [d.to(like.dtype) for d, like in zip(found, likes, strict=True)]
    return found


def _widened(tensors: Sequence[Tensor]) -> tuple[list[Tensor], bool]:
    """The tensors contiguous, and in float32, or float64 where others are, if any is in half precision."""
    wide = any(v.dtype in HALF for v in tensors)
    full = torch.float64 if any(v.dtype == torch.float64 for v in tensors) else torch.float32
    return [(v.to(full) if wide and v.dtype in HALF else v).contiguous() for v in tensors], wide


def _parts(step: CompiledStep, tensors: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor], list[Tensor | None]]:
    """States, matrices, and parameters with None for those that the step is called without."""
    program = step.program
    states, matrices = len(program.states), len(program.matrices)
    listed = iter(tensors[states + matrices :])
    parameters = [next(listed) if nodes else None for nodes in program.parameters]
    return list(tensors[:states]), list(tensors[states : states + matrices]), parameters


def _fake(a: Tensor, states, matrices, parameters, tap, step: str, batch_sizes, engine) -> list[Tensor]:  # type: ignore[no-untyped-def]
    made, lead = compiled_step(step), a.shape[:-1]
    new = [a.new_empty(*lead, size) for size in made.state_sizes]
    return [*new, a.new_empty(*lead, made.kept_size), a.new_empty(*lead, made.marks_size, dtype=torch.int8)]


def _fake_backward(  # type: ignore[no-untyped-def]
    grads, a: Tensor, states, matrices, parameters, results, step: str, batch_sizes, want_tap: bool, engine
) -> list[Tensor]:
    made, like = compiled_step(step), results[0]
    d_a = like.new_empty(*like.shape[:-1], sum(v.width for v in made.program.a))
    rest = [torch.empty_like(v, memory_format=torch.contiguous_format) for v in (*states, *matrices, *parameters)]
    return [d_a, *rest, torch.empty_like(like) if want_tap else like.new_empty(0)]


recurrence_backward = operator(
    "recurrence_backward",
    "(Tensor?[] grads, Tensor a, Tensor[] states, Tensor[] matrices, Tensor[] parameters, Tensor[] results, str step, "
    "int[]? batch_sizes, bool want_tap, str engine) -> Tensor[]",
    _run_backward,
    _fake_backward,
)


def _backward(*given: Any) -> list[Tensor]:
    tensors = [v for each in given for v in (each if isinstance(each, list | tuple) else [each])]
    if not torch.is_grad_enabled() and plain_tensors(tensors):
        return _run_backward(*given)
    if not torch.compiler.is_compiling() and any(map(batched, given[0])):
        return one_by_one(lambda grads: _run_backward(grads, *given[1:]), given[0])
    return recurrence_backward(*given)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Sequence[Tensor]) -> None:
    a, states, matrices, parameters, tap, step, batch_sizes, engine = inputs
    ctx.settings, ctx.tapped = (step, batch_sizes, engine), tap is not None
    ctx.counts = (len(states), len(matrices), len(parameters))
    kept_a = a if compiled_step(step).reads_a else a.new_empty(0)
    ctx.save_for_backward(kept_a, *states, *matrices, *parameters, *output)
    ctx.set_materialize_grads(False)  # those of what is kept would be as many zeros


def _autograd(ctx: Any, grads: Sequence[Tensor | None]) -> tuple[Any, ...]:
    step, batch_sizes, engine = ctx.settings
    a, *rest = ctx.saved_tensors  # once: `torch.utils.checkpoint` gives each out a single time
    states, matrices, parameters, results = _split(rest, ctx.counts)
    by_new = list(grads[: len(states)])
    if all(g is None for g in by_new):
        return None, [None] * len(states), [None] * len(matrices), [None] * len(parameters), *(None,) * 4
    found = _backward(by_new, a, states, matrices, parameters, results, step, batch_sizes, ctx.tapped, engine)
    d_a, *others = found
    d_states, d_matrices, d_parameters, (tap,) = _split(others, ctx.counts)
    # None, not zeros, as autograd says of what was detached.
    moves = compiled_step(step).places.state_moves
    d_states = [d if moves(i) else None for i, d in enumerate(d_states)]
    return d_a, d_states, d_matrices, d_parameters, tap if ctx.tapped else None, None, None, None


def _split(tensors: Sequence[Any], counts: Sequence[int]) -> list[list[Any]]:
    found, at = [], 0
    for count in counts:
        found.append(list(tensors[at : at + count]))
        at += count
    return [*found, list(tensors[at:])]


recurrence = operator(
    "recurrence",
    "(Tensor a, Tensor[] states, Tensor[] matrices, Tensor[] parameters, Tensor? tap, str step, int[]? batch_sizes, "
    "str engine) -> Tensor[]",
    _run_forward,
    _fake,
    _setup,
    _autograd,
)


class _Direct(torch.autograd.Function):
    """The operator for plain tensors, without the time that torch takes to find it; its gradient has one of its own."""

    @staticmethod
    def forward(
        ctx: Any, settings: tuple[Any, ...], counts: Any, again: Again | None, results: Any, *tensors: Tensor
    ) -> Any:
        tap, a, *rest = tensors
        states, matrices, parameters, _ = _split(rest, counts)
        given = (a, states, matrices, parameters, tap, *settings)
        found = _run_forward(*given) if results is None else [r.detach() for r in results]
        _setup(ctx, given, found)
        ctx.again = again
        if again is None and ctx.needs_input_grad[5]:
            ctx.given_a = a
        return tuple(found)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        if torch.is_grad_enabled():
            d_a, d_states, d_matrices, d_parameters, tap = _differentiable(ctx, grads)
        else:
            d_a, d_states, d_matrices, d_parameters, tap, *_ = without_autocast(_autograd)(ctx, grads)
        return None, None, None, None, tap, d_a, *d_states, *d_matrices, *d_parameters


def _differentiable(ctx: Any, grads: Sequence[Tensor | None]) -> tuple[Any, ...]:
    """The gradients as functions of everything, for second derivatives: those of the loop that defines the scan."""
    step, batch_sizes, engine = ctx.settings
    kept_a, *rest = ctx.saved_tensors
    states, matrices, parameters, results = _split(rest, ctx.counts)
    if engine == LINEARIZED and not ctx.tapped:
        held = [v.detach() for v in (kept_a, *rest)]
        found = _Pullback.apply(
            ctx.settings, ctx.counts, ctx.again or ctx.given_a, len(states), *grads[: len(states)], *held
        )
        d_a, *others = found
        return d_a, *_split(others, ctx.counts)[:3], None
    a = kept_a if kept_a.dim() > 1 else ctx.given_a if ctx.again is None else ctx.again()
    with torch.enable_grad():
        tap = torch.zeros_like(results[0], requires_grad=True) if ctx.tapped else None
        new = loop(compiled_step(step), a, states, matrices, parameters, batch_sizes, tap)
    paths = [(s, g) for s, g in zip(new, grads, strict=False) if g is not None and s.requires_grad]
    inputs = [a, *states, *matrices, *parameters, *([] if tap is None else [tap])]
    moving = [v for v in inputs if v.requires_grad]
    outputs, arriving = zip(*paths, strict=True) if paths else ((), ())
    found = torch.autograd.grad(outputs, moving, arriving, create_graph=True, allow_unused=True) if paths else []
    by_input = dict(zip(map(id, moving), found, strict=True))
    d_a, *others = (by_input.get(id(v)) for v in inputs)
    d_states, d_matrices, d_parameters, d_tap = _split(others, ctx.counts)
    return d_a, d_states, d_matrices, d_parameters, d_tap[0] if d_tap else None


def loop(
    made: CompiledStep,
    a: Tensor,
    states: Sequence[Tensor],
    matrices: Sequence[Tensor],
    parameters: Sequence[Tensor],
    batch_sizes: Sequence[int] | None,
    tap: Tensor | None = None,
) -> list[Tensor]:
    """All states by one step after another, in operations that torch differentiates as often as one likes."""
    *_, listed = _parts(made, [*states, *matrices, *parameters])
    rows, before, every = a.shape[2], list(states), []
    for t in range(a.shape[1]):
        n = rows if batch_sizes is None else batch_sizes[t]
        cut = [s[:, :n] for s in before]
        before = list(one_step(made.program, made.forward_plan, a[:, t, :n], cut, matrices, listed))
        if tap is not None:
            before[0] = before[0] + tap[:, t, :n]
        every.append([torch.nn.functional.pad(s, (0, 0, 0, rows - n)) for s in before])
    return [torch.stack(member, 1) for member in zip(*every, strict=True)]


class _Pullback(torch.autograd.Function):
    """The backward pass as a function of what arrives alone, in which it is linear; weights and states are held.

    Its own gradient is how small changes of a, the weights and the first states spread from the first step to the last:
    the scan of the step's `tangent`.
    """

    @staticmethod
    def forward(ctx: Any, settings: Any, counts: Any, a: Again | Tensor, states: int, *given: Tensor | None) -> Any:
        grads, (kept_a, *rest) = given[:states], given[states:]
        ctx.settings, ctx.counts, ctx.a, ctx.states = settings, counts, a, states
        ctx.save_for_backward(*rest)
        step, batch_sizes, _ = settings
        assert kept_a is not None
        states_before, matrices, parameters, results = _split(rest, counts)
        held = (kept_a, states_before, matrices, parameters, results)
        found = _run_backward(list(grads), *held, step, batch_sizes, False, "auto")
        return tuple(found[:-1])

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *moves: Tensor | None) -> Any:
        step, batch_sizes, _ = ctx.settings
        rest = ctx.saved_tensors
        states, matrices, parameters, _ = _split(rest, ctx.counts)
        a = ctx.a() if callable(ctx.a) else ctx.a
        held = [a, *states, *matrices, *parameters]
        moved = [torch.zeros_like(v) if m is None else m for v, m in zip(held, moves, strict=True)]
        d_a, *others = moved
        d_states, d_matrices, d_parameters, _ = _split(others, ctx.counts)
        found = _run_forward(
            torch.cat([a, d_a], -1),
            [*states, *d_states],
            [*matrices, *d_matrices],
            [*parameters, *d_parameters],
            None,
            _tangent(step),
            batch_sizes,
            "auto",
        )
        wanted = ctx.needs_input_grad[4:]
        tangents = [s if want else None for s, want in zip(found[len(states) : 2 * len(states)], wanted, strict=False)]
        return None, None, None, None, *tangents, *(None,) * (1 + len(rest))


def with_derived(step: str, parameters: Sequence[Tensor | None]) -> list[Tensor]:
    """The parameters that the operator takes: those given, then what the step computes from them alone."""
    present = [p for p in parameters if p is not None]
    if not text.has_derived(step):
        return present
    return [*present, *(_derived(present, step) if plain_tensors(present) else prelude(present, step))]


def _derived(present: Sequence[Tensor], step: str) -> list[Tensor]:
    made, listed = compiled_step(step), iter(present)
    program = made.program
    values: Values = {}
    for nodes in program.parameters[: -len(made.program.derived)]:
        values |= blocks(next(listed) if nodes else None, nodes)
    made.prelude_plan(values, [], present[0])
    return [row(values, [v], present[0].shape[:-1]).contiguous() for v in program.derived]


def _derived_again(ctx: Any, grads: Sequence[Tensor | None]) -> tuple[Any, ...]:
    with torch.enable_grad():
        present = [p.detach().requires_grad_() for p in ctx.saved_tensors]
        paths = [(d, g) for d, g in zip(_derived(present, ctx.step), grads, strict=True) if g is not None]
        outputs, arriving = zip(*paths, strict=True) if paths else ((), ())
        return list(torch.autograd.grad(outputs, present, arriving, allow_unused=True, materialize_grads=True)), None


def _setup_derived(ctx: Any, inputs: tuple[Any, ...], output: Sequence[Tensor]) -> None:
    ctx.save_for_backward(*inputs[0])
    ctx.step = inputs[1]


def _fake_derived(present: Sequence[Tensor], step: str) -> list[Tensor]:
    like = present[0]
    return [like.new_empty(*like.shape[:-1], v.width) for v in compiled_step(step).program.derived]


# For compilers and tracers, which need not follow the reading of a program.
prelude = operator(
    "prelude", "(Tensor[] parameters, str step) -> Tensor[]", _derived, _fake_derived, _setup_derived, _derived_again
)


@functools.lru_cache(256)
def _tangent(step: str) -> str:
    return text.write(tangent(compiled_step(step).program))


def scan(
    step: str,
    a: Tensor,
    states: Sequence[Tensor],
    matrices: Sequence[Tensor],
    parameters: Sequence[Tensor],
    tap: Tensor | None = None,
    batch_sizes: Sequence[int] | None = None,
    engine: str = "auto",
    again: Again | None = None,
    results: Sequence[Tensor] | None = None,
) -> list[Tensor]:
    """What the operator gives, without its price where nobody but autograd follows.

    Args:
        again: makes a once more, for second derivatives; without it a itself is held.
        results: what it gives, where that is known: nothing runs until the backward pass.
    """
    tensors = [v for v in (tap, a, *states, *matrices, *parameters) if v is not None]
    settings = (step, batch_sizes, engine)
    if results is None and not plain_tensors(tensors):
        return recurrence(a, list(states), list(matrices), list(parameters), tap, *settings)
    counts = (len(states), len(matrices), len(parameters))
    return list(_Direct.apply(settings, counts, again, results, tap, a, *states, *matrices, *parameters))


def known_results(step: str, new: Sequence[Tensor], a: Tensor, states: Sequence[Tensor], matrices: Sequence[Tensor],
                  parameters: Sequence[Tensor]) -> list[Tensor]:  # fmt: skip
    """What a scan gives besides the states, found from all of them: no step waits for another."""
    made = compiled_step(step)
    places, program = made.places, made.program
    with torch.no_grad(), ieee_products(a):
        *_, listed = _parts(made, [*states, *matrices, *parameters])
        before = [torch.cat([first.unsqueeze(1), s[:, :-1]], 1) for first, s in zip(states, new, strict=True)]
        lead = a.shape[:-1]
        values = leaves(program, a.flatten(1, 2), [s.flatten(1, 2) for s in before], listed)
        made.keeping_plan(values, matrices, a)
        rows = a.flatten(1, 2).shape[:-1]
        kept = row(values, places.kept, rows) if places.kept else a.new_empty(*rows, 0)
        marks = (
            row(values, places.marks, rows).to(torch.int8)
            if places.marks
            else kept.new_empty(*rows, 0, dtype=torch.int8)
        )
        return [*new, *(v.contiguous().unflatten(1, lead[1:]) for v in (kept, marks))]
