"""Every test starts from the same random numbers, whichever tests ran before it."""

from __future__ import annotations

import os

import pytest
import torch
from hypothesis import settings

# A busy machine is no failure. In CI the examples are the same each time; by hand they vary, and may find more.
settings.register_profile("evenflow", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("evenflow")


@pytest.fixture(autouse=True)
def same_random_numbers() -> None:
    torch.manual_seed(0)
