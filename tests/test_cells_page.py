"""The Python code of docs/cells.md runs, block after block, and prints what the page shows."""

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
    """The variables after all blocks, the printed lines and the warnings."""
    scope: dict[str, Any] = {"__name__": "cells_page"}
    printed: list[str] = []
    scope["print"] = lambda *values: printed.append(" ".join(map(str, values)))
    backend._warn_once.cache_clear()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for number, block in enumerate(BLOCKS):
            name = f"cells.md block {number}"
            linecache.cache[name] = (len(block), None, block.splitlines(keepends=True), name)
            exec(compile(block, name, "exec"), scope)
    messages = [str(w.message) for w in caught if w.category is RuntimeWarning]
    return {**scope, "printed": printed, "messages": messages}


def test_the_code_runs_and_prints_what_it_says(ran: dict[str, Any]) -> None:
    assert len(BLOCKS) >= 9
    printed = ran["printed"]
    assert printed[0] == "torch.Size([100, 8, 128])"
    assert printed[1] == "True"
    assert "torch.Size([1]) torch.Size([16])" in printed
    assert printed[-1] == "True"  # the residual


def test_the_one_warning_is_the_one_shown(ran: dict[str, Any]) -> None:
    shown = re.search(r"^RuntimeWarning: (.*?)\n```$", PAGE, flags=re.MULTILINE | re.DOTALL)
    assert shown is not None
    expected = shown[1].replace("\n", " ")
    assert [re.sub(r"of cells\.md block \d+", "of cells.py", text) for text in ran["messages"]] == [expected]


def test_pairs_are_sorted_and_means_are_zero(ran: dict[str, Any]) -> None:
    import evenflow

    output, _ = evenflow.Recurrent(ran["sorted_pairs"](), 2, 8)(torch.randn(5, 3, 2))
    first, second = output.chunk(2, -1)
    assert (first >= second).all()
    assert evenflow.Recurrent(ran["centred"](), 2, 8)(torch.randn(5, 3, 2))[0].shape == (5, 3, 8)


def test_operations_of_the_table_are_known() -> None:
    """A step may use each operation of the table, under the name that torch uses internally."""
    begin = PAGE.index("| kind | operations |")
    table = PAGE[begin : PAGE.index("\n\n", begin)]
    internal = {
        "relu6": "hardtanh", "prelu": "_prelu_kernel", "selu": "elu", "logsigmoid": "log_sigmoid_forward",
        "softmax": "_softmax", "layer_norm": "native_layer_norm", "linear": "addmm", "chunk": "split",
    }  # fmt: skip
    names = [name for name in re.findall(r"`([a-z_0-9]+)`", table) if name != "dim"]
    assert len(names) > 50
    assert [name for name in names if internal.get(name, name) not in OPERATIONS] == []
