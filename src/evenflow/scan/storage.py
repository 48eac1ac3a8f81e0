"""Half precision as a way to store numbers: a recurrence on them runs in single precision all the same."""

from __future__ import annotations

import torch

STORAGES = {"bfloat16": torch.bfloat16, "float16": torch.float16}
HALF = tuple(STORAGES.values())
