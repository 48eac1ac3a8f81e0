"""Compiles exported C under AddressSanitizer and UndefinedBehaviorSanitizer, and runs it on sequences."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import evenflow

COMPILER = shutil.which("gcc") or shutil.which("clang")
STRICT = "-std=c99 -Wall -Wextra -Werror -pedantic -O1 -fsanitize=address,undefined -fno-sanitize-recover=all"
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="there is no C compiler (gcc or clang)")

# Reads sequences of so many steps; writes the outputs after every step.
MAIN = """
#include <stdio.h>
#include <stdlib.h>
#include "model.h"

int main(int count, char **words) {
    model_state state;
    INPUT;
    float y[MODEL_OUTPUTS];
    const long steps = count > 1 ? strtol(words[1], 0, 10) : 0;
    for (;;) {
        model_init(&state);
        for (long t = 0; t < steps; t++) {
            if (READ != 1) return 0;
            model_step(&state, x);
            model_result(&state, y);
            fwrite(y, sizeof y, 1, stdout);
        }
    }
}
"""


def export_and_run(model: torch.nn.Module, x: Tensor, folder: Path, **options: object) -> Tensor:
    """The outputs of all steps ``(T, B, O)`` of the exported model for x ``(T, B, I)`` or symbols ``(T, B)``."""
    evenflow.export.to_c(model, folder / "model.c", **options)
    symbols = not x.is_floating_point()
    read = "fread(&x, sizeof x, 1, stdin)" if symbols else "fread(x, sizeof x, 1, stdin)"
    main = MAIN.replace("INPUT", "int x" if symbols else "float x[MODEL_INPUTS]", 1).replace("READ", read)
    (folder / "main.c").write_text(main, encoding="ascii")
    libraries = [] if options.get("approximate") else ["-lm"]
    build(folder, ["main.c", "model.c"], "program", libraries)
    given = x.transpose(0, 1).contiguous().numpy().astype(np.int32 if symbols else np.float32)
    done = subprocess.run([str(folder / "program"), str(len(x))], input=given.tobytes(), capture_output=True)
    assert done.returncode == 0, done.stderr.decode()[-3000:]
    outputs = torch.from_numpy(np.frombuffer(done.stdout, np.float32).copy())
    return outputs.view(x.shape[1], len(x), -1).transpose(0, 1)


def build(folder: Path, sources: list[str], target: str, more: list[str]) -> None:
    """Compile with all warnings as errors."""
    assert COMPILER is not None
    command = [COMPILER, *STRICT.split(), *sources, "-o", target, *more]
    done = subprocess.run(command, cwd=folder, capture_output=True, encoding="utf-8")
    assert done.returncode == 0, done.stderr[-3000:]
