"""The Penn Treebank, or any text laid out like it: one sentence per line, words with blanks between them."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from evenflow.checks import one_of, whole_number

from .cache import Arrays, kept
from .catalog import CATALOG
from .folder import data_folder
from .guarded import cannot_read, read_text

PARTS = ("train", "valid", "test")
END, UNKNOWN = "<eos>", "<unk>"
WORDS, CHARACTERS = "words-1", "characters-1"  # cached arrays; a new form gets a new number, as old files remain
CODE_POINTS = 0x110000
MOST_CHARACTERS = 256  # what a byte can name


@dataclass(frozen=True)
class Sentences:
    """Sentences one after the other.

    Shapes:
        symbols ``(S,)`` uint8, indices into `character_set`; offsets ``(N + 1,)`` int64: sentence n is
        ``symbols[offsets[n]:offsets[n + 1]]``.
    """

    symbols: np.ndarray
    offsets: np.ndarray

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, n: int) -> np.ndarray:
        at = range(len(self))[n]  # so that -1 is the last
        return self.symbols[self.offsets[at] : self.offsets[at + 1]]


def vocabulary(folder: str | os.PathLike[str] | None = None) -> list[str]:
    """The words of the training text and `<eos>`, the most frequent first, equally frequent ones by the alphabet.

    10,000 for the Penn Treebank.
    """
    return _numbered(folder, "train")[1]


def read_words(folder: str | os.PathLike[str] | None = None, part: str = "train") -> np.ndarray:
    """A part of the text as one row of word numbers, with one `<eos>` at the end of every line.

    Words that the training text has not count as `<unk>`. The numbers are made once and kept in the cache.

    Shapes:
        ``(N,)`` int32, indices into `vocabulary`. The Penn Treebank has 929,589 / 73,760 / 82,430.

    Args:
        folder: the data folder; see `data_folder` for what None means. The texts are expected in its ``ptb/``, as
            ``ptb.train.txt``, ``ptb.valid.txt`` and ``ptb.test.txt``, or packed as ``ptb.train.txt.gz``.
        part: "train", "valid" or "test".

        >>> words = vocabulary()
        >>> [words[n] for n in read_words(part="test")[:7]]
        ['no', 'it', 'was', "n't", 'black', 'monday', '<eos>']

    Raises:
        ValueError: a file is missing, damaged or not text, or has an unknown word where there is no `<unk>`.

    Reference: Mikolov et al. 2010.
    """
    return _numbered(folder, part)[0]


def character_set(folder: str | os.PathLike[str] | None = None) -> list[str]:
    """The characters of the training sentences in order of their code points.

    49 for the Penn Treebank, the blank between words among them. The end of a line is none of them; those who count it
    have 50.
    """
    return _spelled(folder, "train")[1]


def read_characters(
    folder: str | os.PathLike[str] | None = None, part: str = "train", longest: int | None = None
) -> Sentences:
    """The sentences of a part, one per line, as characters; those longer than `longest` characters are left out.

    A sentence is its line without the blanks around it. The blanks between words and the five characters of `<unk>`
    count, the end of the line does not.

    Note: 23 % or 25 %.
        Vorontsov et al. (2017) say that 23 % of the data have at most 75 characters, and over 99 % at most 300. It is
        25.2 % and 99.4 % of these training sentences.

    Args:
        folder, part: as in `read_words`.
        longest: most characters of a sentence; None leaves out none.

        >>> sentences, characters = read_characters(part="test", longest=75), character_set()
        >>> len(sentences), "".join(characters[n] for n in sentences[0])
        (997, "no it was n't black monday")

    Raises:
        ValueError: as `read_words`; also where a character is not in the training text, or no sentence is left.
    """
    if longest is not None:
        whole_number("longest", longest, 1)
    sentences, _, path = _spelled(folder, part)
    if longest is None:
        return sentences
    lengths = np.diff(sentences.offsets)
    taken = lengths <= longest
    if not taken.any():
        raise cannot_read(path, f"no sentence in it has at most {longest} characters")
    return Sentences(sentences.symbols[np.repeat(taken, lengths)], _offsets(lengths[taken]))


def _texts(folder: str | os.PathLike[str] | None, part: str) -> tuple[str, str, Path]:
    """The training text, the text of the part, and the file of the latter."""
    one_of("part", part, PARTS)
    place, source = data_folder(folder), CATALOG["ptb"]
    training = read_text(path := source.locate(place, "ptb/ptb.train.txt"))
    if part == "train":
        return training, training, path
    return training, read_text(path := source.locate(place, f"ptb/ptb.{part}.txt")), path


def _cache_name(form: str, *texts: str) -> str:
    digests = [hashlib.sha256(text.encode()).hexdigest() for text in texts]
    return f"{form}-{hashlib.sha256(' '.join(digests).encode()).hexdigest()[:40]}"


def _numbered(folder: str | os.PathLike[str] | None, part: str) -> tuple[np.ndarray, list[str]]:
    """The word numbers of a part, and the words they number."""
    training, text, path = _texts(folder, part)

    def make() -> Arrays:
        counts = Counter(_words(training))
        words = sorted(counts, key=lambda word: (-counts[word], word))
        return {"numbers": _numbers(_words(text), words, path), "words": _packed("\n".join(words))}

    def good(found: Arrays) -> bool:
        return _fits(found["numbers"], np.int32, len(_unpacked(found["words"]).split("\n")))

    found = kept(_cache_name(WORDS, training, text), ("numbers", "words"), make, good)
    return found["numbers"], _unpacked(found["words"]).split("\n")


def _words(text: str) -> list[str]:
    """All words in order, with one `<eos>` per line, whether or not the last line ends."""
    return [*text.removesuffix("\n").replace("\n", f" {END} ").split(), END]


def _numbers(spoken: list[str], words: list[str], path: Path) -> np.ndarray:
    number = {word: n for n, word in enumerate(words)}
    if UNKNOWN not in number and (strange := next((word for word in spoken if word not in number), None)) is not None:
        raise cannot_read(path, f"the training text has neither its word {strange!r} nor {UNKNOWN}")
    unknown = number.get(UNKNOWN, 0)
    return np.fromiter((number.get(word, unknown) for word in spoken), np.int32, len(spoken))


def _spelled(folder: str | os.PathLike[str] | None, part: str) -> tuple[Sentences, list[str], Path]:
    """All sentences of a part, the characters that its symbols stand for, and its file."""
    training, text, path = _texts(folder, part)

    def make() -> Arrays:
        characters = sorted(set("".join(_lines(training))))
        if not characters or len(characters) > MOST_CHARACTERS:
            why = f"the training text has {len(characters)} different characters, not 1 to {MOST_CHARACTERS}"
            raise cannot_read(path, why)
        lines = _lines(text)
        if not lines:
            raise cannot_read(path, "it has no sentence")
        symbols = _symbols("".join(lines), characters, path)
        return {
            "symbols": symbols,
            "offsets": _offsets([len(line) for line in lines]),
            "characters": _packed("".join(characters)),
        }

    def good(found: Arrays) -> bool:
        symbols, offsets = found["symbols"], found["offsets"]
        return (
            _fits(symbols, np.uint8, len(_unpacked(found["characters"])))
            and _fits(offsets, np.int64, len(symbols) + 1)
            and bool(offsets[0] == 0 and offsets[-1] == len(symbols) and (np.diff(offsets) > 0).all())
        )

    found = kept(_cache_name(CHARACTERS, training, text), ("symbols", "offsets", "characters"), make, good)
    return Sentences(found["symbols"], found["offsets"]), list(_unpacked(found["characters"])), path


def _lines(text: str) -> list[str]:
    """The lines without the blanks around them; those with nothing else are left out."""
    return [stripped for line in text.split("\n") if (stripped := line.strip())]


def _symbols(text: str, characters: list[str], path: Path) -> np.ndarray:
    table = np.full(CODE_POINTS, -1, np.int16)
    table[[ord(character) for character in characters]] = np.arange(len(characters))
    symbols = table[np.frombuffer(text.encode("utf-32-le"), np.uint32)]
    if (unknown := symbols < 0).any():
        raise cannot_read(path, f"the training text has not its character {text[int(unknown.argmax())]!r}")
    return symbols.astype(np.uint8)


def _offsets(lengths: Sequence[int] | np.ndarray) -> np.ndarray:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])


def _packed(text: str) -> np.ndarray:
    return np.frombuffer(text.encode(), np.uint8)


def _unpacked(array: np.ndarray) -> str:
    return array.tobytes().decode()


def _fits(array: np.ndarray, dtype: type, end: int) -> bool:
    """Whether an array from the cache is a row of whole numbers in [0, end)."""
    return (
        array.dtype == dtype and array.ndim == 1 and array.size > 0 and 0 <= int(array.min()) <= int(array.max()) < end
    )
