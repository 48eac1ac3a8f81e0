"""Import paths that lead nowhere are one error, which callers word."""

from __future__ import annotations

import pytest

from evenflow.runtime.import_path import find, import_path, imported


def test_there_and_back():
    assert find(import_path(find)) is find


@pytest.mark.parametrize("path", ["../..evenflow:x", ".:x", "no_such_module:x", "evenflow:no_such_name", "a:<locals>"])
def test_what_cannot_be_imported(path):
    with pytest.raises(ValueError, match=r"^system '.*' cannot be imported: "):
        imported("system", path)
