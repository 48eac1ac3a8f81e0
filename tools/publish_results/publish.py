"""Merges records of runs and sweeps into the stored ones, and writes the pages that follow from them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from evenflow.lab.recipes import Reproduction, load, names
from evenflow.lab.recipes.recipe_catalog import DOCUMENTS, HOME
from evenflow.lab.training import atomic

from . import (
    best_known,
    claims,
    document_page,
    import_record,
    overview_page,
    remarks,
    stored_record,
    stored_sweep,
    sweep_page,
)
from .figure import draw
from .judged_record import judge_record
from .stored_record import StoredRecord
from .stored_sweep import StoredSweep

CONTROLS = "controls"  # folder of what `tools/random_projection.py` measures


def merge(places: Iterable[Path], into: Path) -> tuple[list[StoredRecord | StoredSweep], list[str]]:
    """Merge the records of run folders into the stored ones; everything is read before anything is written.

    Args:
        places: run folders, folders of sweeps, folders above them, or records.
        into: the results folder.

    Returns the records that changed, and a sentence for each run or sweep that was left out.
    """
    records, new_sweeps, left_out = import_record.gather(places)
    merged: dict[str, StoredRecord] = {}
    for new in records:
        name = new.recipe.address
        before = merged.get(name) or stored_record.read(into, new.recipe)
        merged[name] = before.merged(new.runs, new.lines)
    latest = _latest(new_sweeps, into, left_out)
    for record in merged.values():
        for path, text in record.files().items():
            _write(into / path, text)
    for sweep in latest:
        _write(into / sweep.path, sweep.text())
    return [*merged.values(), *latest], left_out


def _latest(sweeps: Iterable[StoredSweep], into: Path, left_out: list[str]) -> list[StoredSweep]:
    """The latest sweep of each name, unless the stored one is later still."""
    latest: dict[str, StoredSweep] = {}
    for new in sweeps:
        path = into / new.path
        stored = latest.get(new.name) or (stored_sweep.read(path) if path.is_file() else None)
        if stored is not None and stored.began > new.began:
            left_out.append(f"Left out, sweep {new.name} of {new.began}: there is one of {stored.began}.")
        else:
            latest[new.name] = new
    return list(latest.values())


def pages(into: Path) -> dict[str, str]:
    """The text of every page that follows from the records of a results folder, by its path; figures excluded."""
    records = read_all(into)
    judged = {name: judge_record(record) for name, record in records.items()}
    remarks_of = remarks.read(into)
    for name in remarks_of:
        if not records[name].runs:
            raise ValueError(
                f"{remarks.FILE} speaks of {name}, which has no record yet: run it, or take the remark out"
            )
    sweeps = stored_sweep.read_all(into)
    found = [claims.verdict(claim, judged) for claim in claims.read(into)]
    for each in found:
        _check_reason(each, records)
    goals, controls = best_known.read(into), best_known.controls(into)
    texts = {"README.md": overview_page.page(records, judged, sweeps, found, goals, controls)}
    if sweeps:
        texts[sweep_page.FILE] = sweep_page.page(sweeps)
    for document in DOCUMENTS:
        of_document = [record for record in records.values() if record.recipe.document == document]
        sections = [_section(into, record, judged, remarks_of) for record in of_document if record.runs]
        waiting = [record for record in of_document if not record.runs]
        texts[f"{document}.md"] = document_page.page(document, sections, waiting)
    return texts


def _section(
    into: Path, record: StoredRecord, judged: dict[str, Reproduction], remarks_of: dict[str, list[str]]
) -> str:
    """A recipe's section of its page. Every number of a remark must occur in the section, the recipe or the record."""
    name = record.recipe.address
    result, sentences, drawn = judged[name], remarks_of.get(name, []), (into / f"{name}.svg").is_file()
    section = document_page.section(record, result, [], drawn)
    remarks.check(name, sentences, [section, (HOME / f"{name}.toml").read_text("utf-8"), *record.files().values()])
    return document_page.section(record, result, sentences, drawn) if sentences else section


def _check_reason(found: claims.ClaimVerdict, records: dict[str, StoredRecord]) -> None:
    """Every number of the reason for a verdict must occur in the claim, its recipe or its record."""
    claim = found.claim
    if claim.recipe:
        sources = [claim.text, found.measured, (HOME / f"{claim.recipe}.toml").read_text("utf-8")]
        remarks.check(claim.recipe, [claim.why], [*sources, *records[claim.recipe].files().values()])


def read_all(into: Path) -> dict[str, StoredRecord]:
    """The stored record of every recipe, which may be empty; a record of no recipe raises a ValueError."""
    expected = {f"{name}{ending}" for name in names() for ending in (".json", ".curves.json")}
    for path in sorted(into.glob("*/*.json")):
        if (
            path.parent.name not in (stored_sweep.FOLDER, CONTROLS)
            and path.relative_to(into).as_posix() not in expected
        ):
            raise ValueError(f"record {str(path)!r} is of no recipe: `evenflow recipes` lists them")
    return {name: stored_record.read(into, load(name)) for name in names()}


def write(into: Path) -> list[Path]:
    """Draw the figures and write the pages, remove those that nothing is left of; return the pages that changed."""
    for name, record in read_all(into).items():
        _replace(into / f"{name}.svg", draw(judge_record(record)) if record.runs else None)
    changed, texts = differing(into), pages(into)
    for path in changed:
        _replace(path, texts.get(path.relative_to(into).as_posix()))
    return changed


def differing(into: Path) -> list[Path]:
    """Pages on disk that differ from what the records give."""
    texts = pages(into)
    paths = [into / name for name in dict.fromkeys([*texts, sweep_page.FILE])]  # the page of sweeps may be left over
    before = {path: path.read_text("utf-8") if path.is_file() else None for path in paths}
    return [path for path in paths if before[path] != texts.get(path.relative_to(into).as_posix())]


def _replace(path: Path, text: str | None) -> None:
    """Write a file, or remove it if there is no text."""
    if text is not None:
        _write(path, text)
    elif path.is_file():
        path.unlink()


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.is_file() or path.read_text("utf-8") != text:
        atomic.write(path, text.encode())
