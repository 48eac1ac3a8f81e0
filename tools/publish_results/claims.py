"""claims.toml: the claims of the documents in our own words, and whether the records confirm them."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evenflow.checks import one_of, unknown
from evenflow.lab.recipes import Reproduction, load
from evenflow.lab.recipes.recipe_catalog import DOCUMENTS

from .claim_checks import FAILS, HOLDS, NOISY, NOT_RUN, ONE_SEED, Check, Outcome, read_check

FILE = "claims.toml"
NOT_TESTED, IN_TESTS = "not tested", "in tests"
NAMED = 6  # cells that a line shows


@dataclass(frozen=True)
class Claim:
    """A claim of a document.

    Attributes:
        document, where, text: what the document claims, and in which section, table or figure.
        recipe: address of the recipe whose records decide it; empty if none does.
        checks: all must hold.
        test: path of the test that confirms or refutes a statement that needs no training.
        holds: of a claim with a test: what the test shows.
        untested: why nothing decides the claim.
        why: the reason found for a claim that does not hold.
    """

    document: str
    where: str
    text: str
    recipe: str = ""
    checks: tuple[Check, ...] = ()
    test: str = ""
    holds: bool = True
    untested: str = ""
    why: str = ""


@dataclass(frozen=True)
class ClaimVerdict:
    """What the records say of a claim: holds, does not hold, too noisy to tell, not run yet or not tested.

    Attributes:
        claim: the claim.
        word: the verdict without what follows.
        text: the verdict with "with one seed" or "earlier settings" where that is so.
        measured: the values that decide it, or the reason.
    """

    claim: Claim
    word: str
    text: str
    measured: str


def read(folder: Path) -> list[Claim]:
    """The claims of a results folder; empty if it has no such file. A ValueError names a slip in the file."""
    path = folder / FILE
    if not path.is_file():
        return []
    try:
        entries = tomllib.loads(path.read_text("utf-8")).get("claim", [])
        return [_read_claim(dict(entry)) for entry in entries]
    except (ValueError, OSError, TypeError) as error:
        raise ValueError(f"{str(path)!r} cannot be read: {error}") from error


def _read_claim(entry: dict[str, Any]) -> Claim:
    known = Claim.__dataclass_fields__
    entry["checks"] = entry.get("checks", [])
    column, pairs = entry.pop("column", None), entry.pop("order", [])
    for name in entry:
        if name not in known:
            raise ValueError(unknown("key of a claim", name, [*known, "column", "order"]))
    one_of("document", entry["document"], tuple(DOCUMENTS))
    recipe = load(entry["recipe"]) if entry.get("recipe") else None
    orders = [{"row": first, "beats": second} for first, second in pairs]
    if recipe is None and (entry["checks"] or orders):
        raise ValueError(f"claim {entry['text']!r} has checks and no recipe")
    checks = () if recipe is None else tuple(read_check(recipe, c, column) for c in [*entry["checks"], *orders])
    claim = Claim(**{**entry, "checks": checks})
    if sum(map(bool, (claim.checks, claim.test, claim.untested))) != 1:
        raise ValueError(f"claim {claim.text!r} must have either checks, a test or a reason why it is untested")
    return claim


def verdict(claim: Claim, judged: Mapping[str, Reproduction]) -> ClaimVerdict:
    """The outcome of a claim."""
    if claim.untested:
        return ClaimVerdict(claim, NOT_TESTED, NOT_TESTED, claim.untested)
    if claim.test:
        word = HOLDS if claim.holds else FAILS
        return ClaimVerdict(claim, word, f"{word} {IN_TESTS}", claim.test)
    result = judged[claim.recipe]
    outcomes = [check.outcome(result) for check in claim.checks]
    word = next(word for word in (FAILS, NOT_RUN, NOISY, HOLDS) if any(o.word == word for o in outcomes))
    deciding = [outcome for outcome in outcomes if outcome.word == word]
    text = f"{word} {ONE_SEED}" if word in (HOLDS, FAILS) and _single(word, deciding) else word
    if any(outcome.earlier for outcome in outcomes):
        text += " (earlier settings)"
    return ClaimVerdict(claim, word, text, _measured(outcomes, deciding))


def _single(word: str, deciding: list[Outcome]) -> bool:
    """A claim holds with several seeds if all its checks do, and fails with several if one check does."""
    return (all if word == FAILS else any)(outcome.one_seed for outcome in deciding)


def _measured(outcomes: list[Outcome], deciding: list[Outcome]) -> str:
    """The cells of the checks that decide, the first of them if there are many."""
    shown = list(dict.fromkeys(text for outcome in deciding for text in outcome.shown))
    more = f"; and {len(shown) - NAMED} more" if len(shown) > NAMED else ""
    part = f"{len(deciding)} of {len(outcomes)} checks: " if len(deciding) < len(outcomes) else ""
    return part + "; ".join(shown[:NAMED]) + more
