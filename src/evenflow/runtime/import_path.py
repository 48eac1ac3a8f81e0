"""Import paths, "module:name": of an object, back to the object, and those that installed packages announce."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

COLON = ":"


def import_path(value: Any) -> str:
    """Where a class, a function or the class of an object is defined, as "module:name"."""
    named = value if hasattr(value, "__qualname__") else type(value)
    return f"{named.__module__}{COLON}{named.__qualname__}"


def find(path: str) -> Any:
    """The object at "module:name"; an ImportError, AttributeError or ValueError if there is none."""
    module, _, name = path.partition(COLON)
    if "<" in name:  # <locals>, <lambda>
        raise ImportError("it was defined inside a function")
    if module.startswith("."):
        raise ImportError("its module is not named from the top")
    target: Any = import_module(module)
    for part in name.split("."):
        target = getattr(target, part)
    return target


def imported(what: str, path: str) -> Any:
    """The object at "module:name"; a ValueError says what is missing.

    Args:
        what: the argument that holds the path, for the message.
    """
    module = path.partition(COLON)[0]
    try:
        return find(path)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):  # a package that the module imports
            raise ValueError(f"{what} {path!r} cannot be imported: {error}") from None
        raise ValueError(
            f"{what} {path!r} cannot be imported: {error}; install the package that has it, or run Python or evenflow "
            f"in the folder of {error.name.partition('.')[0]}"
        ) from None
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"{what} {path!r} cannot be imported: {error}") from None


def announced(group: str) -> dict[str, str]:
    """The import paths of a group of entry points of the installed packages, by the names that the packages chose."""
    return {point.name: f"{point.module}{COLON}{point.attr}" for point in entry_points(group=group)}


def short_name(path: str) -> str:
    """The name at the end of an import path; any other text unchanged.

    >>> short_name("my_package.cells:mgu"), short_name("gru")
    ('mgu', 'gru')
    """
    return path.rpartition(COLON)[2]
