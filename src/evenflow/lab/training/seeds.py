"""Where every random draw of a run comes from: one seed, a purpose, a step and a rank."""

from __future__ import annotations

import hashlib

import torch


def derive(seed: int, purpose: str, step: int = 0, rank: int = 0) -> int:
    """A 63-bit seed that depends on all four arguments and on nothing else.

    A generator seeded with it needs no state of its own to be saved: a resumed run draws what the interrupted one would
    have drawn.

        >>> derive(0, "train", 5) == derive(0, "train", 5), derive(0, "train", 5) == derive(0, "train", 6)
        (True, False)
    """
    text = f"{seed}/{purpose}/{step}/{rank}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") >> 1


def seed_global(seed: int, device: torch.device) -> None:
    """Seed the generators that dropout on `device` draws from.

    Note on speed: `torch.manual_seed` visits every kind of device there could be and takes about a millisecond, longer
    than many an update; this takes microseconds.
    """
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        index = torch.cuda.current_device() if device.index is None else device.index
        torch.cuda.default_generators[index].manual_seed(seed)
    elif device.type == "mps":
        torch.mps.manual_seed(seed)
