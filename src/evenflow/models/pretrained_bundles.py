"""The trained models that ship with evenflow: bundles in the folder ``bundles``, each with a card."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from evenflow.checks import unknown

BUNDLES = Path(__file__).parent / "bundles"
CARD = "card.json"


def pretrained() -> dict[str, dict[str, Any]]:
    """The cards of the trained models that ship with evenflow, by the name that `load` takes.

    A card says what the model does (`summary`), on which data it was trained and under which terms they are (`data`),
    the settings of the training (`task`, `system`, `training`), the command that repeats it (`command`), the numbers
    measured with the bundle (`validation`, `test`) and what they do not tell (`limits`). ``evenflow pretrained NAME``
    prints it.

    >>> sorted(evenflow.pretrained())
    ['copy-exprnn', 'mnist-permuted-vprnn']
    """
    cards = sorted(BUNDLES.glob(f"*/{CARD}"))
    return {card.parent.name: json.loads(card.read_text(encoding="utf-8")) for card in cards}


def bundle_folder(path: str | os.PathLike[str]) -> Path:
    """The folder at `path`, or that of the model of this name that ships with evenflow. A folder comes first.

    Raises:
        ValueError: neither exists.
    """
    folder = Path(path)
    if os.path.lexists(folder):
        return folder
    known = pretrained()
    if str(path) in known:
        return BUNDLES / str(path)
    if len(folder.parts) == 1:
        raise ValueError(
            f"there is no folder {str(path)!r}, and {unknown('model', str(path), known)} "
            f"(models that ship with evenflow: {', '.join(known)})"
        )
    raise ValueError(f"there is no folder {str(path)!r}")


def card_text(card: dict[str, Any]) -> str:
    """A card as lines of text for people."""
    validation, test = (_score(card["metric"], card[part]) for part in ("validation", "test"))
    lines = [
        card["summary"],
        "",
        f"Data: {card['data']}",
        f"Task: {_settings(card['task'])}",
        f"Model: {_settings(card['system'])}; {card['parameters']:,} parameters, {card['bytes']:,} bytes",
        f"Training: {_settings(card['training'])}; {card['updates']:,} updates on {card['hardware']}, "
        f"evenflow {card['evenflow']}, torch {card['torch']}, {card['date']}",
        f"Validation: {validation}",
        f"Test: {test}, measured with this bundle",
        "Limits:",
        *(f"- {limit}" for limit in card["limits"]),
        f"Made by: {card['command']}",
    ]
    return "\n".join(lines)


def _settings(table: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in table.items())


def _score(metric: str, score: dict[str, Any]) -> str:
    return f"{metric} {score['value']:.4g} on {score['sequences']:,} sequences"
