"""From run folders to committed records, and from those to the pages."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from evenflow.lab.recipes.catalog import DOCUMENTS, HOME, load, names
from evenflow.lab.recipes.run import Reproduction
from evenflow.lab.training import atomic

from . import committed, document, incoming, overview, remarks, sweeps, swept
from .committed import Record
from .figure import draw
from .sheet import sheet
from .swept import Swept


def merge(places: Iterable[Path], into: Path) -> tuple[list[Record | Swept], list[str]]:
    """Take the records found in run folders into the committed ones; everything is read before anything is written.

    Args:
        places: run folders, folders of sweeps, folders above them, or records.
        into: the results folder.

    Returns the records that changed, and a sentence for each run or sweep that was left out.
    """
    found, new_sweeps, left = incoming.gather(places)
    merged: dict[str, Record] = {}
    for new in found:
        name = new.recipe.address
        known = merged.get(name) or committed.read(into, new.recipe)
        merged[name] = known.merged(new.runs, new.lines)
    latest = _latest(new_sweeps, into, left)
    for record in merged.values():
        for path, text in record.files().items():
            _write(into / path, text)
    for each in latest:
        _write(into / each.path, each.text())
    return [*merged.values(), *latest], left


def _latest(found: Iterable[Swept], into: Path, left: list[str]) -> list[Swept]:
    """Of sweeps of one name the latest, unless the committed one is later still."""
    latest: dict[str, Swept] = {}
    for new in found:
        path = into / new.path
        known = latest.get(new.name) or (swept.read(path) if path.is_file() else None)
        if known is not None and known.began > new.began:
            left.append(f"Left out, sweep {new.name} of {new.began}: there is one of {known.began}.")
        else:
            latest[new.name] = new
    return list(latest.values())


def pages(into: Path) -> dict[str, str]:
    """Every page that the records in a results folder give, by its path there; figures are not among them."""
    records = read_all(into)
    sheets = {name: sheet(record) for name, record in records.items()}
    said = remarks.read(into)
    for name in said:
        if not records[name].runs:
            raise ValueError(
                f"{remarks.FILE} speaks of {name}, which has no record yet: run it, or take the remark out"
            )
    all_swept = swept.read_all(into)
    found = {"README.md": overview.page(records, sheets, all_swept)}
    if all_swept:
        found[sweeps.FILE] = sweeps.page(all_swept)
    for name in DOCUMENTS:
        own = [record for record in records.values() if record.recipe.document == name]
        parts = [_section(into, record, sheets, said) for record in own if record.runs]
        found[f"{name}.md"] = document.page(name, parts, [record for record in own if not record.runs])
    return found


def _section(into: Path, record: Record, sheets: dict[str, Reproduction], said: dict[str, list[str]]) -> str:
    """A recipe's part of its page, whose remarks have no number of their own."""
    name = record.recipe.address
    done, sentences, drawn = sheets[name], said.get(name, []), (into / f"{name}.svg").is_file()
    shown = document.section(record, done, [], drawn)
    remarks.check(name, sentences, [shown, (HOME / f"{name}.toml").read_text("utf-8"), *record.files().values()])
    return document.section(record, done, sentences, drawn) if sentences else shown


def read_all(into: Path) -> dict[str, Record]:
    """The committed record of every recipe, empty or not; a ValueError for a record of no recipe."""
    known = {f"{name}{ending}" for name in names() for ending in (".json", ".curves.json")}
    for path in sorted(into.glob("*/*.json")):
        if path.parent.name != swept.FOLDER and path.relative_to(into).as_posix() not in known:
            raise ValueError(f"record {str(path)!r} is of no recipe: `evenflow recipes` lists them")
    return {name: committed.read(into, load(name)) for name in names()}


def write(into: Path) -> list[Path]:
    """Draw the figures, write all pages and remove one of which nothing is left; returns the pages that changed."""
    for name, record in read_all(into).items():
        path = into / f"{name}.svg"
        text = draw(sheet(record)) if record.runs else None
        if text is not None:
            _write(path, text)
        elif path.is_file():
            path.unlink()
    changed = differing(into)
    found = pages(into)
    for path in changed:
        text = found.get(path.relative_to(into).as_posix())
        if text is None:
            path.unlink()
        else:
            _write(path, text)
    return changed


def differing(into: Path) -> list[Path]:
    """Pages on disk that are not what the records give."""
    given = pages(into)
    found = []
    for name in dict.fromkeys([*given, sweeps.FILE]):  # a page of sweeps may be left when there are none
        path, text = into / name, given.get(name)
        if (path.read_text("utf-8") if path.is_file() else None) != text:
            found.append(path)
    return found


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.is_file() or path.read_text("utf-8") != text:
        atomic.write(path, text.encode())
