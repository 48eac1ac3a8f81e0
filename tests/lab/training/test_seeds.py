from __future__ import annotations

import itertools

import torch

from evenflow.lab.training.seeds import derive, seed_global


def test_every_argument_matters():
    seeds = [derive(*key) for key in itertools.product((0, 1), ("train", "noise"), (0, 1, 10, 100), (0, 1))]
    assert len(set(seeds)) == len(seeds)
    assert derive(0, "train", 12, 3) == derive(0, "train", 12, 3)


def test_seeds_fit_a_generator_and_do_not_depend_on_the_process():
    # A value once printed: Python's own hash would differ from process to process.
    assert derive(0, "train", 0, 0) == int.from_bytes(_digest(b"0/train/0/0"), "little") >> 1
    for step in range(100):
        torch.Generator().manual_seed(derive(2**40, "train", step))


def test_seed_global_repeats_dropout():
    ones = torch.ones(1000)
    with torch.random.fork_rng([]):
        seed_global(5, torch.device("cpu"))
        first = torch.nn.functional.dropout(ones)
        seed_global(5, torch.device("cpu"))
        assert torch.equal(torch.nn.functional.dropout(ones), first)
        assert not torch.equal(torch.nn.functional.dropout(ones), first)


def _digest(text: bytes) -> bytes:
    import hashlib

    return hashlib.blake2b(text, digest_size=8).digest()
