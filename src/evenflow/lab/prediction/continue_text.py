"""Continue a text with the language model of a run folder."""

from __future__ import annotations

import os
from typing import Any

import torch

from evenflow.lab.tasks.written_text import WrittenText
from evenflow.lab.training import Run, read_config
from evenflow.lab.training.config import relocate_data
from evenflow.models import load
from evenflow.models.generation import generate


def continue_text(
    folder: str | os.PathLike[str],
    start: str,
    steps: int,
    *,
    seed: int = 0,
    data: str | os.PathLike[str] | None = None,
    **options: Any,
) -> str:
    """The text and its continuation by the weights of the best validation.

    Args:
        folder: a run folder of a task over text.
        start: the text to continue.
        steps: symbols to generate.
        seed: of the draws.
        data: the data folder, if it has moved; it holds the training text, which the names of the symbols come from.
        options: temperature, top_k and greedy, as `generate` takes them.

    >>> continue_text("runs/ptb-words-urnn", "this talk", 46, greedy=True)
    """
    run = Run(folder)
    task, _, _ = read_config(relocate_data(run.config, data))
    if not isinstance(task, WrittenText):
        raise ValueError(f"run must be of a task over text, ptb-words or ptb-characters, got task {task.name}")
    numbers = task.read(start)
    generator = torch.Generator().manual_seed(seed)
    following = generate(load(folder).model, numbers, steps, generator=generator, **options)  # type: ignore[arg-type]
    return task.write([*numbers.tolist(), *following.tolist()])
