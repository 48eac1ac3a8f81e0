"""Nothing in the package reads a pickle, which can run any code; one command may, where its user says so."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import evenflow

PACKAGE = Path(evenflow.__file__).parent
UNPICKLERS = {"pickle", "cPickle", "_pickle", "cloudpickle", "dill", "joblib", "shelve", "marshal"}
READS = {"load", "loads", "Unpickler", "open"}
# `evenflow doctor --trusted FILE`.
TRUSTED = {"lab/diagnosis/cli_target.py": "torch.load(path, map_location='cpu', weights_only=False)"}


def unpickling(source: str) -> Iterator[str]:
    """The calls and imports that may unpickle."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in UNPICKLERS:
            yield from (f"from {node.module} import {alias.name}" for alias in node.names if alias.name in READS)
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        module, name = ast.unparse(node.func.value), node.func.attr
        options = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
        reads = {
            "pickle": module.split(".")[0] in UNPICKLERS and name in READS,
            "torch": module == "torch" and name == "load" and options.get("weights_only") != "True",
            "numpy": name == "load" and module in ("np", "numpy") and options.get("allow_pickle", "False") != "False",
            "pandas": name == "read_pickle",
            "module": name == "load_from_checkpoint" or (module == "torch.hub" and name.startswith("load")),
        }
        if any(reads.values()):
            yield ast.unparse(node)


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("pickle.load(file)", True),
        ("pickle.dumps(x)", False),
        ("from pickle import loads", True),
        ("from pickle import dumps", False),
        ("torch.load(path)", True),
        ("torch.load(path, weights_only=False)", True),
        ("torch.load(path, weights_only=True)", False),
        ("np.load(path)", False),
        ("np.load(path, allow_pickle=True)", True),
        ("json.load(file)", False),
        ("pandas.read_pickle(path)", True),
        ("torch.hub.load('a', 'b')", True),
    ],
)
def test_what_counts_as_unpickling(source, found):
    assert bool(list(unpickling(source))) is found


def test_no_pickle_is_read():
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        if calls := list(unpickling(path.read_text(encoding="utf-8"))):
            found[path.relative_to(PACKAGE).as_posix()] = calls
    assert found == {name: [call] for name, call in TRUSTED.items()}
