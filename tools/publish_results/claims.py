"""The documents' main claims, in a sentence each, and whether the records confirm them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from evenflow.lab.recipes import Reproduction
from evenflow.lab.recipes.recipe_verdict import TableCell, rank

HOLDS, FAILS, NOT_RUN = "holds", "does not hold", "not run yet"
POINTS = 5.0  # of accuracy, by which a margin of 0.1 must beat a margin of 0
SOLVED, CHANCE = 99.0, 10.0  # per cent of right answers, with ten possible answers
NEAR = 3.0  # per cent: three standard errors of a thousand answers
SGORNN_PARAMETERS = 1411


@dataclass(frozen=True)
class Claim:
    """A sentence about some cells of a recipe.

    Attributes:
        text: the claim.
        recipe: address of the recipe.
        cells: row and column of each cell.
        holds: whether the means over seeds of these cells confirm the claim. A diverged row is worst of all.
    """

    text: str
    recipe: str
    cells: tuple[tuple[str, str], ...]
    holds: Callable[..., bool]


def _ahead(better: float, worse: float) -> bool:
    return better - worse > POINTS


ACCURACY = "test accuracy (%)"
CLAIMS = (
    Claim(
        "A single SGORNN cell solves adding at T=5000 with 1,411 parameters.",
        "sgornn/table-1",
        (("SGORNN, T=5000", "converges"), ("SGORNN, T=5000", "parameters")),
        lambda converges, parameters: converges == 1 and parameters == SGORNN_PARAMETERS,
    ),
    Claim(
        "A margin of 0.1 beats a margin of 0 on ordered MNIST by more than 5 points.",
        "factorized/table-1",
        (("m=0.1", ACCURACY), ("m=0", ACCURACY)),
        _ahead,
    ),
    Claim(
        "A margin of 0.1 beats a margin of 0 on permuted MNIST by more than 5 points.",
        "factorized/table-2",
        (("m=0.1", ACCURACY), ("m=0", ACCURACY)),
        _ahead,
    ),
    Claim(
        "A margin of 0 holds the gradient norm over time, to one per cent.",
        "factorized/figure-2",
        (("m=0", "first / last step"),),
        lambda ratio: abs(ratio - 1) <= 0.01,
    ),
    Claim(
        "uRNN solves recalling the first of 100 numbers, where a vanilla RNN stays at chance.",
        "urnn/table-3",
        (("uRNN, N=100", "accuracy (%)"), ("RNN, N=100", "accuracy (%)")),
        lambda urnn, rnn: urnn >= SOLVED and abs(rnn - CHANCE) <= NEAR,
    ),
    *(
        Claim(
            f"Spectral-RNN beats IRNN on copying at T={lag}.",
            "spectral/figure-2",
            ((f"Spectral-RNN, T={lag}", "loss"), (f"IRNN, T={lag}", "loss")),
            lambda spectral, irnn: irnn - spectral > 0.003,  # the recipe's resolution
        )
        for lag in (100, 500)
    ),
    *(
        Claim(
            f"A Spectral-MLP of 100 layers trains{how}, where an MLP does not.",
            "spectral/figure-5",
            ((f"Spectral-MLP{row}, 100 layers", "learns"), ("MLP, 100 layers", "learns")),
            lambda spectral, mlp: spectral == 1 and mlp == 0,
        )
        for how, row in (("", ""), (" with the document's leaky ReLU", ", leaky"))
    ),
)


def verdict(claim: Claim, judged: Mapping[str, Reproduction]) -> tuple[str, str]:
    """The outcome (holds, does not hold or not run yet) and the measured values."""
    result = judged[claim.recipe]
    cells = [result.cells.get(at) for at in claim.cells]
    values = [None if cell is None else rank(cell, cell.column) for cell in cells]
    if any(value is None or math.isnan(value) for value in values):
        return NOT_RUN, ""
    shown = "; ".join(_shown(cell) for cell in cells if cell is not None)
    return (HOLDS if claim.holds(*values) else FAILS), shown


def _shown(cell: TableCell) -> str:
    return f"{cell.row.label}: {cell.column.name} {cell.measured_text()}"
