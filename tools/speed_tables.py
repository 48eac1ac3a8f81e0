"""Write the tables of speed and of systems in README.md and docs/ from benchmarks/results and from the registry.

    python tools/speed_tables.py            # rewrite the tables of all pages
    python tools/speed_tables.py --check    # change nothing; exit code 1 if a page differs

A table stands in a page between `<!-- table: NAME -->` and `<!-- end of table -->`. NAME is a key of TABLES, the
functions that return the rows of a table, the heading first, or Markdown. cpu_tables.py, h200_tables.py and
scale_tables.py have most of them.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable

import cpu_tables
import h200_tables
import scale_tables
from measurements import ROOT, Rows, measured
from site_pages.systems_pages import overview

PAGES = (
    "README.md",
    "docs/performance.md",
    "docs/performance-details.md",
    "docs/cells.md",
    "docs/data.md",
    "docs/learning.md",
    "docs/scale.md",
    "docs/systems/index.md",
)
BLOCK = re.compile(r"(<!-- table: ([\w-]+) -->\n).*?(<!-- end of table -->)", flags=re.DOTALL)


def data_table() -> Rows:
    runs = measured("data-cuda")
    return [
        ["", "load", "a batch", "an update", "share"],
        *(
            [label, f"{run['ready_s']:.2f} s", f"{run['batch_ms']:.3f} ms", f"{run['step_ms']:.2f} ms",
             f"{100 * run['share']:.1f} %"]
            for label, run in (("pixel MNIST, 784 steps", runs["mnist"]), ("adding, T = 1,000", runs["adding"]))
        ),
    ]  # fmt: skip


def geodesic_table() -> Rows:
    """Steps of geodesic descent over those with an explicit inverse."""
    columns = ["small", "middling", "large", "momentum, small", "adam"]
    headings = ["`η\\|A\\|` small", "medium", "large", "momentum", "Adam"]
    rows = []
    for device, label in (("cpu", "one CPU core"), ("cuda", "H200")):
        for size in ("512 x 512", "512 x 32"):
            ratios = measured(f"geodesic-{device}")["ratio_to_naive"][size]
            rows.append([f"{size}, {label}", *(f"{ratios[c]:.2f}" if c in ratios else "" for c in columns)])
    return [["matrix", *headings], *rows]


def map_times(device: str) -> Rows:
    times = measured(f"maps-{device}")["milliseconds"]

    def text(value: float) -> str:
        return f"{value:.0f}" if value >= 100 and device == "cpu" else f"{value:.2f}"

    rows = [[name, *(text(times[n][name]) for n in times)] for name in times["128"]]
    return [["", *(f"n = {n}" for n in times)], *rows]


def maps_h200_table() -> Rows:
    return map_times("cuda")


def maps_cpu_table() -> Rows:
    return map_times("cpu")


TABLES: dict[str, Callable[[], Rows | str]] = {
    "cpu-layers": cpu_tables.cpu_layers_table,
    "cpu-summary": cpu_tables.cpu_summary_table,
    "cpu-sizes": cpu_tables.cpu_sizes_table,
    "cpu-parts": cpu_tables.cpu_parts_table,
    "compilers": cpu_tables.compilers_table,
    "cpu-memory": cpu_tables.cpu_memory_table,
    "cpu-linear": cpu_tables.cpu_linear_table,
    "linear-scans": cpu_tables.linear_scans_table,
    "last-state": cpu_tables.last_state_table,
    "own-cells": cpu_tables.own_cells_table,
    "own-cells-h200": h200_tables.own_cells_h200_table,
    "regularisers": cpu_tables.regularisers_table,
    "streaming": cpu_tables.streaming_table,
    "h200-eager": h200_tables.h200_eager_table,
    "h200-captured": h200_tables.h200_captured_table,
    "h200-gated": h200_tables.h200_gated_table,
    "h200-summary": h200_tables.h200_summary_table,
    "h200-bench": h200_tables.h200_bench_table,
    "h200-activations": h200_tables.h200_activations_table,
    "h200-product": h200_tables.h200_product_table,
    "h200-floor": h200_tables.h200_floor_table,
    "h200-populations": h200_tables.h200_populations_table,
    "h200-taps": h200_tables.h200_taps_table,
    "h200-saved": h200_tables.h200_saved_table,
    "h200-updates": h200_tables.h200_updates_table,
    "h200-updates-summary": h200_tables.h200_updates_summary_table,
    "exactness": h200_tables.exactness_table,
    "data": data_table,
    "geodesic": geodesic_table,
    "maps-h200": maps_h200_table,
    "maps-cpu": maps_cpu_table,
    "growth": scale_tables.growth_table,
    "data-parallel": scale_tables.parallel_table,
    "exchange": scale_tables.exchange_table,
    "systems": overview,
}


def markdown(rows: Rows | str) -> str:
    if isinstance(rows, str):
        return rows
    heading, *others = (f"| {' | '.join(row)} |\n" for row in rows)
    return heading + "|---" * len(rows[0]) + "|\n" + "".join(others)


def rewritten(text: str) -> str:
    """The text of a page with its tables made from the measurements."""
    return BLOCK.sub(lambda match: match[1] + markdown(TABLES[match[2]]()) + match[3], text)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing; exit code 1 if a page differs")
    check = parser.parse_args().check
    differing = 0
    for page in map(ROOT.joinpath, PAGES):
        text = page.read_text("utf-8")
        if rewritten(text) != text:
            differing += 1
            print(f"{page.relative_to(ROOT)}: {'differs' if check else 'rewritten'}")
            if not check:
                page.write_text(rewritten(text), "utf-8")
    return int(check and differing > 0)


if __name__ == "__main__":
    raise SystemExit(main())
