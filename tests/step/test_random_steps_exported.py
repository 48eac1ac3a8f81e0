"""Exported C beside the step itself, on random steps: `random_steps`."""

from __future__ import annotations

import ctypes
import subprocess

import pytest
import torch
from hypothesis import assume, example, given
from random_steps import Step, steps
from test_random_steps import examples

from evenflow.export.c99_constants import C99Constants
from evenflow.export.c99_functions import C99Functions
from evenflow.export.c99_product import C99Products
from evenflow.export.c99_step import C99Step
from evenflow.export.exported_step import ExportedStep
from evenflow.runtime import compile_c
from evenflow.scan.compiled_step import CompiledStep
from evenflow.scan.derived_parameters import with_derived
from evenflow.step import hoisted, program_text, translate

OFF = 1e-4  # of the largest number of a state, float32, three steps; some steps divide by small variances
LENGTH = 3
FLAGS = "-std=c99 -Wall -Wextra -Werror -pedantic -O1 -fsanitize=undefined -fsanitize-undefined-trap-on-error -shared"


def compiler() -> list[str]:
    try:
        return compile_c.find_compiler()
    except compile_c.CompilationFailed as error:
        pytest.skip(str(error))


def exported(step: Step, matrices: list[torch.Tensor], parameters: list[torch.Tensor | None]) -> str:
    """The C function of a step, whose input is its pre-activation."""
    program = translate(step.function, step.a, step.states, step.matrices, step.parameters)
    made = CompiledStep(program_text.write(hoisted(program)))
    listed = iter(with_derived(made.text, [None if p is None else p.unsqueeze(0) for p in parameters]))
    present = [next(listed)[0] if nodes else None for nodes in made.program.parameters]
    names = [f"p{i}" for i in range(len(present))]
    weights = {"weight_ih": torch.eye(step.a)}
    whole = ExportedStep(made.program, weights, matrices, [None] * len(matrices), names, present, list(step.states))
    functions = C99Functions(approximate=True)
    products = C99Products(C99Constants(), int8=False)
    text = C99Step("_l0", whole, products, functions).text()
    text[0] = text[0].removeprefix("static ")
    return "\n".join([*products.constants.text, *products.functions.values(), *functions.texts, *text, ""])


# The new state takes the place of one whose largest number the same loop finds.
SHIFTED = "def step(a, s0, s1, m0):\n    h = torch.tanh(s0 @ m0.mT - s1.amax(-1, keepdim=True))\n    return h, s0\n"


@examples(25)
@example(step=Step(SHIFTED, 7, (7, 7), ((7, 7),), ()))
@given(step=steps())
def test_exported_steps_equal_the_step(step, tmp_path_factory):
    torch.manual_seed(0)
    a = torch.randn(LENGTH, 1, step.a)
    matrices = [torch.randn(shape) / shape[1] ** 0.5 for shape in step.matrices]
    parameters = [None if size is None else torch.randn(size) for size in step.parameters]
    states = [torch.randn(1, size) for size in step.states]
    folder = tmp_path_factory.mktemp("exported")
    (folder / "step.c").write_text(exported(step, matrices, parameters), encoding="ascii")
    subprocess.run([*compiler(), *FLAGS.split(), "-fPIC", "step.c", "-o", "step.so"], cwd=folder, check=True)
    call = ctypes.CDLL(str(folder / "step.so")).step_l0
    given = [state.clone() for state in states]
    exact = [state.double() for state in states]
    for t in range(LENGTH):
        exact = list(step.function(a[t].double(), *exact, *(m.double() for m in matrices), *doubles(parameters)))
        call(*(ctypes.c_void_p(x.data_ptr()) for x in (a[t], *given)))
    for result, correct in zip(given, exact, strict=True):
        assume(correct.abs().max() < 1e4)
        assert (result - correct).abs().max() <= OFF * max(1.0, correct.abs().max().item()), step


def doubles(tensors: list[torch.Tensor | None]) -> list[torch.Tensor | None]:
    return [None if v is None else v.double() for v in tensors]
