"""Random steps and random runs of them: compiled C and torch operations against the step itself in float64."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings

from evenflow.runtime import compile_c
from evenflow.scan import cpu
from harden.trials import Attack, Trials

STEPS = Path(__file__).parents[2] / "tests" / "step"
BATCH = 50  # random steps of one call of hypothesis


def fuzz_engine(name: str, trials: Trials) -> None:
    """Put random steps through an engine, forward and backward, until the time is over."""
    sys.path.append(str(STEPS))
    tests: Any = importlib.import_module("test_random_steps")
    engine, _ = tests.ENGINES[name]
    if engine is cpu:
        compile_c.FLAGS = compile_c.FLAGS.replace("-O3", "-O1")  # code that is compiled fast
        if cpu.library() is None:
            trials.notes.append("There is no C compiler, so no compiled step was compared.")
            return

    @settings(max_examples=BATCH, deadline=None, database=None, suppress_health_check=list(HealthCheck),
              phases=[Phase.generate])  # fmt: skip
    @given(tests.steps(), tests.runs())
    def compare(step: Any, run: Any) -> None:
        if not trials.running:
            return
        with trials.trial(f"{name}, {step!r}, {run!r}"):
            said = tests.wrong(engine, step, run)
            assert not said, "; ".join(said)

    while trials.running:
        seed(trials.chance.randrange(2**32))(compare)()


def fuzz_c(trials: Trials) -> None:
    """Compiled C."""
    fuzz_engine("c", trials)


def fuzz_torch(trials: Trials) -> None:
    """Torch operations."""
    fuzz_engine("torch", trials)


ATTACKS = (
    Attack("steps-c", "random steps in compiled C against autograd in float64", fuzz_c, 1.5),
    Attack("steps-torch", "random steps in torch operations against autograd in float64", fuzz_torch, 1),
)
