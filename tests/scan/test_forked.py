"""Compiled scans in processes forked from one that has used OpenMP, whose threads the child does not have."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from evenflow.scan import cpu

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="needs a POSIX system"),
    pytest.mark.skipif(cpu.library() is None, reason="needs a C compiler"),
]

# No operation here is large enough for threads of torch, which hang in the child by themselves.
PROGRAM = """
import multiprocessing, sys, warnings
import torch
from torch.utils.data import DataLoader, Dataset
import evenflow

warnings.simplefilter("ignore", DeprecationWarning)  # of forking beside threads
torch.set_num_threads(2)
torch.manual_seed(0)
layer, x = evenflow.GRU(2, 32), torch.randn(20, 16, 2)


def answer(_=None):
    for p in layer.parameters():
        p.grad = None
    output, _ = layer(x)
    output.sum().backward()
    return output.detach().numpy().copy(), layer.weight_hh_l0.grad.numpy().copy()


class Answers(Dataset):
    def __len__(self):
        return 2

    def __getitem__(self, item):
        torch.set_num_threads(2)  # DataLoader sets one
        return answer()


expected = answer()
if sys.argv[1] == "pool":
    with multiprocessing.get_context("fork").Pool(1) as pool:
        found = pool.map_async(answer, [0, 1]).get(timeout=60)
else:
    found = [[part[0].numpy() for part in batch] for batch in DataLoader(Answers(), num_workers=1, timeout=60)]
assert len(found) == 2
for each in found:
    for one, other in zip(each, expected, strict=True):
        assert (one == other).all()
again = answer()
assert (again[0] == expected[0]).all()
print("the same")
"""


@pytest.mark.parametrize("how", ["pool", "loader"])
def test_scans_run_in_forked_processes(how):
    environment = os.environ | {"OMP_NUM_THREADS": "2"}
    command = [sys.executable, "-c", PROGRAM, how]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=150, check=False)
    assert done.stdout == "the same\n", done.stderr[-2000:]
