"""The Python code of docs/cells.md runs, in its order, and does what it says."""

from __future__ import annotations

import linecache
import re
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from evenflow.scan import backend
from evenflow.step.operations import OPERATIONS

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/cells.md").read_text("utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def ran() -> dict[str, Any]:
    """What all blocks leave behind, what they print and the warnings."""
    scope: dict[str, Any] = {"__name__": "cells_page"}
    said: list[str] = []
    scope["print"] = lambda *values: said.append(" ".join(map(str, values)))
    backend._warn_once.cache_clear()
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        for number, block in enumerate(BLOCKS):
            name = f"cells.md block {number}"
            linecache.cache[name] = (len(block), None, block.splitlines(keepends=True), name)
            exec(compile(block, name, "exec"), scope)
    heard = [str(w.message) for w in heard if w.category is RuntimeWarning]
    return {**scope, "said": said, "heard": heard}


def test_the_code_runs_and_prints_what_it_says(ran: dict[str, Any]) -> None:
    assert len(BLOCKS) >= 9
    said = ran["said"]
    assert said[0] == "torch.Size([100, 8, 128])"
    assert said[1] == "True"
    assert "torch.Size([1]) torch.Size([16])" in said
    assert said[-1] == "True"  # the residual


def test_the_one_warning_is_the_one_shown(ran: dict[str, Any]) -> None:
    shown = re.search(r"^RuntimeWarning: (.*?)\n```$", PAGE, flags=re.MULTILINE | re.DOTALL)
    assert shown is not None
    wanted = shown[1].replace("\n", " ")
    assert [re.sub(r"of cells\.md block \d+", "of cells.py", said) for said in ran["heard"]] == [wanted]


def test_pairs_are_sorted_and_means_are_zero(ran: dict[str, Any]) -> None:
    import evenflow

    output, _ = evenflow.Recurrent(ran["sorted_pairs"](), 2, 8)(torch.randn(5, 3, 2))
    first, second = output.chunk(2, -1)
    assert (first >= second).all()
    assert evenflow.Recurrent(ran["centred"](), 2, 8)(torch.randn(5, 3, 2))[0].shape == (5, 3, 8)


def test_operations_of_the_table_are_known() -> None:
    """Each single name of the table is one that a step may use, under the name that torch has inside."""
    begin = PAGE.index("| kind | operations |")
    table = PAGE[begin : PAGE.index("\n\n", begin)]
    inside = {
        "relu6": "hardtanh", "prelu": "_prelu_kernel", "selu": "elu", "logsigmoid": "log_sigmoid_forward",
        "softmax": "_softmax", "layer_norm": "native_layer_norm", "linear": "addmm", "chunk": "split",
    }  # fmt: skip
    names = [name for name in re.findall(r"`([a-z_0-9]+)`", table) if name != "dim"]
    assert len(names) > 50
    assert [name for name in names if inside.get(name, name) not in OPERATIONS] == []
