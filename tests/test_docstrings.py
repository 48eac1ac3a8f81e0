"""The sessions in the docstrings of these rooms run and print what they say."""

from __future__ import annotations

import doctest
import inspect
from types import ModuleType
from typing import Any

import pytest
import torch

import evenflow
from evenflow import activations, cells, feedforward, init, layers, maps

ROOMS = (activations, cells, feedforward, init, layers, maps)
PUBLIC = [(room, name) for room in ROOMS for name in getattr(room, "__all__", None) or sorted(vars(room))]


def session(room: ModuleType, name: str) -> doctest.DocTest | None:
    """The session of a class or function of the room; None if it has none, or is defined elsewhere."""
    value = getattr(room, name)
    here = getattr(value, "__module__", "").startswith(room.__name__)
    if not here or not (inspect.isclass(value) or inspect.isroutine(value)):
        return None
    # What a reader has imported: the public names of the library and of the room, torch and nn.
    scope: dict[str, Any] = {**vars(evenflow), **vars(maps), **vars(room), "torch": torch, "nn": torch.nn}
    scope["evenflow"] = evenflow
    found = doctest.DocTestParser().get_doctest(value.__doc__ or "", scope, f"{room.__name__}.{name}", None, 0)
    return found if found.examples else None


SESSIONS = [found for found in (session(room, name) for room, name in PUBLIC) if found]


@pytest.mark.parametrize("found", SESSIONS, ids=lambda found: found.name.removeprefix("evenflow."))
def test_the_session_of_a_docstring(found: doctest.DocTest) -> None:
    torch.manual_seed(0)
    said: list[str] = []
    failed, _ = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(found, out=said.append)
    assert failed == 0, "".join(said)


def test_sessions_are_found() -> None:
    assert len(SESSIONS) >= 30
