"""Read the Penn Treebank, or any text with one sentence per line and blanks between words, as words or characters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from evenflow.checks import one_of, whole_number

from .catalog import CATALOG
from .folder import data_folder
from .guarded import FilePath, cannot_read, read_text

PARTS = ("train", "valid", "test")
END, UNKNOWN = "<eos>", "<unk>"
CODE_POINTS = 0x110000
MOST_CHARACTERS = 256  # a symbol is one byte

TextFile = tuple[Path, str]  # a path and the text in it


@dataclass(frozen=True)
class Sentences:
    """Sentences stored end to end.

    Shapes:
        symbols ``(S,)`` uint8, indices into `character_set`; offsets ``(N + 1,)`` int64: sentence n is
        ``symbols[offsets[n]:offsets[n + 1]]``.
    """

    symbols: np.ndarray
    offsets: np.ndarray

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, n: int) -> np.ndarray:
        n = range(len(self))[n]  # counts a negative n from the end, and raises IndexError
        return self.symbols[self.offsets[n] : self.offsets[n + 1]]


def vocabulary(folder: FilePath | None = None) -> list[str]:
    """The words of the training text and `<eos>`, the most frequent first, equally frequent words in alphabetical
    order.

    10,000 for the Penn Treebank.
    """
    return list(_vocabulary(_files(folder, "train")[0]))


def read_words(folder: FilePath | None = None, part: str = "train") -> np.ndarray:
    """One part of the text as an array of word numbers, with an `<eos>` at the end of every line.

    Words that are not in the training text are read as `<unk>`.

    Shapes:
        ``(N,)`` int32, indices into `vocabulary`. The Penn Treebank has 929,589 / 73,760 / 82,430.

    Args:
        folder: the data folder; see `data_folder` for the default. The texts are in its ``ptb/``, as
            ``ptb.train.txt``, ``ptb.valid.txt`` and ``ptb.test.txt``, or compressed as ``ptb.train.txt.gz``.
        part: "train", "valid" or "test".

        >>> words = vocabulary()
        >>> [words[n] for n in read_words(part="test")[:7]]
        ['no', 'it', 'was', "n't", 'black', 'monday', '<eos>']

    Raises:
        ValueError: a file is missing, damaged or not text, or has an unknown word and the vocabulary no `<unk>`.

    Reference: Mikolov et al. 2010.
    """
    return _word_numbers(*_files(folder, part))


def character_set(folder: FilePath | None = None) -> list[str]:
    """The characters of the training sentences in order of their code points.

    49 for the Penn Treebank, including the blank between words. Publications that count the end of a line have 50.
    """
    return list(_character_set(_files(folder, "train")[0]))


def read_characters(folder: FilePath | None = None, part: str = "train", longest: int | None = None) -> Sentences:
    """The sentences of one part, one per line, as characters.

    A sentence is its line without the blanks around it. The blanks between words and the five characters of `<unk>`
    count, the end of the line does not.

    Note: Vorontsov et al. (2017) say that 23 % of the data have at most 75 characters, and over 99 % at most 300. It is
    25.2 % and 99.4 % of these training sentences.

    Args:
        folder, part: as in `read_words`.
        longest: leave out sentences with more characters. Default: keep all.

        >>> sentences, characters = read_characters(part="test", longest=75), character_set()
        >>> len(sentences), "".join(characters[n] for n in sentences[0])
        (997, "no it was n't black monday")

    Raises:
        ValueError: as in `read_words`; also if a character is not in the training text, or no sentence is left.
    """
    if longest is not None:
        whole_number("longest", longest, 1)
    training, file = _files(folder, part)
    sentences = _sentences(training, file)
    if longest is None:
        return sentences
    lengths = np.diff(sentences.offsets)
    short = lengths <= longest
    if not short.any():
        raise cannot_read(file[0], f"no sentence in it has at most {longest} characters")
    return Sentences(sentences.symbols[np.repeat(short, lengths)], _offsets(lengths[short]))


def _files(folder: FilePath | None, part: str) -> tuple[TextFile, TextFile]:
    """The training text and the text of a part."""
    one_of("part", part, PARTS)
    paths = [CATALOG["ptb"].locate(data_folder(folder), f"ptb/ptb.{name}.txt") for name in ("train", part)]
    training = paths[0], read_text(paths[0])
    return training, training if part == "train" else (paths[1], read_text(paths[1]))


# Cached by the text, so that a changed file is read again: the Penn Treebank takes a second, and a task asks often.
@lru_cache(maxsize=2)
def _vocabulary(training: TextFile) -> tuple[str, ...]:
    counts = Counter(_words(training[1]))
    return tuple(sorted(counts, key=lambda word: (-counts[word], word)))


@lru_cache(maxsize=6)
def _word_numbers(training: TextFile, file: TextFile) -> np.ndarray:
    number = {word: n for n, word in enumerate(_vocabulary(training))}
    words = _words(file[1])
    if UNKNOWN not in number and (strange := next((word for word in words if word not in number), None)) is not None:
        raise cannot_read(file[0], f"the training text has neither its word {strange!r} nor {UNKNOWN}")
    unknown = number.get(UNKNOWN, 0)
    return _read_only(np.fromiter((number.get(word, unknown) for word in words), np.int32, len(words)))


def _words(text: str) -> list[str]:
    """All words in order, with one `<eos>` per line, whether or not the last line ends."""
    return [*text.removesuffix("\n").replace("\n", f" {END} ").split(), END]


@lru_cache(maxsize=2)
def _character_set(training: TextFile) -> str:
    characters = sorted(set("".join(_lines(training[1]))))
    if not characters or len(characters) > MOST_CHARACTERS:
        why = f"the training text has {len(characters)} different characters, not 1 to {MOST_CHARACTERS}"
        raise cannot_read(training[0], why)
    return "".join(characters)


@lru_cache(maxsize=6)
def _sentences(training: TextFile, file: TextFile) -> Sentences:
    characters, lines = _character_set(training), _lines(file[1])
    if not lines:
        raise cannot_read(file[0], "it has no sentence")
    table = np.full(CODE_POINTS, -1, np.int16)
    table[[ord(character) for character in characters]] = np.arange(len(characters))
    text = "".join(lines)
    symbols = table[np.frombuffer(text.encode("utf-32-le"), np.uint32)]
    if (unknown := symbols < 0).any():
        raise cannot_read(file[0], f"the training text has not its character {text[int(unknown.argmax())]!r}")
    return Sentences(_read_only(symbols.astype(np.uint8)), _read_only(_offsets([len(line) for line in lines])))


def _lines(text: str) -> list[str]:
    """The lines without the blanks around them; empty lines are left out."""
    return [stripped for line in text.split("\n") if (stripped := line.strip())]


def _offsets(lengths: Sequence[int] | np.ndarray) -> np.ndarray:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])


def _read_only(array: np.ndarray) -> np.ndarray:
    """The array, which is shared by all callers, protected from changes."""
    array.setflags(write=False)
    return array
