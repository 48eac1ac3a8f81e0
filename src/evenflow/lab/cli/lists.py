"""What there is: systems, tasks and penalties."""

from __future__ import annotations

from typing import Any

from evenflow.lab.cli.app import app
from evenflow.lab.terminal import new_table, say, show


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
    from evenflow.lab.tasks import TASKS
    from evenflow.lab.tasks.task import option_fields

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
