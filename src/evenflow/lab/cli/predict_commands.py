"""The commands `predict`, `evaluate`, `generate` and `export`: a trained run in use."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from evenflow.lab.terminal import new_table, say, show

from .application import app
from .options import MovedData, Quiet

if TYPE_CHECKING:
    from evenflow.lab.prediction import Backtest
    from evenflow.models.prediction_quality import Evaluation

Model = Annotated[
    Path,
    typer.Argument(metavar="RUN", help="A run folder, a folder of evenflow.save, or a name of `evenflow pretrained`."),
]
MOST_LABELS = 20  # of a confusion matrix on a terminal
SHARES = ("precision", "recall", "F1")


def _path_alone(file: Path | None) -> Path | None:
    if file is not None and str(file).startswith(("csv:", "npz:")) and not file.exists():
        raise ValueError(f"file must be a path without {str(file)[:4]!r}, got {str(file)!r}")
    return file


@app.command()
def predict(
    run: Model,
    file: Annotated[
        Path,
        typer.Argument(callback=_path_alone, help="New data: a CSV or npz file as for training, targets not needed."),
    ],
    out: Annotated[Path, typer.Option(help="The CSV file to write; one of this name is replaced.")] = Path(
        "predictions.csv"
    ),
    horizon: Annotated[
        int | None, typer.Option(min=1, help="Forecast this many steps; for runs that learned the next step.")
    ] = None,
    known: Annotated[
        Path | None,
        typer.Option(callback=_path_alone, help="The steps to forecast: a file with the inputs that are known ahead."),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Predict for new data, in the units of the training data, and write a CSV file.

    The file has a row for each sequence, or for each step if the run answers at every step: the predicted class and the
    probability of each class, or the predicted numbers. A file may be larger than the memory.

    Example:  evenflow predict runs/motion-lstm new.csv --out predictions.csv

    Example:  evenflow predict runs/wave-gru wave.csv --horizon 24 --out forecast.csv

    Example:  evenflow predict runs/load-gru load.csv --horizon 24 --known weather.csv
    """
    from evenflow.lab.prediction import predict_file
    from evenflow.lab.training.run_folder import METRICS
    from evenflow.models import load

    inside = out.is_file() and out.resolve().is_relative_to(run.resolve())
    if inside and (out.suffix != ".csv" or out.name == METRICS):
        raise ValueError(f"--out must not replace a file of the run, got {str(out)!r}")
    with _progress(quiet) as progress:
        rows = predict_file(load(run), file, out, horizon=horizon, known=known, progress=progress)
    say(f"{rows:,} rows in {out}")


@app.command()
def evaluate(
    run: Model,
    file: Annotated[
        Path, typer.Argument(callback=_path_alone, help="Test data: a CSV or npz file as for training, with targets.")
    ],
    horizon: Annotated[
        int | None,
        typer.Option(min=1, help="Backtest forecasts of this many steps; for runs that learned the next step."),
    ] = None,
    season: Annotated[
        int | None, typer.Option(min=1, help="Steps after which the series repeats itself, for --horizon.")
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Compare predictions with the targets of a file.

    For classes: accuracy, precision, recall and F1 of each class, and the confusion matrix. For numbers: mean absolute
    error, root mean squared error and R², in the units of the file.

    With --horizon, forecasts from every horizon-th step are compared with what came, and with the naive forecasts: the
    last value, and the values one season before. MASE is the error divided by the mean change over a season.

    Example:  evenflow evaluate runs/motion-lstm test.csv

    Example:  evenflow evaluate runs/wave-gru wave.csv --horizon 24 --season 24
    """
    if season is not None and horizon is None:
        raise ValueError(f"--season goes with --horizon, got {season} without it")
    from evenflow.lab.prediction import backtest_file, evaluate_file
    from evenflow.models import load

    with _progress(quiet) as progress:
        if horizon is not None:
            backtest = backtest_file(load(run), file, horizon, season, progress=progress)
        else:
            result = evaluate_file(load(run), file, progress=progress)
    if horizon is not None:
        _show_backtest(backtest)
        return
    _show_evaluation(result)


@app.command("generate")
def generate_text(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder of ptb-words or ptb-characters.")],
    start: Annotated[str, typer.Argument(help="The text to continue.")],
    steps: Annotated[int, typer.Option(min=1, help="Symbols to generate.")] = 50,
    greedy: Annotated[
        bool, typer.Option("--greedy", help="Always take the likeliest symbol; nothing is drawn.")
    ] = False,
    temperature: Annotated[float, typer.Option(help="Below 1 likely symbols become more likely.")] = 1.0,
    top_k: Annotated[int | None, typer.Option(min=1, help="Draw from this many likeliest symbols only.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the draws.")] = 0,
    data: MovedData = None,
) -> None:
    """Continue a text with a trained language model, symbol by symbol, by the weights of the best validation.

    Example:  evenflow generate runs/ptb-words-urnn "this talk" --steps 46 --greedy
    """
    from evenflow.lab.prediction import continue_text

    drawn = {"temperature": temperature, "top_k": top_k, "greedy": greedy}
    say(continue_text(run, start, steps, seed=seed, data=data, **drawn))


@app.command("export")
def export_model(
    run: Model,
    out: Annotated[
        Path, typer.Argument(help="The file to write, .onnx, or .c for C99; an earlier export is replaced.")
    ],
) -> None:
    """Write a model for another runtime. It reads raw inputs and gives final answers: scaling and softmax are included.

    Prints the order of the inputs and of the outputs. An ONNX file needs the package onnx: pip install onnx

    Example:  evenflow export runs/motion-lstm model.onnx

    Example:  evenflow export runs/motion-lstm model.c
    """
    from evenflow import export
    from evenflow.models import load

    writers: dict[str, Callable[..., None]] = {".onnx": export.to_onnx, ".c": export.to_c}  # by the ending of the file
    if out.suffix not in writers:
        raise ValueError(f"the name of the file must end in {' or '.join(writers)}, got {str(out)!r}")
    if out.is_dir() or not out.absolute().parent.is_dir():
        raise ValueError(f"the file must be in a folder that exists, got {str(out)!r}")
    predictor = load(run)
    try:
        writers[out.suffix](predictor.model, out, **predictor.schema.export_options())
    except ImportError as error:
        raise ValueError(str(error)) from error
    say(f"{out.stat().st_size:,} bytes in {out}")
    schema = predictor.schema
    say(f"Inputs in order: {', '.join(schema.read_names)}")
    say(f"Outputs in order: {'probabilities of ' if schema.labels else ''}{', '.join(schema.output_names)}")


@contextmanager
def _progress(quiet: bool) -> Iterator[Callable[[int, int], None]]:
    """Shows the megabytes read, on a terminal, once it takes longer than two seconds."""
    from evenflow.lab.training.progress import ProgressBar

    bars: list[ProgressBar] = []

    def update(position: int, size: int) -> None:
        if not bars:
            bars.append(ProgressBar(max(1, size // 10**6), shown=not quiet))
        bars[0].update(position // 10**6, "MB")

    try:
        yield update
    finally:
        for bar in bars:
            bar.close()


def _show_backtest(result: Backtest) -> None:
    names = ["MAE", "naive", *(["seasonal"] if result.season > 1 else []), "MASE"]
    table = new_table("column", *names, right=names)
    for row in result.errors:
        table.add_row(row["column"], *(f"{row[name.lower()]:.6g}" for name in names))
    show(table)
    say(f"{result.origins:,} forecasts of {result.horizon} steps; MAE of the model and of naive forecasts.")


def _show_evaluation(result: Evaluation) -> None:
    if result.confusion is None:
        table = new_table("column", "MAE", "RMSE", "R²", right=("MAE", "RMSE", "R²"))
        for row in result.errors:
            table.add_row(row["column"], f"{row['mae']:.6g}", f"{row['rmse']:.6g}", f"{row['r2']:.4f}")
        show(table)
        say(f"{result.answers:,} predictions for {result.sequences:,} sequences.")
        return
    say(f"Accuracy {result.accuracy:.4f} of {result.answers:,} predictions for {result.sequences:,} sequences.")
    table = new_table("class", *SHARES, "count", right=(*SHARES, "count"))
    for row in result.by_label():
        shares = (_share(row[name.lower()]) for name in SHARES)
        table.add_row(str(row["label"]), *shares, f"{row['count']:,}")
    show(table)
    labels = [str(label) for label in result.schema.labels]
    if len(labels) > MOST_LABELS:
        say(f"The confusion matrix of {len(labels)} classes is too wide to print.")
        return
    table = new_table("true class", *labels, right=labels)
    for label, counts in zip(labels, result.confusion.tolist(), strict=True):
        table.add_row(label, *(f"{count:,}" for count in counts))
    say("Confusion, a column for each predicted class:")
    show(table)


def _share(value: float) -> str:
    return "none" if value != value else f"{value:.4f}"
