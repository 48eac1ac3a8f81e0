"""Seeds for every random draw of a run, derived from its seed, a purpose, a step and a rank."""

from __future__ import annotations

import hashlib

import torch


def derive(seed: int, purpose: str, step: int = 0, rank: int = 0) -> int:
    """A 63-bit seed that depends on the four arguments alone.

    The state of a generator seeded with it need not be saved: a resumed run draws what an uninterrupted one draws.

        >>> derive(0, "train", 5) == derive(0, "train", 5), derive(0, "train", 5) == derive(0, "train", 6)
        (True, False)
    """
    text = f"{seed}/{purpose}/{step}/{rank}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") >> 1


def seed_global(seed: int, device: torch.device) -> None:
    """Seed the generators that dropout on `device` draws from.

    This takes microseconds. `torch.manual_seed` seeds all kinds of devices and takes about a millisecond, longer than
    some updates.
    """
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        index = torch.cuda.current_device() if device.index is None else device.index
        torch.cuda.default_generators[index].manual_seed(seed)
    elif device.type == "mps":
        torch.mps.manual_seed(seed)
