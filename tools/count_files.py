"""Count the Python files of evenflow that a call passes through: a measure of how far a reader has to look.

    python tools/count_files.py            # one forward and backward of sgornn; one `evenflow train`
    python tools/count_files.py --list     # and the files themselves

A file counts when one of its functions runs. The layer is called once before counting, since the first call also
translates and compiles the step.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

PACKAGE = Path(__file__).parents[1] / "src" / "evenflow"


def files_of(work: Callable[[], Any]) -> list[str]:
    """The files of the package in which a function runs while `work` does, as paths below ``src/evenflow``."""
    seen: set[str] = set()

    def note(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call" and frame.f_code.co_name != "<module>":
            seen.add(frame.f_code.co_filename)

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]  (None ends it, which its stub leaves out)
    return sorted(os.path.relpath(file, PACKAGE) for file in seen if file.startswith(f"{PACKAGE}{os.sep}"))


def layer_pass() -> Callable[[], Any]:
    """One forward and backward of ``create("sgornn", 2, 128)``, after a first call."""
    import torch

    import evenflow

    layer = evenflow.create("sgornn", 2, 128)
    x = torch.randn(20, 4, 2)

    def work() -> None:
        layer(x)[0].sum().backward()

    work()
    return work


def training() -> Callable[[], Any]:
    """``evenflow train adding sgornn`` for 20 updates, in this process."""
    from evenflow.lab.cli import main

    def work() -> None:
        with tempfile.TemporaryDirectory() as folder:
            try:
                main(["train", "adding", "sgornn", "--steps", "20", "-t", "length=20", "--folder", f"{folder}/run"])
            except SystemExit as left:
                if left.code:
                    raise

    return work


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--list", action="store_true", help="also print the files")
    chosen = options.parse_args()
    for name, prepare in (("forward and backward of sgornn", layer_pass), ("evenflow train", training)):
        files = files_of(prepare())
        print(f"{name}: {len(files)} files")
        if chosen.list:
            print("".join(f"  {file}\n" for file in files))


if __name__ == "__main__":
    main()
