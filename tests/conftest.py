"""Fixtures for all tests: a fixed seed, a recorder of operators, and folders with real and with made data."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import settings
from torch.utils._python_dispatch import TorchDispatchMode

# No deadline, since the machine may be busy. CI repeats the same examples; local runs draw new ones each time.
settings.register_profile("evenflow", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("evenflow")


def pytest_collection_finish() -> None:
    """Leave what was imported and collected out of later garbage collections, which many tests ask for in full."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def same_random_numbers() -> None:
    """Seed torch before every test, so that a test does not depend on those before it."""
    torch.manual_seed(0)


@pytest.fixture
def operators() -> Callable[[Callable[[], object]], list[str]]:
    """A function that returns the names of the library's operators that another function calls, in order."""

    class Calls(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.names: list[str] = []

        def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if op.namespace == "evenflow":
                self.names.append(op.name())
            return op(*args, **(kwargs or {}))

    def called(run: Callable[[], object]) -> list[str]:
        with Calls() as calls:
            run()
        return calls.names

    return called


@pytest.fixture(scope="session")
def data() -> Path:
    """The folder with the real data sets: $EVENFLOW_DATA, else ``shared/data`` beside the checkout."""
    chosen = os.environ.get("EVENFLOW_DATA")
    folder = Path(chosen) if chosen else Path(__file__).resolve().parents[2] / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"the real data sets are missing ({folder} is no folder; set EVENFLOW_DATA to another)")
    return folder


@pytest.fixture(scope="session")
def small_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with small random files of every format."""
    from made_data import write

    return write(tmp_path_factory.mktemp("data"))
