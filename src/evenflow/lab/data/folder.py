"""Where data sets lie, and where what was made from them is kept."""

from __future__ import annotations

import os
import sys
from pathlib import Path

VARIABLE = "EVENFLOW_DATA"


def data_folder(given: str | os.PathLike[str] | None = None) -> Path:
    """The folder that holds the data sets: the given one, else ``$EVENFLOW_DATA``, else one in the user's cache.

    It need not exist yet, and may be read-only.

        >>> data_folder("~/sets") == Path.home() / "sets"
        True

    Raises:
        ValueError: the path names something that is not a folder.
    """
    if given is not None and not isinstance(given, str | os.PathLike):
        raise ValueError(f"the data folder must be a path, got {given!r}")
    chosen = os.fspath(given) if given is not None else os.environ.get(VARIABLE, "")
    if given is not None and not chosen:
        raise ValueError("the data folder must be a path, got ''")
    if not chosen:
        return user_cache() / "data"
    path = _expanded(chosen)
    try:
        other = path.exists() and not path.is_dir()
    except (OSError, ValueError):  # a part of the path that may not be entered, or a name no system allows
        raise ValueError(f"the data folder {chosen!r} cannot be looked into") from None
    if other:
        raise ValueError(f"the data folder {chosen!r} is a file, not a folder")
    return path


def cache_folder() -> Path:
    """The folder for files made from the data, which can be made again at any time."""
    return user_cache() / "derived"


def user_cache() -> Path:
    """evenflow's part of the user's cache: where the system's habits put it, unless ``$XDG_CACHE_HOME`` says otherwise.

    Raises:
        ValueError: the system does not know the user's home.
    """
    if chosen := os.environ.get("XDG_CACHE_HOME"):
        return Path(chosen) / "evenflow"
    if sys.platform == "win32" and (local := os.environ.get("LOCALAPPDATA")):
        return Path(local) / "evenflow"
    return _expanded("~/Library/Caches/evenflow" if sys.platform == "darwin" else "~/.cache/evenflow")


def _expanded(path: str) -> Path:
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise ValueError(f"the home folder in {path!r} is not known; set {VARIABLE} to a folder") from None
