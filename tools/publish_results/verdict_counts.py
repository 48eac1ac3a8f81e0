"""Counts of the verdicts: how many published values are reproduced, by document."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from evenflow.lab.recipes import Reproduction
from evenflow.lab.recipes.measures import measure_of
from evenflow.lab.recipes.recipe_catalog import DOCUMENTS
from evenflow.lab.recipes.recipe_cell import TableCell
from evenflow.lab.recipes.recipe_verdict import (
    AGREES,
    BETTER,
    DIFFERENT,
    NOISY,
    NOT_COMPARABLE,
    ONE_SEED,
    REPRODUCED,
    WORSE,
)

from . import claim_checks
from .claim_checks import FAILS, HOLDS
from .claims import IN_TESTS, ClaimVerdict

EARLIER, NOT_RUN = "earlier settings", "not run"
SEVERAL = (REPRODUCED, BETTER, WORSE, NOISY)
SINGLE = (AGREES, BETTER, WORSE)


def section(judged: Mapping[str, Reproduction], claims: Sequence[ClaimVerdict]) -> str:
    """The first screen: the counts in sentences, and a table by document."""
    total = count(judged.values())
    several, single = sum(total[word] for word in SEVERAL), sum(total[ONE_SEED, word] for word in SINGLE)
    good = total[REPRODUCED] + total[BETTER]
    printed = sum(total[word] for word in (*SEVERAL, NOT_COMPARABLE, NOT_RUN)) + single
    share = f", {100 * good / several:.0f} % of them reproduced or better" if several else ""
    exact, counted = total["exact"], total["exact"] + total[DIFFERENT]
    sentences = [
        f"Of {printed:,} published values that need training, {several + single:,} can be compared: {several:,} with "
        f"several seeds{share}, and {single:,} with one seed. {total[NOT_COMPARABLE]:,} are not comparable, "
        f"{total[NOT_RUN]:,} not run. {total[EARLIER]:,} of the verdicts are of earlier settings. "
        f"Of {counted:,} counts of parameters {exact:,} are exact.",
    ]
    if claims:
        sentences.append(_claims(Counter(verdict.text.removesuffix(" (earlier settings)") for verdict in claims)))
    return "\n\n".join([*sentences, _table(judged)])


def _claims(words: Counter[str]) -> str:
    """How many claims hold and how many do not, by what decides them, and then the others."""
    total = words.total()
    decided = ", ".join(
        f"{place}{words.pop(HOLDS + how, 0)} hold and {words.pop(FAILS + how, 0)} do not"
        for place, how in (("", ""), ("with one seed ", f" {claim_checks.ONE_SEED}"), ("in tests ", f" {IN_TESTS}"))
    )
    others = "".join(f"; {number} are {word}" for word, number in words.most_common())
    return f"Of {total} claims {decided}{others}."


def count(results: Iterable[Reproduction]) -> Counter[str | tuple[str, str]]:
    """How often each verdict occurs among the published values, with one seed as ("one seed", side)."""
    of: Counter[str | tuple[str, str]] = Counter()
    for result in results:
        measured = {(label, column): cell for (label, column), cell in result.cells.items()}
        for row in result.recipe.rows_at("full"):
            for column in result.recipe.columns:
                if column.name not in row.published:
                    continue
                cell = measured.get((row.label, column.name))
                if not measure_of(column).trains:
                    of[_untrained(cell)] += 1
                elif cell is None:
                    of[NOT_RUN] += 1
                else:
                    of[(ONE_SEED, cell.reason) if cell.verdict == ONE_SEED else cell.verdict] += 1
                    of[EARLIER] += cell.earlier and cell.verdict != NOT_COMPARABLE
    return of


def _untrained(cell: TableCell | None) -> str:
    if cell is None or cell.verdict == NOT_COMPARABLE:
        return "uncounted"
    return "exact" if cell.verdict == REPRODUCED else DIFFERENT


def _table(judged: Mapping[str, Reproduction]) -> str:
    head = ["document", *SEVERAL, *(f"one seed, {word}" for word in SINGLE), NOT_COMPARABLE, NOT_RUN, EARLIER]
    lines = [head, ["---"] * len(head)]
    for document in (*DOCUMENTS, "all"):
        of = count(result for result in judged.values() if document in (result.recipe.document, "all"))
        numbers = [*(of[word] for word in SEVERAL), *(of[ONE_SEED, word] for word in SINGLE)]
        numbers += [of[word] for word in (NOT_COMPARABLE, NOT_RUN, EARLIER)]
        name = document if document == "all" else f"[{document}]({document}.md)"
        lines.append([name, *(str(number) if number else "–" for number in numbers)])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
