"""The elementary functions of exported C that need no library, beside those of torch in double precision."""

from __future__ import annotations

import ctypes
import subprocess

import pytest
import torch
from c99_program import COMPILER, needs_compiler

from evenflow.export.c99_functions import APPROXIMATIONS, ERRORS, LIBRARY, C99Functions

NAN, INF = float("nan"), float("inf")
# By function: the range over which its error is stated, and its values outside of that.
RANGES = {
    "exp": (-87.0, 88.7), "expm1": (-87.0, 88.7), "tanh": (-30.0, 30.0), "sigmoid": (-87.0, 88.0), "log": (1e-44, 3e38),
    "log1p": (-0.999, 3e38), "sqrt": (1e-37, 3e38), "sin": (-8192.0, 8192.0), "cos": (-8192.0, 8192.0),
    "erf": (-8.0, 8.0),
}  # fmt: skip
LIMITS = {
    "exp": {-INF: 0.0, INF: INF, 89.0: INF, -200.0: 0.0}, "expm1": {-INF: -1.0, INF: INF},
    "tanh": {-INF: -1.0, INF: 1.0},
    "sigmoid": {-INF: 0.0, INF: 1.0, -1000.0: 0.0}, "log": {0.0: -INF, -1.0: NAN, INF: INF}, "log1p": {INF: INF},
    "sqrt": {0.0: 0.0, -1.0: NAN, INF: INF}, "sin": {INF: NAN}, "cos": {INF: NAN}, "erf": {-INF: -1.0, INF: 1.0},
}  # fmt: skip


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    functions = C99Functions(approximate=True)
    names = [functions.name(name) for name in ERRORS]
    loops = [
        f"void all_{name}(const float *x, float *y, int n) {{ for (int i = 0; i < n; i++) y[i] = {name}(x[i]); }}"
        for name in names
    ]
    folder = tmp_path_factory.mktemp("functions")
    (folder / "functions.c").write_text("\n".join([*functions.texts, *loops]))
    flags = "-std=c99 -Wall -Wextra -Werror -pedantic -O2 -fsanitize=undefined -fsanitize-undefined-trap-on-error"
    command = [COMPILER, *flags.split(), "-shared", "-fPIC", "functions.c", "-o", "functions.so"]
    subprocess.run(command, cwd=folder, check=True)
    return ctypes.CDLL(str(folder / "functions.so"))


def values(library: ctypes.CDLL, name: str, x: torch.Tensor) -> torch.Tensor:
    y = torch.empty_like(x)
    call = getattr(library, f"all_approximate_{name}")
    call(ctypes.c_void_p(x.data_ptr()), ctypes.c_void_p(y.data_ptr()), ctypes.c_int(x.numel()))
    return y


def points(low: float, high: float) -> torch.Tensor:
    """Even and geometric points between two limits."""
    sizes = torch.logspace(-44, 38.4, 100_000, dtype=torch.float64).float()
    several = torch.cat([torch.linspace(low, high, 200_001), sizes, -sizes, torch.zeros(1)])
    return several[(several >= low) & (several <= high)]


@needs_compiler
@pytest.mark.parametrize("name", ERRORS)
def test_errors_are_below_those_stated(name, library):
    x = points(*RANGES[name])
    exact = getattr(torch, name)(x.double())
    error = (values(library, name, x).double() - exact).abs()
    scale = exact.abs() if name in ("exp", "sqrt") else exact.abs().clamp(min=1)
    assert (error / scale).max() <= ERRORS[name]
    assert (error / scale).max() >= ERRORS[name] / 5  # what is stated is not far from what there is


@needs_compiler
@pytest.mark.parametrize("name", ERRORS)
def test_values_beyond_and_nan(name, library):
    x = torch.tensor([NAN, *LIMITS[name]])
    assert torch.equal(
        values(library, name, x).nan_to_num(7), torch.tensor([NAN, *LIMITS[name].values()]).nan_to_num(7)
    )


def test_every_function_of_math_h_has_an_approximation():
    assert LIBRARY.keys() | {"sigmoid"} == ERRORS.keys() == APPROXIMATIONS.keys() - {"circle"}
