"""`evenflow bench`, with its results under benchmarks/results/.

python benchmarks/recurrence.py                              # H=128, B=50, T=784, a GPU where there is one
python benchmarks/recurrence.py --device cpu --repeats 15
"""

from __future__ import annotations

import sys
from pathlib import Path

from evenflow.lab import bench, cli

RESULTS = Path(__file__).parent / "results"


def main(arguments: list[str]) -> None:
    device = arguments[arguments.index("--device") + 1] if "--device" in arguments[:-1] else "auto"
    out = ["--out", str(RESULTS / f"recurrence-{bench.find_device(device).type}.json")]
    cli.main(["bench", *([] if "--out" in arguments else out), *arguments])


if __name__ == "__main__":
    main(sys.argv[1:])
