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
MOST_SYMBOLS = 256  # a symbol is one byte
NO_CHARACTER = "\0"  # stands for `<unk>` and for characters that the training text has not

TextFile = tuple[Path, str]  # a path and the text in it


@dataclass(frozen=True)
class Sentences:
    """Sentences stored end to end.

    Shapes:
        symbols ``(S,)`` uint8, indices into `character_set`; offsets ``(N + 1,)`` int64: sentence n is
        ``symbols[offsets[n]:offsets[n + 1]]``; written ``(N,)`` int64, the characters of each line as it is written.
    """

    symbols: np.ndarray
    offsets: np.ndarray
    written: np.ndarray

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
    """The symbols of the sentences: `<unk>`, then the characters of the training text in order of their code points.

    49 for the Penn Treebank, including the end of a line and the blank.
    """
    return [UNKNOWN, *_characters(_files(folder, "train")[0])]


def read_characters(folder: FilePath | None = None, part: str = "train", longest: int | None = None) -> Sentences:
    """The sentences of one part, one per line, as symbols of `character_set`.

    A sentence is its whole line, with its blanks and its end. `<unk>` is one symbol, and so is a character that the
    training text has not. Blank lines are left out.

    Args:
        folder, part: as in `read_words`.
        longest: leave out lines with more characters, counted with `<unk>` spelt out and with the end of the line, as
            Vorontsov et al. (2017) do: 23.4 % of the training lines have at most 75, 99.4 % at most 300. Default: keep
            all.

        >>> sentences, symbols = read_characters(part="test", longest=75), character_set()
        >>> len(sentences), "".join(symbols[n] for n in sentences[0])
        (911, " no it was n't black monday \\n")

    Raises:
        ValueError: as in `read_words`; also if no sentence is left.
    """
    if longest is not None:
        whole_number("longest", longest, 1)
    training, file = _files(folder, part)
    sentences = _sentences(training, file)
    if longest is None:
        return sentences
    short = sentences.written <= longest
    if not short.any():
        raise cannot_read(file[0], f"no line in it has at most {longest} characters")
    lengths = np.diff(sentences.offsets)
    return Sentences(sentences.symbols[np.repeat(short, lengths)], _offsets(lengths[short]), sentences.written[short])


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
def _characters(training: TextFile) -> str:
    """The characters of the training text, without those of `<unk>`."""
    characters = sorted(set("".join(_lines(training[1])).replace(UNKNOWN, "")) - {NO_CHARACTER})
    if not characters or len(characters) >= MOST_SYMBOLS:
        why = f"the training text has {len(characters)} different characters, not 1 to {MOST_SYMBOLS - 1}"
        raise cannot_read(training[0], why)
    return "".join(characters)


@lru_cache(maxsize=6)
def _sentences(training: TextFile, file: TextFile) -> Sentences:
    characters, lines = _characters(training), _lines(file[1])
    if not lines:
        raise cannot_read(file[0], "it has no sentence")
    number = np.zeros(CODE_POINTS, np.uint8)  # 0 is `<unk>`
    number[[ord(character) for character in characters]] = np.arange(1, len(characters) + 1)
    shortened = [line.replace(UNKNOWN, NO_CHARACTER) for line in lines]
    symbols = number[np.frombuffer("".join(shortened).encode("utf-32-le"), np.uint32)]
    offsets, written = _offsets([len(line) for line in shortened]), np.array([len(line) for line in lines])
    return Sentences(_read_only(symbols), _read_only(offsets), _read_only(written))


def _lines(text: str) -> list[str]:
    """The lines with their blanks and an end each; blank lines are left out."""
    return [f"{line}\n" for line in text.replace("\r\n", "\n").split("\n") if line.strip()]


def _offsets(lengths: Sequence[int] | np.ndarray) -> np.ndarray:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])


def _read_only(array: np.ndarray) -> np.ndarray:
    """The array, which is shared by all callers, protected from changes."""
    array.setflags(write=False)
    return array
