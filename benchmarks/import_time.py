"""How long `import evenflow` takes beside `import torch` alone.

    python benchmarks/import_time.py

Each import runs in a fresh process, the two in turn; the medians and their ratio are printed.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys

CODE = "import time; start = time.perf_counter(); import {}; print(time.perf_counter() - start)"


def seconds(module: str) -> float:
    command = [sys.executable, "-c", CODE.format(module)]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=11)
    options = parser.parse_args()
    times: dict[str, list[float]] = {"torch": [], "evenflow": []}
    for round in range(options.rounds + 1):
        for module, values in times.items():
            value = seconds(module)
            if round:  # the first round fills the disk cache
                values.append(value)
    torch, evenflow = (statistics.median(values) for values in times.values())
    print(f"import torch {torch:.2f} s, import evenflow {evenflow:.2f} s, ratio {evenflow / torch:.2f}")


if __name__ == "__main__":
    main()
