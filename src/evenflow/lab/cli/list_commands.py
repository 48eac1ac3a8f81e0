"""The commands `systems`, `tasks`, `penalties` and `pretrained`, which list what can be trained, added and loaded."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Annotated

import typer

from evenflow.lab.terminal import new_table, say, show
from evenflow.runtime.import_path import announced

from .application import app

if TYPE_CHECKING:
    from evenflow.lab.tasks import Task


@app.command()
def systems() -> None:
    """List the named systems: the document each comes from, its equation and its number of parameters.

    Systems of other packages, which announce them in their entry points evenflow.systems, stand at the end.

    Example:  evenflow systems
    """
    from evenflow.systems import GROUP, NETWORKS, SYSTEMS, create, find_system

    table = new_table("system", "document", "equation", "parameters", right=("parameters",))
    for name, system in SYSTEMS.items():
        count = sum(p.numel() for p in create(name, 2, 128).parameters())
        table.add_row(name, system.document, system.equation, f"{count:,}")
    for name, path in announced(GROUP).items():
        try:
            own, count = find_system(path), sum(p.numel() for p in create(path, 2, 128).parameters())
        except (TypeError, ValueError) as error:  # a package that is broken must not hide the others
            table.add_row(name, path, str(error), "")
        else:
            table.add_row(name, own.document or path, own.equation, f"{count:,}")
    show(table)
    say("Parameters: of the layer alone, 2 inputs, 128 hidden units; only the readout of esn is trained.")
    say('Use one:  evenflow.create("sgornn", 2, 128)   or   evenflow train adding sgornn')
    table = new_table("network", "document", "equation", "parameters", right=("parameters",))
    for name, row in NETWORKS.items():
        count = sum(p.numel() for p in row.network(2, 1).parameters())
        table.add_row(name, row.document, row.equation, f"{count:,}")
    show(table)
    say("Parameters: of the whole network, 2 inputs, 30 layers of 128 units, 1 output; these networks have no time.")
    say("Use one:  evenflow.SpectralResNet(784, 10, depth=100)")


@app.command()
def tasks() -> None:
    """List the tasks, their options, and the loss that a network without memory reaches.

    Tasks of other packages, which announce them in their entry points evenflow.tasks, stand at the end.

    Example:  evenflow tasks
    """
    from evenflow.lab.tasks import TASKS
    from evenflow.lab.tasks.registry import GROUP, find_task
    from evenflow.lab.tasks.task import option_fields

    table = new_table("task", "option", "default", "meaning")
    for name in [*TASKS, *announced(GROUP)]:
        try:
            kind = find_task(name)
            task, fields = kind.from_options({}), option_fields(kind)
        except ValueError as error:  # a package that is broken must not hide the others
            table.add_row(name, "", "", str(error))
            continue
        for number, field in enumerate(fields):
            shown = "" if field.default is None else str(field.default)
            table.add_row("" if number else name, field.name, shown, field.metadata.get("help", ""))
        table.add_row("" if fields else name, "", "", _facts(task))
        table.add_section()
    show(table)
    say("Use one:  evenflow train adding sgornn --task-option length=400")


def _facts(task: Task) -> str:
    """The loss of a network without memory, the metric and the note of a task, as far as its data files are present."""
    facts = []
    for sentence, attribute in (
        ("without memory: loss {:.4f}", "baseline"),
        ("judged by {}", "metric_name"),
        ("{}", "note"),
    ):
        with contextlib.suppress(ValueError):  # the task's data files are missing
            if (value := getattr(task, attribute)) != "":
                facts.append(sentence.format(value))
    return "; ".join(facts) or "what it is follows from the file"


@app.command("penalties")
def list_penalties() -> None:
    """List the penalties that can be added to the loss, with their equations and default strengths.

    Example:  evenflow penalties
    """
    from evenflow.penalties import PENALTIES

    table = new_table("penalty", "equation", "strength")
    for name, kind in PENALTIES.items():
        table.add_row(name, kind.equation, f"{kind().strength:g}")
    show(table)
    say('Use them:  evenflow train adding rnn --penalty "soft_orthogonality(0.01) + stabilizer"')


@app.command("pretrained")
def list_pretrained(
    name: Annotated[str | None, typer.Argument(help="Show the card of this model. Default: list all models.")] = None,
) -> None:
    """List the trained models that ship with evenflow, or show the card of one: data, settings, numbers, limits.

    Example:  evenflow pretrained
    """
    from evenflow.checks import one_of
    from evenflow.models import pretrained
    from evenflow.models.pretrained_bundles import card_text

    cards = pretrained()
    if name is not None:
        one_of("name", name, cards)
        say(card_text(cards[name]))
        return
    table = new_table("name", "what it does", "test", "parameters", "bytes", right=("test", "parameters", "bytes"))
    for each, card in cards.items():
        score = f"{card['metric']} {card['test']['value']:.4g}"
        table.add_row(each, card["summary"], score, f"{card['parameters']:,}", f"{card['bytes']:,}")
    show(table)
    say('Use one:  evenflow.load("NAME")   or   evenflow predict NAME FILE')
