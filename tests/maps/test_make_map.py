"""Maps by name."""

from __future__ import annotations

import pytest
import torch

from evenflow.maps import MAPS, Exponential, Householder, Map, make


@pytest.mark.parametrize("name", MAPS)
def test_every_name(name: str) -> None:
    map = make(name, 4)
    assert type(map) is MAPS[name]
    assert (map.rows, map.columns) == (4, 4)


def test_options_class_and_function() -> None:
    assert make("householder", 8, reflectors=2).parameter_count == 15
    assert isinstance(make(Exponential, 4, gradient="plumbley"), Exponential)
    assert make(lambda n: Householder(n, reflectors=1), 6).parameter_count == 6
    assert make("svd", 3, 5)(*make("svd", 3, 5).start()).shape == (3, 5)
    assert repr(make("householder", 8, reflectors=2)) == "Householder(8, reflectors=2)"


@pytest.mark.parametrize(
    ("map", "options", "sentence"),
    [
        ("expnential", {}, "unknown map 'expnential', did you mean exponential"),
        ("expo", {}, "unknown map 'expo', did you mean exponential?"),
        ("zzz", {}, "unknown map 'zzz', known are antisymmetric, cayley, exponential"),
        ("householder", {"m": 3}, "Householder has no option 'm'; it takes reflectors, precision"),
        (3, {}, "map must be a name, a class or a function of the size, got 3"),
        (Exponential(4), {}, "got one finished map Exponential"),
        (lambda n: torch.eye(n), {}, "map must return an evenflow Map, got Tensor"),
        (lambda n: Exponential(n), {"init": "haar"}, "a function gets the size alone, not init"),
    ],
    ids=["misspelt", "a beginning", "unknown", "option", "number", "instance", "tensor", "function-options"],
)
def test_bad_input(map: object, options: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence.replace("?", r"\?")):
        make(map, 4, **options)  # type: ignore[arg-type]


def test_a_map_alone_says_what_is_missing() -> None:
    bare = Map(3)
    eye = torch.eye(3)
    for verb in (lambda: bare.raw_shapes, lambda: bare.matrix(eye), bare.start, lambda: bare.inverse(eye)):
        with pytest.raises(NotImplementedError):
            verb()
