"""The commands `report`, `doctor` and `bench`: a page of curves, a diagnosis of gradients, the speed of the layers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from evenflow.lab.terminal import say, show

from .application import app
from .options import Figures, Hidden, Quiet, Table
from .result_files import say_files


@app.command()
def report(
    folders: Annotated[
        list[Path],
        typer.Argument(help="Run folders, the folder of `train --seeds`, or that of `sweep --sampler optuna`."),
    ],
    out: Annotated[Path | None, typer.Option(help="The HTML file. Default for one folder: FOLDER/report.html.")] = None,
    title: Annotated[str | None, typer.Option(help="Heading of the page.")] = None,
    table: Table = None,
    figures: Figures = None,
) -> None:
    """Write one self-contained HTML page about runs: curves, the gradient over time, settings, verdicts.

    Runs that differ in their seed alone are shown together, with means, standard errors and bands.

    Example:  evenflow report runs/adding-rnn runs/adding-sgornn --out compare.html --table latex --figures pdf
    """
    from evenflow.lab.report import check_formats, read_groups, write_beside, write_report, write_search_page
    from evenflow.lab.report.search_page import is_search
    from evenflow.lab.training.seed_folders import seed_runs

    check_formats(table, figures)
    if len(folders) == 1 and is_search(folders[0]):
        if table or figures:
            raise ValueError("--table and --figures go with runs, got the folder of a search")
        say(f"The page: {write_search_page(folders[0], out, title).resolve()}")
        return
    seeds = {folder: [] if (folder / "config.toml").is_file() else seed_runs(folder) for folder in folders}
    if out is None and len(folders) == 1 and seeds[folders[0]]:
        out = folders[0] / "report.html"
    folders = [run for folder in folders for run in seeds[folder] or [folder]]
    page = write_report(folders, out, title)
    say(f"The page: {page.resolve()}")
    say_files(write_beside(page, read_groups(folders), table, figures))


@app.command()
def doctor(
    target: Annotated[
        str,
        typer.Argument(
            help="A run folder, a file of weights, a name of `evenflow pretrained`, or a system: a name or module:name."
        ),
    ],
    hidden: Annotated[int | None, typer.Option(help="Hidden units of a new system. Default: 128.")] = None,
    input: Annotated[int | None, typer.Option(help="Inputs of a new system. Default: 2.")] = None,
    length: Annotated[int | None, typer.Option(help="Time steps of random inputs. Default: 200.")] = None,
    weights: Annotated[str | None, typer.Option("--weights", help="Weights of a run: best or last.")] = None,
    trusted: Annotated[bool, typer.Option("--trusted", help="Load a pickled module, which can run any code.")] = False,
) -> None:
    """Diagnose gradients in plain sentences: do they vanish or explode, where, what does theory say, what to change.

    Example:  evenflow doctor runs/adding-rnn
    """
    from evenflow.lab.diagnosis.cli_target import diagnose_target

    say(str(diagnose_target(target, hidden=hidden, input=input, length=length, weights=weights, trusted=trusted)))


@app.command()
def bench(
    device: Annotated[str, typer.Option(help="cpu, cuda, or auto (a GPU if there is one).")] = "auto",
    hidden: Hidden = 128,
    batch: Annotated[int, typer.Option(help="Sequences in a batch.")] = 50,
    length: Annotated[int, typer.Option(help="Time steps.")] = 784,
    repeats: Annotated[int, typer.Option(help="Repetitions; the table shows medians.")] = 10,
    out: Annotated[Path | None, typer.Option(help="Also write the results to this JSON file.")] = None,
    quiet: Quiet = False,
) -> None:
    """Time a training step of the layers, of torch's own, of a loop in plain torch, and of flashrnn if installed.

    Example:  evenflow bench --hidden 64 --batch 16 --length 200 --repeats 5
    """
    from evenflow.lab.bench import bench as measure

    if out is not None and out.is_dir():
        raise ValueError(f"--out must be a file, got the folder {out}")
    result = measure(device, hidden, batch, length, repeats, progress=not quiet)
    say(f"H={hidden} B={batch} T={length} float32, {result.hardware['name']}, {result.hardware['threads']} threads")
    show(result.table())
    for note in result.notes:
        say(note)
    if out is not None:
        result.write(out)
        say(f"Written to {out}")
