"""The command line: ``evenflow demo | systems | tasks | data | train | resume | compare | report``.

Exit codes: 0 done, 1 failed, 2 bad usage. A user's slip is one line on stderr, never a stack trace.
"""

from __future__ import annotations

import dataclasses
import inspect
import sys
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from evenflow.terminal import new_table, say, show, show_attempts, show_sources
from evenflow.training.settings import Settings

app = typer.Typer(
    name="evenflow",
    help="Recurrent networks whose gradients neither vanish nor explode.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

data_app = typer.Typer(help="List and fetch the real data sets.", no_args_is_help=True)
app.add_typer(data_app, name="data")

Folder = Annotated[Path, typer.Argument(help="A run folder.")]
DataFolder = Annotated[
    Path | None,
    typer.Option("--data", help="The data folder; $EVENFLOW_DATA, else one in the user's cache, if not given."),
]
TaskOptions = Annotated[
    list[str] | None,
    typer.Option("--task-option", "-t", metavar="KEY=VALUE", help="An option of the task, as length=200. Repeatable."),
]
SystemOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--system-option", "-s", metavar="KEY=VALUE", help="An option of the layer, as map=exponential. Repeatable."
    ),
]
Data = Annotated[
    Path | None,
    typer.Option("--data", help="The data folder, for a task on real data; see `evenflow data list`."),
]
Hidden = Annotated[int, typer.Option("--hidden", help="Hidden units.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar.")]


def takes_settings(*without: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command one option per field of `Settings`, in place of its ``**settings``."""

    def wrap(command: Callable[..., None]) -> Callable[..., None]:
        own = inspect.signature(command, eval_str=True)
        options = []
        for field in dataclasses.fields(Settings):
            if field.name in without:
                continue
            flag = "--" + field.name.replace("_", "-")
            kind = inspect.get_annotations(Settings, eval_str=True)[field.name]
            option = typer.Option(flag, help=field.metadata["help"], rich_help_panel="Training")
            options.append(
                inspect.Parameter(
                    field.name,
                    inspect.Parameter.KEYWORD_ONLY,
                    default=field.default,
                    annotation=Annotated[kind, option],
                )
            )
        kept = [p for p in own.parameters.values() if p.kind is not p.VAR_KEYWORD]
        command.__signature__ = own.replace(parameters=kept + options)  # type: ignore[attr-defined]
        command.__annotations__ = {p.name: p.annotation for p in kept + options}
        return command

    return wrap


@app.command()
def demo(
    folder: Annotated[Path, typer.Option(help="Where the runs and the page go.")] = Path("runs/demo"),
    quiet: Quiet = False,
) -> None:
    """Watch a plain network forget and an orthogonal one remember: a table, and a page to look at.

    Takes about two minutes on two cores. Run again, it shows the runs it already has.

    Example:  evenflow demo --folder runs/demo
    """
    from evenflow import demo as demonstration

    say(f"The copy task, {len(demonstration.SYSTEMS)} systems at {len(demonstration.RATES)} learning rates each.")
    best, page = demonstration.run(folder, progress=not quiet, announce=say)
    show_attempts(best)
    say(f"The page: {page.resolve()}")


@app.command()
def systems() -> None:
    """List the named systems, their equations and their size.

    Example:  evenflow systems
    """
    from evenflow.systems import NETWORKS, SYSTEMS, create

    table = new_table("system", "document", "equation", "parameters")
    for name, system in SYSTEMS.items():
        count = sum(p.numel() for p in create(name, 2, 128).parameters())
        table.add_row(name, system.document, system.equation, f"{count:,}")
    show(table)
    say("Parameters: of the layer alone, 2 inputs, 128 hidden units; only the readout of esn is trained.")
    say('Use one:  evenflow.create("sgornn", 2, 128)   or   evenflow train adding sgornn')
    table = new_table("network", "document", "equation", "parameters")
    for name, row in NETWORKS.items():
        count = sum(p.numel() for p in row.network(2, 1).parameters())
        table.add_row(name, row.document, row.equation, f"{count:,}")
    show(table)
    say("Parameters: of the whole network, 2 inputs, 30 layers of 128 units, 1 output; these networks have no time.")
    say("Use one:  evenflow.SpectralResNet(784, 10, depth=100)")


@app.command()
def tasks() -> None:
    """List the tasks, their options and what a network without memory scores.

    Example:  evenflow tasks
    """
    from evenflow.tasks import TASKS
    from evenflow.tasks.task import option_fields

    table = new_table("task", "option", "default", "meaning")
    for name, kind in TASKS.items():
        task = kind()
        for field in option_fields(kind):
            shown = "" if field.default is None else str(field.default)
            table.add_row(name, field.name, shown, field.metadata["help"])
            name = ""
        table.add_row("", "", "", facts(task))
        table.add_section()
    show(table)
    say("Use one:  evenflow train adding sgornn --task-option length=400")


@data_app.command("list")
def list_data(data: DataFolder = None) -> None:
    """List the real data sets: whether they are there and whole, their size, terms and origin.

    Example:  evenflow data list --data ~/sets
    """
    from evenflow.data import data_folder

    folder = data_folder(data)
    show_sources(folder)
    say(f"The data folder: {folder.absolute()}")
    say("Fetch one:  evenflow data get mnist   One by hand: `get` says which file to put where")


@data_app.command("get")
def get_data(
    name: Annotated[str, typer.Argument(help="Which one; see `evenflow data list`.")],
    data: DataFolder = None,
    quiet: Quiet = False,
) -> None:
    """Fetch a real data set and check it against its SHA-256, or say which file to put where.

    Example:  evenflow data get mnist --data ~/sets
    """
    from evenflow.data import CATALOG, data_folder
    from evenflow.data.fetch import Unreachable, get

    try:
        files = get(name, data_folder(data), progress=not quiet)
    except Unreachable as error:
        raise typer.Exit(complain(str(error), 1)) from None
    say(f"{CATALOG[name].title}: in {files[0].parent.absolute()}")
    say(f"Terms: {CATALOG[name].terms}. Origin: {CATALOG[name].origin}.")


def facts(task: Any) -> str:
    """What a network without memory scores at a task, as far as its data is there to tell, and what it is judged by."""
    found = []
    for words, read in (
        ("without memory: loss {:.4f}", lambda: task.baseline),
        ("judged by {}", lambda: task.metric_name),
        ("{}", lambda: task.note or None),
    ):
        try:
            value = read()
        except ValueError:  # its files are not here
            continue
        if value is not None:
            found.append(words.format(value))
    return "; ".join(found) or "what it is follows from the file"


@app.command()
@takes_settings()
def train(
    task: Annotated[str, typer.Argument(help="What to learn; see `evenflow tasks`.")],
    system: Annotated[str, typer.Argument(help="What learns it; see `evenflow systems`.")],
    folder: Annotated[Path | None, typer.Option(help="The run's folder; runs/TASK-SYSTEM if not given.")] = None,
    hidden: Hidden = 128,
    data: Data = None,
    seeds: Annotated[int, typer.Option(min=1, help="Train this many seeds side by side, from --seed on.")] = 1,
    task_option: TaskOptions = None,
    system_option: SystemOptions = None,
    quiet: Quiet = False,
    **settings: Any,
) -> None:
    """Train one system on one task, in a run folder that can be resumed and reported on.

    A task is a name, or a file of your own: csv:FILE (one row a step; columns sequence, target, and the inputs) or
    npz:FILE (arrays x, y, lengths). See docs/data.md.

    Example:  evenflow train adding sgornn --hidden 64 --rate 0.01 --optimizer rmsprop -t length=200 --probe-every 50

    Example:  evenflow train csv:motion.csv lstm --hidden 32 --epochs 20 -t target=activity
    """
    from evenflow.training import train as run

    folder = folder or Path("runs") / f"{short(task)}-{system}"
    config = {
        "task": task_table(task, task_option, data),
        "system": {"name": system, "hidden_size": hidden, **pairs("--system-option", system_option)},
        "training": {key: value for key, value in settings.items() if value is not None},
    }
    if seeds > 1:
        train_seeds(config, seeds, folder, quiet)
    else:
        finish(run(config, folder, progress=not quiet), folder)


def train_seeds(config: dict[str, Any], seeds: int, folder: Path, quiet: bool) -> None:
    """Train the config with several seeds as one population, and print each and their mean."""
    import numpy as np

    from evenflow.training import NonFiniteLoss, train_population

    first = config["training"]["seed"]
    numbers = range(first, first + seeds)
    configs = [config | {"training": config["training"] | {"seed": seed}} for seed in numbers]
    results = train_population(configs, [folder / f"seed-{seed}" for seed in numbers], progress=not quiet)
    table = new_table("seed", "validation", "test", "verdict")
    measured = []
    for seed, result in zip(numbers, results, strict=True):
        if isinstance(result, NonFiniteLoss):
            table.add_row(str(seed), "", "", "diverged")
            continue
        tested = result.test_metric == result.test_metric
        measured.append(result.test_metric if tested else result.best_metric)
        test = f"{result.test_metric:.4g}" if tested else ""
        table.add_row(str(seed), f"{result.best_metric:.4g}", test, "solved" if result.solved else "not solved")
        name = f"{'test' if tested else 'best validation'} {result.task.metric_name}"
    show(table)
    if not measured:
        raise NonFiniteLoss("all seeds diverged: try a smaller rate or a clip_norm")
    say(f"Mean {name} of {len(measured)}: {np.mean(measured):.4g} ± {np.std(measured, ddof=len(measured) > 1):.2g}.")
    say(f"The runs: {folder}   Their page:  evenflow report {folder}/seed-* --out {folder}/report.html")


@app.command()
def resume(folder: Folder, quiet: Quiet = False) -> None:
    """Go on with a run that was killed or interrupted; it ends as if it never had been.

    Example:  evenflow resume runs/adding-sgornn
    """
    from evenflow.training import resume as run

    finish(run(folder, progress=not quiet), folder)


@app.command()
@takes_settings("rate")
def compare(
    task: Annotated[str, typer.Argument(help="What to learn; see `evenflow tasks`.")],
    systems: Annotated[list[str], typer.Argument(help="What learns it, one or more; see `evenflow systems`.")],
    rates: Annotated[str, typer.Option(help="Learning rates every system may try, with commas.")] = "1e-2,1e-3,1e-4",
    until_solved: Annotated[bool, typer.Option(help="A system that solved the task tries no further rate.")] = False,
    folder: Annotated[Path | None, typer.Option(help="Where runs and page go; runs/compare-TASK if not given.")] = None,
    hidden: Hidden = 128,
    data: Data = None,
    task_option: TaskOptions = None,
    quiet: Quiet = False,
    **settings: Any,
) -> None:
    """Train several systems on one task under the same rules, and set the best run of each side by side.

    Example:  evenflow compare adding rnn lstm sgornn --hidden 64 --steps 1000 -t length=200 --probe-every 50
    """
    from evenflow.report import write_report
    from evenflow.training.compare import compare as run

    folder = folder or Path("runs") / f"compare-{short(task)}"
    best = run(
        task_table(task, task_option, data),
        [{"name": name, "hidden_size": hidden} for name in systems],
        {key: value for key, value in settings.items() if value is not None},
        numbers("--rates", rates),
        folder,
        until_solved=until_solved,
        progress=not quiet,
        announce=say,
    )
    show_attempts(best)
    notes = [f"Best of the learning rates {rates}: {attempt.rate:g}." for attempt in best]
    page = write_report([attempt.folder for attempt in best], folder / "report.html", notes=notes)
    say(f"The page: {page.resolve()}")


@app.command("penalties")
def list_penalties() -> None:
    """List what can be added to the loss, and how strong it is by default.

    Example:  evenflow penalties
    """
    from evenflow.penalties import PENALTIES

    table = new_table("penalty", "equation", "strength")
    for name, kind in PENALTIES.items():
        table.add_row(name, kind.equation, f"{kind().strength:g}")  # type: ignore[call-arg]
    show(table)
    say('Use them:  evenflow train adding rnn --penalty "soft_orthogonality(0.01) + stabilizer"')


@app.command()
def report(
    folders: Annotated[list[Path], typer.Argument(help="Run folders, one or several.")],
    out: Annotated[Path | None, typer.Option(help="The page; FOLDER/report.html for one run.")] = None,
    title: Annotated[str | None, typer.Option(help="Its heading.")] = None,
) -> None:
    """Write one page that needs nothing but itself: curves, the gradient over time, settings, verdicts.

    Example:  evenflow report runs/adding-rnn runs/adding-sgornn --out compare.html
    """
    from evenflow.report import write_report

    say(f"The page: {write_report(folders, out, title).resolve()}")


@app.command()
def doctor(
    target: Annotated[str, typer.Argument(help="A run folder, a file of torch's weights, or a system's name.")],
    hidden: Annotated[int, typer.Option("--hidden", help="Hidden units of a fresh system.")] = 128,
    input: Annotated[int, typer.Option("--input", help="Width of a fresh system's input.")] = 2,
    length: Annotated[int, typer.Option("--length", help="Steps of the random inputs; a run has its task's.")] = 200,
    weights: Annotated[str | None, typer.Option("--weights", help="Of a run: best or last.")] = None,
    trusted: Annotated[bool, typer.Option("--trusted", help="Read a pickled module, which runs its code.")] = False,
) -> None:
    """Say in plain sentences whether gradients vanish or explode, where, what theory promises, and what to change.

    Example:  evenflow doctor runs/adding-rnn
    """
    from evenflow.checkup import checkup

    say(str(checkup(target, hidden=hidden, input=input, length=length, weights=weights, trusted=trusted)))


def task_table(name: str, options: Sequence[str] | None, data: Path | None) -> dict[str, Any]:
    """The task's table of a config, with the data folder among its options."""
    return {"name": name, **pairs("--task-option", options)} | ({} if data is None else {"data": str(data.absolute())})


def short(task: str) -> str:
    """A name for a folder: of csv:some/where/motion.csv it is motion."""
    return Path(task.partition(":")[2]).stem or task.rstrip(":")


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
    from evenflow.bench import bench as run

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


def pairs(option: str, texts: Sequence[str] | None) -> dict[str, Any]:
    """``key=value`` texts as a table; a value is read as TOML where it is that, and else as plain text."""
    table: dict[str, Any] = {}
    for text in texts or ():
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise ValueError(f"{option} must be KEY=VALUE, got {text!r}")
        try:
            table[key] = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            table[key] = value
    return table


def numbers(option: str, text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"{option} must be numbers with commas between them, got {text!r}") from None


def finish(result: Any, folder: Path) -> None:
    verdict = "solved" if result.solved else "not solved"
    say(f"{result.steps} updates, validation loss {result.valid_loss:.4g} (best {result.best_loss:.4g}), {verdict}.")
    if result.test_metric == result.test_metric:
        say(f"On the test part: {result.task.metric_name} {result.test_metric:.4g}, loss {result.test_loss:.4g}.")
    if result.task.note:
        say(f"The data: {result.task.note}.")
    say(f"The run: {folder}   Its page:  evenflow report {folder}")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and leave with its exit code."""
    import torch

    from evenflow.training import NonFiniteLoss

    torch.set_flush_denormal(True)  # a vanishing gradient is full of denormals, which slow a CPU down
    try:
        code = app(args=arguments, prog_name="evenflow", standalone_mode=False)
    except (ValueError, OSError) as error:
        code = complain(str(error), 2)
    except KeyboardInterrupt:
        code = complain("interrupted; `evenflow resume FOLDER` goes on where it was", 1)
    except NonFiniteLoss as error:
        code = complain(str(error), 1)
    except Exception as error:
        # The parser's own errors carry a message and a code; anything else is a defect and shows itself.
        if not hasattr(error, "format_message"):
            raise
        shown = type(error).__name__ == "NoArgsIsHelpError"  # its message is the help, printed already
        code = 2 if shown else complain(error.format_message(), 2)
    finally:
        torch.set_flush_denormal(False)
    sys.exit(code or 0)


def complain(message: str, code: int) -> int:
    print(f"evenflow: {' '.join(message.split())}", file=sys.stderr)
    return code


if __name__ == "__main__":
    main()
