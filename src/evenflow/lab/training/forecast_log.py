"""How far ahead a finished run forecasts: a backtest of its best weights, and the forecasts of one sequence."""

from __future__ import annotations

import numpy as np
from torch import nn

from evenflow.lab.tasks import Batch
from evenflow.models import Predictor
from evenflow.models.backtester import Backtester, seasonal_forecast
from evenflow.models.data_schema import DataSchema
from evenflow.models.sequence_model import SequenceModel

# Steps of a forecast, unless the model predicts several at once; or a quarter of a sequence if that is less.
HORIZON = 24
ORIGINS = 8  # forecasts in a sequence, at its end
SEQUENCES = 100  # that are forecast
COLUMNS = 3  # that are kept


class ForecastLog:
    """Collects the first sequences of a part batch by batch, and forecasts them.

    Args:
        schema: of the task. Forecasts need kind "next", and columns without marks of missing values, of numbers if
            they are not known ahead.
    """

    def __init__(self, schema: DataSchema) -> None:
        self.schema = schema
        self.sequences: list[np.ndarray] = []
        numbers = all(not column.mask and (column.known or column.kind != "category") for column in schema.inputs)
        self._wanted = SEQUENCES if schema.kind == "next" and schema.vocabulary is None and numbers else 0
        self._places = [schema.inputs.index(column) for column in schema.predicted] if self._wanted else []

    def add(self, batch: Batch) -> None:
        """Add the sequences ``(T + 1, I)`` of a batch in the user's units: its inputs and the last of its targets."""
        count = 0 if batch.carried else min(batch.inputs.shape[1], self._wanted - len(self.sequences))
        schema = self.schema
        mean, deviation = schema.input_scale
        for row in range(count):
            length = len(batch.inputs) if batch.lengths is None else int(batch.lengths[row])
            last = batch.targets[length - 1, row]
            read = batch.inputs[:length, row].double().cpu().numpy() * deviation + mean
            x, place = np.zeros((length + 1, len(schema.inputs))), 0
            for column, (each, width) in enumerate(zip(schema.inputs, schema.widths, strict=True)):
                values = read[:, place : place + each.width]
                place += width
                value = values[:, 0]
                if each.embedding is not None:
                    value = np.where(value < len(each.categories), value, np.nan)
                elif each.kind == "category":
                    value = np.where(values.any(1), values.argmax(1), np.nan)
                # What is known ahead is read one step before, so that of the first step is never read.
                x[1:, column] = value if each.known else [*value[1:], np.nan]
                x[0, column] = 0 if each.known else value[0]
            x[-1, self._places] = schema.in_units(last).cpu().numpy()[: len(self._places)]
            self.sequences.append(x)

    def arrays(self, model: nn.Module) -> dict[str, np.ndarray]:
        """What answers.npz has of forecasts, see `Run.answers`; nothing if no sequence is long enough.

        `forecast_horizon` and `forecast_season`; `forecast_sequences` and `forecast_origins`, how many sequences and
        forecasts; `forecast_errors` (O, H, 3) and `forecast_scale` (O,), those of `Backtest`; and of the longest
        sequence, whose number is `forecast_sequence`, the steps from `forecast_first` on in `forecast_true` (S, O), and
        the forecasts `forecast_found` (K, H, O) of the steps from `forecast_starts` (K,) on. The season is the one, no
        longer than the steps before the first forecast, of which seasonal naive forecasts are best.
        """
        if not self.sequences or not isinstance(model, SequenceModel) or not model.one_way:
            return {}
        longest = self.schema.horizon if self.schema.horizon > 1 else HORIZON
        horizon = min(longest, int(np.median([len(x) for x in self.sequences])) // 4)
        if horizon < 1:
            return {}
        first = max(horizon, 2)
        starts = [range(first, len(x) - horizon + 1, horizon)[-ORIGINS:] for x in self.sequences]
        test = Backtester(Predictor(model, self.schema), horizon, self._season(starts, horizon, first))
        drawn = max(range(len(starts)), key=lambda n: len(self.sequences[n]))
        for n, x in enumerate(self.sequences):
            if starts[n]:
                forecasts = test.add(x, starts[n])
                if n == drawn:
                    shown = forecasts[..., :COLUMNS]
        result = test.result()
        begin = starts[drawn][0] - first
        true = self.sequences[drawn][begin : starts[drawn][-1] + horizon, self._places[:COLUMNS]]
        values = {
            "horizon": horizon,
            "season": result.season,
            "sequences": sum(map(bool, starts)),
            "origins": result.origins,
            "errors": result.ahead[:COLUMNS],
            "scale": result.scale[:COLUMNS],
            "sequence": drawn,
            "first": begin,
            "true": true,
            "starts": starts[drawn],
            "predicted": shown,
        }
        return {f"forecast_{name}": np.array(value) for name, value in values.items()}

    def _season(self, starts: list[range], horizon: int, longest: int) -> int:
        """The season of which seasonal naive forecasts are best, errors divided by the deviation of their column."""
        errors = np.zeros(longest + 1)
        for x, origins in zip(self.sequences, starts, strict=True):
            if origins:
                y = x[:, self._places] / self.schema.output_scale[1][: len(self._places)]
                true = y[np.array(origins)[:, None] + np.arange(horizon)]
                for season in range(1, longest + 1):
                    errors[season] += np.nansum(abs(true - seasonal_forecast(y, origins, horizon, season)))
        return int(errors[1:].argmin()) + 1
