"""The attacks that evenflow must withstand. Each module lists its own; a new module needs a line here."""

from __future__ import annotations

from harden import (
    code_caches,
    damaged_runs,
    engine_fuzz,
    fuzz,
    guided_fuzz,
    kills,
    memory_limits,
    page_payloads,
    planted_pickles,
    power_loss,
    ray_kills,
    soak,
)
from harden.trials import Attack, Trials

MODULES = (
    kills,
    damaged_runs,
    fuzz,
    guided_fuzz,
    code_caches,
    page_payloads,
    memory_limits,
    planted_pickles,
    power_loss,
    ray_kills,
    engine_fuzz,
    soak,
)
ATTACKS: dict[str, Attack] = {attack.name: attack for module in MODULES for attack in module.ATTACKS}

__all__ = ["ATTACKS", "Attack", "Trials"]
