"""Shows the arguments that layers or estimators share in the signature and docstring of each of them.

The constructor of a layer names its own arguments and hands ``**options`` on to `Recurrent`. With this decorator
`help`, `inspect.signature` and notebooks show the whole list, and its text stands in one place of the source.
"""

from __future__ import annotations

import inspect
import re
from typing import Any, TypeVar

Extended = TypeVar("Extended", bound=type[Any])


def with_shared_arguments(extended: Extended) -> Extended:
    """Decorate a class whose ``**options`` are arguments of the class that it extends."""
    base = next(each for each in extended.__mro__[1:] if "__init__" in vars(each))
    own = inspect.signature(extended.__init__).parameters
    shared = inspect.signature(base.__init__).parameters  # type: ignore[misc]
    listed = [p for p in own.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
    if any(p.kind is p.VAR_POSITIONAL for p in own.values()):
        listed += [p for p in shared.values() if p.kind is p.POSITIONAL_OR_KEYWORD and p.name not in (*own, "cell")]
    listed += [p for p in own.values() if p.kind is p.KEYWORD_ONLY]
    listed += [p for p in shared.values() if p.kind is p.KEYWORD_ONLY and p.name not in own]
    listed += [p for p in shared.values() if p.kind is p.VAR_KEYWORD]
    if "__init__" in vars(extended):
        extended.__init__.__signature__ = inspect.Signature(listed)
    if extended.__doc__ and base.__doc__:  # there are none under `python -OO`
        # Without indentation, as Python 3.13 and newer keep docstrings.
        own_text, shared_text = inspect.cleandoc(extended.__doc__), inspect.cleandoc(base.__doc__)
        entries = _entries(shared_text) | _entries(own_text)
        section = "".join(entries[p.name] for p in listed if p.name in entries)
        extended.__doc__ = own_text.replace(_section(own_text), section)
    return extended


def _section(docstring: str) -> str:
    """The entries below ``Args:``."""
    return docstring.split("Args:\n", 1)[1].split("\n\n", 1)[0] + "\n"


def _entries(docstring: str) -> dict[str, str]:
    """The entries below ``Args:``, each by the first name in it."""
    entries = re.split(r"(?m)^(?=    \S)", _section(docstring))[1:]
    return {re.split("[:,]", entry)[0].strip(): entry for entry in entries}
