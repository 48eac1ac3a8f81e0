"""Base of the tasks over written text: their symbols have names, so that text can be read and written."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Iterable
from typing import ClassVar

import torch
from torch import Tensor

from evenflow.lab.data.treebank_files import END, UNKNOWN

from .classification import NextSymbol


class WrittenText(NextSymbol):
    """Next symbol of a text whose symbols are words or characters. A subclass implements `symbols`."""

    between: ClassVar[str] = ""  # what stands between two symbols in a text

    @abstractmethod
    def symbols(self) -> list[str]:
        """The symbols as they are written, in the order of their numbers."""

    @property
    def vocabulary(self) -> int:
        return len(self.symbols())

    def read(self, text: str) -> Tensor:
        """The numbers ``(T,)`` of the symbols of a text; an unknown one is read as `<unk>`."""
        number = {symbol: n for n, symbol in enumerate(self.symbols())}
        parts = text.replace("\n", f" {END} ").split() if self.between else re.findall(f"{UNKNOWN}|.", text, re.DOTALL)
        if not parts:
            raise ValueError(f"the text must have at least one symbol, got {text!r}")
        if (
            UNKNOWN not in number
            and (strange := next((part for part in parts if part not in number), None)) is not None
        ):
            raise ValueError(f"task {self.name} has neither the symbol {strange!r} nor {UNKNOWN}")
        return torch.tensor([number[part if part in number else UNKNOWN] for part in parts])

    def write(self, numbers: Iterable[int]) -> str:
        """The text of some symbols."""
        symbols = self.symbols()
        return self.between.join(symbols[n] for n in numbers)
