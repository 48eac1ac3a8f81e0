"""An extension of griffe, which reads docstrings for the reference: what plain docstrings need to become Markdown.

Sessions (``>>>``) become blocks of code, an entry for two arguments becomes two entries, and a layer gets the signature
and the arguments that it has at run time (`runtime/shared_arguments.py` adds them).
"""

from __future__ import annotations

import inspect
import re
from importlib import import_module
from typing import Any

import griffe

SESSION = re.compile(r"(?m)^( *)>>> .*\n(?:\1.*\S.*\n?)*")
TWO_NAMES = re.compile(r"(?m)^( +)(\w+(?:, \w+)+): (.*(?:\n\1 +.*)*)")


def as_markdown(text: str) -> str:
    """Return the text of a docstring with its sessions fenced and its entries one to an argument."""
    text = SESSION.sub(_fenced, text)
    return TWO_NAMES.sub(_entry_each, text)


def _fenced(session: re.Match[str]) -> str:
    indent = session[1]
    return f"{indent}```pycon\n{session[0].rstrip()}\n{indent}```\n"


def _entry_each(entry: re.Match[str]) -> str:
    indent, names, text = entry.groups()
    return "\n".join(f"{indent}{name}: {text}" for name in names.split(", "))


class PlainDocstrings(griffe.Extension):
    """Rewrites the docstrings of a package once it is loaded."""

    def on_package(self, *, pkg: griffe.Module, **kwargs: Any) -> None:
        """Rewrite every object of the package."""
        _rewrite(pkg)


def _rewrite(owner: griffe.Object) -> None:
    for name, member in list(owner.members.items()):
        if isinstance(member, griffe.Alias):
            continue
        if isinstance(member, griffe.Attribute) and "layer_class(" in str(member.value):
            member = griffe.Class(name, docstring=griffe.Docstring(""))
            owner.set_member(name, member)
            _take_runtime_arguments(member)
        elif isinstance(member, griffe.Class) and any(
            "with_shared_arguments" in str(d.value) for d in member.decorators
        ):
            _take_runtime_arguments(member)
        _rewrite(member)
    if owner.docstring:
        owner.docstring.value = as_markdown(owner.docstring.value)


def _take_runtime_arguments(layer: griffe.Class) -> None:
    found = getattr(import_module(layer.module.path), layer.name)
    if layer.docstring:
        layer.docstring.value = inspect.cleandoc(found.__doc__)
    if "__init__" not in layer.members:
        layer.set_member("__init__", griffe.Function("__init__"))
    constructor = layer.members["__init__"]
    assert isinstance(constructor, griffe.Function)
    own = {parameter.name: parameter for parameter in constructor.parameters}
    listed = [
        own.get(parameter.name) or _parameter(parameter)
        for parameter in inspect.signature(found.__init__).parameters.values()
    ]
    constructor.parameters = griffe.Parameters(*listed)


def _parameter(parameter: inspect.Parameter) -> griffe.Parameter:
    return griffe.Parameter(
        parameter.name,
        annotation=None if parameter.name == "self" else str(parameter.annotation),
        kind=griffe.ParameterKind[parameter.kind.name.lower()],
        default=None if parameter.default is parameter.empty else repr(parameter.default),
    )
