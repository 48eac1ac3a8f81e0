"""Every engine against the step itself, called once per time step and differentiated by autograd, on random steps.

EVENFLOW_EXAMPLES=2000 pytest tests/step/test_random_steps.py
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st
from random_steps import Step, smallest, steps
from torch import Tensor

from evenflow.runtime import compile_c
from evenflow.scan import cpu, derived_parameters, recurrence, torch_operations
from evenflow.scan.compiled_step import CompiledStep
from evenflow.scan.engine import ScanInputs, scan_gradients
from evenflow.step import Untranslatable, compute, hoisted, program_text, translate
from evenflow.step.program import flat
from evenflow.step.tangent import tangent

# What runs a compiled step, each with `forward` and `backward`, and how many random steps it is put through.
ENGINES: dict[str, tuple[Any, int]] = {"torch": (torch_operations, 100), "c": (cpu, 40)}
OFF = 1e-9  # of the largest number of a tensor; float64, a few steps, no step that makes much of small differences
SLOW = [
    HealthCheck.too_slow,
    HealthCheck.data_too_large,
    HealthCheck.filter_too_much,
    HealthCheck.function_scoped_fixture,
]


def examples(number: int) -> Any:
    number = int(os.environ.get("EVENFLOW_EXAMPLES", number))
    # What fails is made smaller by `smallest`, in seconds.
    phases = [Phase.explicit, Phase.reuse, Phase.generate]
    return settings(max_examples=number, deadline=None, suppress_health_check=SLOW, phases=phases)


@dataclass(frozen=True)
class Run:
    """What a step is run on: sizes, ragged lengths, which states' gradients arrive, and a seed for the numbers."""

    models: int
    steps: int
    batch: int
    batch_sizes: tuple[int, ...] | None
    arriving: tuple[bool, ...]
    tap: bool
    seed: int


@st.composite
def runs(draw: Any) -> Run:
    length, batch = draw(st.integers(1, 5)), draw(st.integers(1, 5))
    ragged = draw(st.none() | st.lists(st.integers(1, batch), min_size=length, max_size=length))
    sizes = None if ragged is None else tuple(sorted([batch, *ragged[1:]], reverse=True))
    arriving = draw(st.tuples(*[st.sampled_from([True, True, False])] * 3))
    return Run(draw(st.integers(1, 2)), length, batch, sizes, arriving, draw(st.booleans()), draw(st.integers(0, 99)))


def compiled(step: Step) -> CompiledStep:
    return CompiledStep(
        program_text.write(translate(step.function, step.a, step.states, step.matrices, step.parameters))
    )


def numbers(
    step: Step, run: Run
) -> tuple[Tensor, list[Tensor], list[Tensor], list[Tensor | None], list[Tensor | None]]:
    """a, the states before, the matrices, the parameters and the gradients that arrive."""
    generator = torch.Generator().manual_seed(run.seed)

    def some(*shape: int, scale: float = 1.0) -> Tensor:
        return scale * torch.randn(run.models, *shape, generator=generator, dtype=torch.float64)

    a = some(run.steps, run.batch, step.a)
    states = [some(run.batch, size, scale=0.5) for size in step.states]
    matrices = [some(*shape, scale=0.7 / shape[1] ** 0.5) for shape in step.matrices]
    parameters = [None if size is None else some(size, scale=0.5) for size in step.parameters]
    arriving: list[Tensor | None] = [some(run.steps, run.batch, size) for size in step.states]
    wanted = [g if on else None for g, on in zip(arriving, run.arriving, strict=False)]
    return a, states, matrices, parameters, wanted if any(g is not None for g in wanted) else arriving


def by_autograd(step: Step, run: Run, given: Any) -> dict[str, Tensor]:
    """States and gradients by the step called once per time step, for one model after the other."""
    a, states, matrices, parameters, arriving = given
    every: list[dict[str, Tensor]] = []
    for m in range(run.models):
        leaf = lambda v: None if v is None else v[m].clone().requires_grad_()  # noqa: B023, E731
        inputs = {"a": leaf(a), "tap": torch.zeros(run.steps, run.batch, step.states[0]).double().requires_grad_()}
        inputs |= {f"state {i}": leaf(v) for i, v in enumerate(states)}
        inputs |= {f"matrix {i}": leaf(v) for i, v in enumerate(matrices)}
        inputs |= {f"parameter {i}": leaf(v) for i, v in enumerate(parameters)}
        before = [inputs[f"state {i}"] for i in range(len(states))]
        held = [v for name, v in inputs.items() if name.startswith(("matrix", "parameter"))]
        rows = []
        for t in range(run.steps):
            n = run.batch if run.batch_sizes is None else run.batch_sizes[t]
            before = list(step.function(inputs["a"][t, :n], *(s[:n] for s in before), *held))
            before = [s.expand(n, size) for s, size in zip(before, step.states, strict=True)]
            before[0] = before[0] + inputs["tap"][t, :n]
            rows.append([torch.nn.functional.pad(s, (0, 0, 0, run.batch - n)) for s in before])
        new = [torch.stack(each) for each in zip(*rows, strict=True)]
        loss = sum((s * g[m]).sum() for s, g in zip(new, arriving, strict=True) if g is not None)
        moving = {name: v for name, v in inputs.items() if v is not None}
        known = [None] * len(moving)
        if isinstance(loss, Tensor) and loss.requires_grad:
            known = torch.autograd.grad(loss, list(moving.values()), allow_unused=True)
        found = {f"new {i}": s.detach() for i, s in enumerate(new)}
        for (name, v), g in zip(moving.items(), known, strict=True):
            found[f"gradient by {name}"] = torch.zeros_like(v) if g is None else g
        every.append(found)
    return {name: torch.stack([each[name] for each in every]) for name in every[0]}


def by_engine(engine: Any, made: CompiledStep, run: Run, given: Any) -> dict[str, Tensor]:
    a, states, matrices, parameters, arriving = given
    sizes = None if run.batch_sizes is None else list(run.batch_sizes)
    outputs = engine.forward(ScanInputs(made, a, states, matrices, parameters, sizes))
    found = {f"new {i}": s for i, s in enumerate(outputs.states)}
    read = a if made.reads_a else a.new_empty(0)  # as the operator gives it
    inputs = ScanInputs(made, read, states, matrices, parameters, sizes)
    d_a, d_states, d_matrices, d_parameters, tap = scan_gradients(engine, inputs, outputs, arriving, run.tap)
    found["gradient by a"] = d_a
    assert (tap is not None) == run.tap
    if tap is not None:
        found["gradient by tap"] = tap
    for kind, several in (("state", d_states), ("matrix", d_matrices), ("parameter", d_parameters)):
        found |= {f"gradient by {kind} {i}": g for i, g in enumerate(several) if g is not None}
    return found


def differences(got: dict[str, Tensor], wanted: dict[str, Tensor]) -> list[str]:
    said = []
    for name, mine in got.items():
        other = wanted[name]
        if mine.shape != other.shape:
            said.append(f"{name}: shape {tuple(mine.shape)}, not {tuple(other.shape)}")
            continue
        off = (mine - other).abs().max().item() / max(1.0, other.abs().max().item())
        if not off <= OFF:
            said.append(f"{name}: off by {off:.1e}")
    missing = wanted.keys() - got.keys() - {"gradient by tap"}
    return said + [f"{name}: missing" for name in sorted(missing)]


@pytest.fixture(autouse=True)
def quick_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Code that is compiled fast and thrown away: it runs for a few steps."""
    monkeypatch.setattr(compile_c, "FLAGS", compile_c.FLAGS.replace("-O3", "-O1"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "compiled"))
    yield
    cpu.library.cache_clear()


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name == "c" else ()) for name in ENGINES]
)
def test_engines_are_the_step(name: str) -> None:
    engine, number = ENGINES[name]
    if engine is cpu and cpu.library() is None:
        pytest.skip("there is no C compiler")

    @examples(number)
    @given(steps(), runs())
    def hold(step: Step, run: Run) -> None:
        said = wrong(engine, step, run)
        if said:
            least = smallest(step, lambda other: kind(wrong(engine, other, run)) == kind(said))
            pytest.fail(f"{said}\n{run}\n{least}, which is off by\n{wrong(engine, least, run)}", pytrace=False)

    hold()


def kind(said: list[str]) -> str:
    """What went wrong, without the numbers."""
    return "" if not said else "numbers" if "off by" in said[0] else re.sub(r"n?\d+", "", said[0])[:60]


def wrong(engine: Any, step: Step, run: Run) -> list[str]:
    """What an engine does otherwise than the step; errors are among it where the step has none."""
    values = numbers(step, run)
    wanted = by_autograd(step, run, values)
    if not all(v.isfinite().all() for v in wanted.values()):
        return []
    try:
        made = compiled(step)
        if engine is cpu:
            assert cpu.runs(made, values[0]), "what was written could not be compiled"
        return differences(by_engine(engine, made, run, values), wanted)
    except Exception as error:
        return failed(error)


def failed(error: Exception) -> list[str]:
    """An error as a difference; a step of very many blocks is refused, and left to the loop."""
    known = isinstance(error, Untranslatable) and "a state cut into that many pieces" in str(error)
    return [] if known else [f"{type(error).__name__}: {error}"]


@examples(60)
@given(steps(), runs())
def test_the_operator_is_the_step(step: Step, run: Run) -> None:
    """As a layer runs it: what depends on parameters alone comes from before the scan, autograd asks for gradients."""
    said = operated(step, run)
    if said:
        least = smallest(step, lambda other: kind(operated(other, run)) == kind(said))
        pytest.fail(f"{said}\n{run}\n{least}, which is off by\n{operated(least, run)}", pytrace=False)


def operated(step: Step, run: Run) -> list[str]:
    values = numbers(step, run)
    wanted = by_autograd(step, run, values)
    if not all(v.isfinite().all() for v in wanted.values()):
        return []
    try:
        return differences(by_operator(step, run, values), wanted)
    except Exception as error:
        return failed(error)


def by_operator(step: Step, run: Run, given: Any) -> dict[str, Tensor]:
    program = hoisted(translate(step.function, step.a, step.states, step.matrices, step.parameters))
    source = program_text.write(program)
    a, states, matrices, parameters, arriving = given
    inputs = {"a": a, "tap": torch.zeros(run.models, run.steps, run.batch, step.states[0]).double()}
    for name, several in (("state", states), ("matrix", matrices), ("parameter", parameters)):
        inputs |= {f"{name} {i}": v for i, v in enumerate(several) if v is not None}
    inputs = {name: v.clone().requires_grad_() for name, v in inputs.items()}
    before, held, listed = (
        [inputs[f"{name} {i}"] for i, v in enumerate(several) if v is not None]
        for name, several in (("state", states), ("matrix", matrices), ("parameter", parameters))
    )
    sizes = None if run.batch_sizes is None else list(run.batch_sizes)
    present = iter(listed)
    derived = derived_parameters.with_derived(source, [None if p is None else next(present) for p in parameters])
    tap = inputs["tap"] if run.tap else None
    new = recurrence.fused_scan(source, inputs["a"], before, held, derived, tap, sizes, "torch")[: len(states)]
    found = {f"new {i}": s.detach() for i, s in enumerate(new)}
    loss = sum((s * g).sum() for s, g in zip(new, arriving, strict=True) if g is not None)
    assert isinstance(loss, Tensor)
    gradients = torch.autograd.grad(loss, list(inputs.values()), allow_unused=True)
    for (name, v), g in zip(inputs.items(), gradients, strict=True):
        if name != "tap" or run.tap:
            found[f"gradient by {name}"] = torch.zeros_like(v) if g is None else g
    return found


def translated(step: Step) -> CompiledStep:
    try:
        return compiled(step)
    except Untranslatable as why:
        assume("a state cut into that many pieces" not in str(why))
        raise


@examples(100)
@given(steps())
def test_text_is_the_program(step: Step) -> None:
    made = translated(step)
    assert program_text.write(program_text.read(made.text)) == made.text
    lifted = program_text.write(hoisted(made.program))
    assert program_text.write(program_text.read(lifted)) == lifted


@examples(100)
@given(steps(), runs())
def test_tangent_is_forward_differentiation(step: Step, run: Run) -> None:
    made = translated(step)
    (a, states, matrices, parameters, _), (d_a, d_states, d_matrices, d_parameters, _) = (
        numbers(step, seeded) for seeded in (run, Run(**{**run.__dict__, "seed": run.seed + 1000}))
    )
    moved = tangent(made.program)
    plan = compute.Evaluator(flat(moved.new), [*moved.a, *flat(moved.states), *flat(moved.parameters)], moved.products)
    pairs = lambda one, other: [*one, *other]  # noqa: E731
    found = compute.step(
        moved, plan, torch.cat([a[:, 0], d_a[:, 0]], -1), pairs(states, d_states), pairs(matrices, d_matrices),
        pairs(parameters, d_parameters),
    )  # fmt: skip
    given_parameters = [p for p in parameters if p is not None]

    def once(a: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        before, held, listed = _parted(rest, len(states), len(matrices))
        given = iter(listed)
        several = [None if p is None else next(given) for p in parameters]
        return step.function(a, *before, *held, *several)

    for m in range(run.models):
        at = [v[m] for v in (a[:, 0], *states, *matrices, *given_parameters)]
        moves = [v[m] for v in (d_a[:, 0], *d_states, *d_matrices, *(p for p in d_parameters if p is not None))]
        values, directions = torch.func.jvp(once, tuple(at), tuple(moves))
        wanted = {
            f"{kind} {i}": v for kind, each in (("value", values), ("move", directions)) for i, v in enumerate(each)
        }
        got = [f[m] for f in found]
        half = len(states)
        named = {f"value {i}": v for i, v in enumerate(got[:half])} | {f"move {i}": v for i, v in enumerate(got[half:])}
        wanted = {name: v.expand_as(named[name]) for name, v in wanted.items()}
        assert not (said := differences(named, wanted)), said


def _parted(rest: Sequence[Tensor], states: int, matrices: int) -> tuple[Sequence[Tensor], ...]:
    return rest[:states], rest[states : states + matrices], rest[states + matrices :]
