"""The attacks that evenflow must withstand. Each module lists its own; a new module needs a line here."""

from __future__ import annotations

from harden import kills
from harden.trials import Attack, Trials

ATTACKS: dict[str, Attack] = {attack.name: attack for module in (kills,) for attack in module.ATTACKS}

__all__ = ["ATTACKS", "Attack", "Trials"]
