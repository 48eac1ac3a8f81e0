"""Looking: the demonstration, pages, the doctor, and speed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from evenflow.lab.cli.app import app, said_again
from evenflow.lab.cli.options import Hidden, Quiet
from evenflow.lab.terminal import say, show, show_attempts


@app.command()
def demo(
    folder: Annotated[Path, typer.Option(help="Where the runs and the page go.")] = Path("runs/demo"),
    quiet: Quiet = False,
) -> None:
    """Watch a plain network forget and an orthogonal one remember: a table, and a page to look at.

    Takes about two minutes on two cores. Run again, it shows the runs it already has.

    Example:  evenflow demo --folder runs/demo
    """
    from evenflow.lab import demo as demonstration

    say(f"The copy task, {len(demonstration.SYSTEMS)} systems at {len(demonstration.LRS)} learning rates each.")
    with said_again():
        best, page = demonstration.run(folder, progress=not quiet, announce=say)
    show_attempts(best)
    say(f"The page: {page.resolve()}")


@app.command()
def report(
    folders: Annotated[list[Path], typer.Argument(help="Run folders, one or several.")],
    out: Annotated[Path | None, typer.Option(help="The page; FOLDER/report.html for one run.")] = None,
    title: Annotated[str | None, typer.Option(help="Its heading.")] = None,
) -> None:
    """Write one page that needs nothing but itself: curves, the gradient over time, settings, verdicts.

    Example:  evenflow report runs/adding-rnn runs/adding-sgornn --out compare.html
    """
    from evenflow.lab.report import write_report

    say(f"The page: {write_report(folders, out, title).resolve()}")


@app.command()
def doctor(
    target: Annotated[str, typer.Argument(help="A run folder, a file of weights, or a system's name.")],
    hidden: Annotated[int | None, typer.Option(help="Hidden units of a fresh system; 128 if not given.")] = None,
    input: Annotated[int | None, typer.Option(help="Width of a fresh system's input; 2 if not given.")] = None,
    length: Annotated[int | None, typer.Option(help="Steps of random inputs; 200 if not given.")] = None,
    weights: Annotated[str | None, typer.Option("--weights", help="Of a run: best or last.")] = None,
    trusted: Annotated[bool, typer.Option("--trusted", help="Read a pickled module, which runs its code.")] = False,
) -> None:
    """Say in plain sentences whether gradients vanish or explode, where, what theory promises, and what to change.

    Example:  evenflow doctor runs/adding-rnn
    """
    from evenflow.lab.diagnosis.checkup import checkup

    say(str(checkup(target, hidden=hidden, input=input, length=length, weights=weights, trusted=trusted)))


@app.command()
def bench(
    device: Annotated[str, typer.Option(help="cpu, cuda, or auto for a GPU where there is one.")] = "auto",
    hidden: Hidden = 128,
    batch: Annotated[int, typer.Option(help="Sequences.")] = 50,
    length: Annotated[int, typer.Option(help="Time steps.")] = 784,
    repeats: Annotated[int, typer.Option(help="Rounds; medians are shown.")] = 10,
    out: Annotated[Path | None, typer.Option(help="Also write the results to this file, as JSON.")] = None,
    quiet: Quiet = False,
) -> None:
    """Time a training pass of the layers beside torch's own, a plain loop, and flashrnn where it is installed.

    Example:  evenflow bench --hidden 64 --batch 16 --length 200 --repeats 5
    """
    from evenflow.lab.bench import bench as run

    if out is not None and out.is_dir():
        raise ValueError(f"--out must be a file, got the folder {out}")
    result = run(device, hidden, batch, length, repeats, progress=not quiet)
    say(f"H={hidden} B={batch} T={length} float32, {result.hardware['name']}, {result.hardware['threads']} threads")
    show(result.table())
    for note in result.notes:
        say(note)
    if out is not None:
        result.write(out)
        say(f"Written to {out}")
