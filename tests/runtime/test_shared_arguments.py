"""Every layer shows all arguments of its constructor, each with its meaning."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import pytest

import evenflow
from evenflow import Recurrent
from evenflow.runtime.shared_arguments import with_shared_arguments

LAYERS = ["RNN", "ComplexRNN", "ScalarGatedRNN", "GRU", "LSTM", "SCRN", "GatedFeedbackRNN"]


@pytest.mark.parametrize("name", LAYERS)
def test_the_signature_has_the_shared_arguments(name: str) -> None:
    shared = inspect.signature(Recurrent).parameters
    parameters = inspect.signature(getattr(evenflow, name)).parameters
    assert set(shared) - {"cell"} <= set(parameters)
    assert list(parameters)[:3] == ["input_size", "hidden_size", "num_layers"]
    assert [p.name for p in parameters.values() if p.kind is p.VAR_KEYWORD] == ["map_options"]
    assert parameters["batch_first"].default is False


@pytest.mark.parametrize("name", ["Recurrent", *LAYERS])
def test_the_docstring_explains_every_argument(name: str) -> None:
    layer = getattr(evenflow, name)
    lines = inspect.cleandoc(layer.__doc__).splitlines()
    explained = [line.split(":")[0] for line in lines if line.startswith(" " * 4 + line.lstrip())]
    names = [word.strip() for group in explained for word in group.split(",")]
    for parameter in inspect.signature(layer).parameters:
        assert names.count(parameter) == 1, parameter


@pytest.mark.parametrize("compiled", [lambda text: text, inspect.cleandoc], ids=["indented", "as Python 3.13 keeps it"])
def test_a_docstring_with_and_without_indentation(compiled: Callable[[str], str]) -> None:
    class Shared:
        __doc__ = compiled("""Does this.

        Args:
            first: one.
            more, others: two
                lines.
        """)

        def __init__(self, first: int, *, more: int = 0, others: int = 0) -> None: ...

    class Own(Shared):
        __doc__ = compiled("""Does that.

        Args:
            own: three.

        The end.
        """)

        def __init__(self, own: int, *args: int, **options: int) -> None: ...

    assert with_shared_arguments(Own).__doc__ == (
        "Does that.\n\nArgs:\n    own: three.\n    first: one.\n    more, others: two\n        lines.\n\nThe end."
    )
