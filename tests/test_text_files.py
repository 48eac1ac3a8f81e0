"""Text files are read and written as UTF-8, whatever the locale."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import evenflow
from evenflow.lab.training import train

SOURCE = Path(evenflow.__file__).parent
# Position of the encoding among the positional arguments.
PLACE = {"read_text": 0, "write_text": 1, "open": 3}


def text_without_encoding(source: str) -> list[int]:
    """The lines that read or write text in the encoding of the locale."""
    return [node.lineno for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call) and _lacks_encoding(node)]


def _lacks_encoding(call: ast.Call) -> bool:
    names = {keyword.arg: keyword.value for keyword in call.keywords}
    if "encoding" in names:
        return False
    if any(name in names and getattr(names[name], "value", None) is True for name in ("text", "universal_newlines")):
        return True
    method = isinstance(call.func, ast.Attribute)
    name = getattr(call.func, "attr", getattr(call.func, "id", None))
    if name == "fdopen" or (name == "open" and not method):
        mode = call.args[1] if len(call.args) > 1 else names.get("mode")
        return "b" not in str(getattr(mode, "value", "r"))
    if name == "open":
        if getattr(call.func.value, "id", None) == "os":  # a descriptor
            return False
        modes = [getattr(mode, "value", None) for mode in [*call.args, names.get("mode")]]
        # Members of an archive and pictures are opened by other names than a mode; a path's text has the mode r or w.
        return not call.args or any(isinstance(mode, str) and set(mode) <= set("rwax+t") for mode in modes)
    return method and name in ("read_text", "write_text") and len(call.args) <= PLACE[name]


@pytest.mark.parametrize(
    ("line", "lacks"),
    [
        ("path.read_text()", True),
        ("path.read_text('utf-8')", False),
        ("path.write_text(text)", True),
        ("path.write_text(text, encoding='utf-8')", False),
        ("open(path)", True),
        ("open(path, 'a')", True),
        ("open(path, 'rb')", False),
        ("path.open()", True),
        ("path.open('w')", True),
        ("path.open('wb')", False),
        ("archive.open(member)", False),
        ("os.open(folder, os.O_RDONLY)", False),
        ("os.fdopen(handle, 'w')", True),
        ("subprocess.run(command, text=True)", True),
        ("subprocess.run(command, text=True, encoding='utf-8')", False),
    ],
)
def test_what_counts_as_lacks_encoding(line, lacks):
    assert bool(text_without_encoding(line)) is lacks


def test_every_text_file_has_an_encoding():
    lines = [
        f"{path.relative_to(SOURCE)}:{line}"
        for path in sorted(SOURCE.rglob("*.py"))
        for line in text_without_encoding(path.read_text(encoding="utf-8"))
    ]
    assert lines == []


def test_a_report_in_a_locale_without_utf_8(tmp_path):
    config = {
        "task": {"name": "adding", "length": 6},
        "system": {"name": "rnn", "hidden_size": 4},
        "training": {"steps": 2, "batch_size": 2, "validation_batches": 1, "device": "cpu"},
    }
    train(config, tmp_path / "run", progress=False)
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONIOENCODING"} | plain
    environment["PYTHONPATH"] = f"{SOURCE.parent}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    page = tmp_path / "page.html"
    command = [sys.executable, "-m", "evenflow", "report", str(tmp_path / "run"), "--out", str(page)]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", env=environment, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    shown = page.read_text(encoding="utf-8")
    assert (SOURCE / "lab" / "report" / "page.js").read_text(encoding="utf-8") in shown
