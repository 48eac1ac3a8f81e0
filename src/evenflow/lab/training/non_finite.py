"""When training has left the numbers: the error, and how a run's folder tells of it afterwards."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

MARK = "infinite or not a number"  # in the message of a run that diverged


class NonFiniteLoss(RuntimeError):
    """The loss, the gradient or a weight became infinite or not a number."""


def refuse(what: str, when: str, lr: float) -> NoReturn:
    """Stop a run whose loss, gradient or weights are no numbers any more."""
    raise NonFiniteLoss(f"the {what} became {MARK} {when}: try a smaller lr than {lr:g} or a clip_norm")


def diverged(status: Mapping[str, Any]) -> bool:
    """Whether a run's folder says that it ended so. A full disk fails a run too, and that one can go on."""
    return status.get("state") == "failed" and MARK in str(status.get("message", ""))
