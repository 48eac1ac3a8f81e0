"""Shows the arguments that all recurrent layers share in the signature and docstring of each of them.

The constructor of a layer names its own arguments and hands ``**options`` on to `Recurrent`. With this decorator
`help`, `inspect.signature` and notebooks show the whole list, and its text stands in one place of the source.
"""

from __future__ import annotations

import inspect
import re
from typing import TypeVar

from torch import nn

Layer = TypeVar("Layer", bound=type[nn.Module])


def with_shared_arguments(layer: Layer) -> Layer:
    """Decorate a layer whose ``**options`` are arguments of the class that it extends."""
    base = layer.__mro__[1]
    own = inspect.signature(layer.__init__).parameters
    shared = inspect.signature(base.__init__).parameters  # type: ignore[misc]
    listed = [p for p in own.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
    if any(p.kind is p.VAR_POSITIONAL for p in own.values()):
        listed += [p for p in shared.values() if p.kind is p.POSITIONAL_OR_KEYWORD and p.name not in (*own, "cell")]
    listed += [p for p in own.values() if p.kind is p.KEYWORD_ONLY]
    listed += [p for p in shared.values() if p.kind is p.KEYWORD_ONLY and p.name not in own]
    listed += [p for p in shared.values() if p.kind is p.VAR_KEYWORD]
    setattr(layer.__init__, "__signature__", inspect.Signature(listed))  # noqa: B010  (mypy knows no such attribute)
    if layer.__doc__ and base.__doc__:  # there are none under `python -OO`
        entries = _entries(base.__doc__) | _entries(layer.__doc__)
        section = "".join(entries[p.name] for p in listed if p.name in entries)
        layer.__doc__ = layer.__doc__.replace(_section(layer.__doc__), section)
    return layer


def _section(docstring: str) -> str:
    """The entries below ``Args:``."""
    return docstring.split("    Args:\n", 1)[1].split("\n\n", 1)[0] + "\n"


def _entries(docstring: str) -> dict[str, str]:
    """The entries below ``Args:``, each by the first name in it."""
    entries = re.split(r"(?m)^(?=        \S)", _section(docstring))[1:]
    return {re.split("[:,]", entry)[0].strip(): entry for entry in entries}
