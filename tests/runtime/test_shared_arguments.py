"""Every layer shows all arguments of its constructor, each with its meaning."""

from __future__ import annotations

import inspect

import pytest

import evenflow
from evenflow import Recurrent

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
    explained = [line.split(":")[0] for line in layer.__doc__.splitlines() if line.startswith(" " * 8 + line.lstrip())]
    names = [word.strip() for group in explained for word in group.split(",")]
    for parameter in inspect.signature(layer).parameters:
        assert names.count(parameter) == 1, parameter
