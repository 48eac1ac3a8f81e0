"""Find the data folder, which holds the real data sets."""

from __future__ import annotations

import os
import sys
from pathlib import Path

VARIABLE = "EVENFLOW_DATA"


def data_folder(folder: str | os.PathLike[str] | None = None) -> Path:
    """The data folder: `folder` if it is given, else ``$EVENFLOW_DATA``, else a folder in the user's cache.

    The folder need not exist yet, and may be read-only.

        >>> data_folder("~/sets") == Path.home() / "sets"
        True

    Raises:
        ValueError: the path names something that is not a folder.
    """
    if folder is not None and not isinstance(folder, str | os.PathLike):
        raise ValueError(f"the data folder must be a path, got {folder!r}")
    chosen = os.fspath(folder) if folder is not None else os.environ.get(VARIABLE, "")
    if folder is not None and not chosen:
        raise ValueError("the data folder must be a path, got ''")
    if not chosen:
        return _user_cache() / "data"
    path = _expanded(chosen)
    try:
        is_file = path.exists() and not path.is_dir()
    except (OSError, ValueError):  # no permission to enter a parent folder, or a name that no system allows
        raise ValueError(f"the data folder {chosen!r} cannot be looked into") from None
    if is_file:
        raise ValueError(f"the data folder {chosen!r} is a file, not a folder")
    return path


def _user_cache() -> Path:
    """evenflow's folder in the user's cache: ``$XDG_CACHE_HOME``, or where the system keeps caches."""
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
