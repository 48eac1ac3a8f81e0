"""Words and characters of a text: the real one's counts, a small one's every number, and anything else refused."""

from __future__ import annotations

import gzip
import os
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenflow.lab.data import treebank_files
from evenflow.lab.data.treebank_files import character_set, read_characters, read_words, vocabulary

WORDS = {"train": 929_589, "valid": 73_760, "test": 82_430}
LINES = {"train": 42_068, "valid": 3_370, "test": 3_761}
CHARACTERS = {"train": 5_101_618, "valid": 399_782, "test": 449_945}  # with one end per line
SHORT = {"train": (9_855, 41_802), "valid": (817, 3_358), "test": (917, 3_740)}  # lines of at most 75, 300
TEXTS = {
    "train": " the cat <unk> the dog \n a cat \n\n the end\n",
    "valid": "the bird and the cat\na dog",
    "test": " dog \n",
}


def place(folder: Path, texts: dict[str, str | bytes] = TEXTS, packed: bool = False) -> Path:
    (folder / "ptb").mkdir(exist_ok=True)
    for part, text in texts.items():
        content = text.encode() if isinstance(text, str) else text
        path = folder / "ptb" / f"ptb.{part}.txt{'.gz' if packed else ''}"
        path.write_bytes(gzip.compress(content) if packed else content)
    return folder


def test_the_real_words(data):
    words = vocabulary(data)
    assert len(words) == len(set(words)) == 10_000
    assert words[:4] == ["the", "<unk>", "<eos>", "N"]
    end = words.index("<eos>")
    for part, count in WORDS.items():
        numbers = read_words(data, part)
        assert numbers.dtype == np.int32
        assert len(numbers) == count
        assert (numbers == end).sum() == LINES[part]
        assert numbers[-1] == end
    counts = np.bincount(read_words(data, "train"), minlength=len(words))
    assert (np.diff(counts) <= 0).all(), "the most frequent first"
    assert counts.min() > 0
    assert " ".join(words[n] for n in read_words(data, "test")[:7]) == "no it was n't black monday <eos>"


def test_the_real_characters(data):
    """Vorontsov et al. 2017: 49 symbols with an unknown placeholder, 23 % of the data up to 75, over 99 % up to 300."""
    known = character_set(data)
    assert len(known) == 49
    assert known[:3] == ["<unk>", "\n", " "]
    assert not {"<", ">"} & set(known)
    for part, count in CHARACTERS.items():
        everything = read_characters(data, part)
        assert len(everything) == LINES[part]
        assert everything.written.sum() == count
        unknown = int((everything.symbols == 0).sum())
        assert len(everything.symbols) + 4 * unknown == count, "<unk> is written with five characters"
        for longest, sentences in zip((75, 300), SHORT[part], strict=True):
            kept = read_characters(data, part, longest)
            assert len(kept) == sentences
            assert kept.written.max() <= longest
            assert kept.offsets[-1] == len(kept.symbols)
            assert kept.symbols.max() < len(known)
    short, long = (count / LINES["train"] for count in SHORT["train"])
    assert round(short, 2) == 0.23
    assert long > 0.99
    first = read_characters(data, "test", 75)[0]
    assert "".join(known[n] for n in first) == " no it was n't black monday \n"


def test_every_number_of_a_small_text(tmp_path):
    place(tmp_path)
    assert vocabulary(tmp_path) == ["<eos>", "the", "cat", "<unk>", "a", "dog", "end"]
    assert read_words(tmp_path, "train").tolist() == [1, 2, 3, 1, 5, 0, 4, 2, 0, 0, 1, 6, 0]
    assert read_words(tmp_path, "valid").tolist() == [1, 3, 3, 1, 2, 0, 4, 5, 0], (
        "bird and: unknown; the last line ends"
    )
    assert read_words(tmp_path, "test").tolist() == [5, 0]


def test_every_character_of_a_small_text(tmp_path):
    place(tmp_path, TEXTS | {"valid": "the <unk>\n\ndog\n a quiet dot "})
    known = character_set(tmp_path)
    assert known == ["<unk>", *sorted(set("the cat the dog the end\n"))]
    found = read_characters(tmp_path, "valid")
    spoken = ["".join(known[n] for n in sentence) for sentence in found]
    assert spoken == ["the <unk>\n", "dog\n", " a <unk><unk><unk>et dot \n"], "q, u and i are not in the training text"
    assert found.offsets.tolist() == [0, 6, 10, 24]
    assert found.written.tolist() == [10, 4, 14]
    assert found.symbols.dtype == np.uint8
    assert found.offsets.dtype == np.int64
    assert found[-1].tolist() == found[2].tolist()
    assert ["".join(known[n] for n in s) for s in read_characters(tmp_path, "valid", 10)] == ["the <unk>\n", "dog\n"]
    assert ["".join(known[n] for n in s) for s in read_characters(tmp_path, "valid", 9)] == ["dog\n"]


@pytest.mark.parametrize("change", ["packed", "carriage returns", "byte order mark"])
def test_the_same_text_in_another_dress(change, tmp_path):
    (tmp_path / "plain").mkdir()
    (tmp_path / "other").mkdir()
    texts: dict[str, str | bytes] = dict(TEXTS)
    if change == "carriage returns":
        texts = {part: text.replace("\n", "\r\n") for part, text in TEXTS.items()}
    if change == "byte order mark":
        texts = {part: b"\xef\xbb\xbf" + text.encode() for part, text in TEXTS.items()}
    plain, other = place(tmp_path / "plain"), place(tmp_path / "other", texts, packed=change == "packed")
    for part in TEXTS:
        np.testing.assert_array_equal(read_words(plain, part), read_words(other, part))
    np.testing.assert_array_equal(read_characters(plain).symbols, read_characters(other).symbols)


def test_a_text_is_tokenised_once(tmp_path, monkeypatch):
    place(tmp_path)
    words, letters = read_words(tmp_path, "valid"), read_characters(tmp_path, "train")
    monkeypatch.setattr(treebank_files, "_words", None)
    monkeypatch.setattr(treebank_files, "_lines", None)
    assert read_words(tmp_path, "valid") is words
    assert read_characters(tmp_path, "train") is letters
    assert not words.flags.writeable, "the callers share it"


def test_a_changed_text_is_tokenised_again(tmp_path):
    place(tmp_path)
    read_words(tmp_path, "test")
    place(tmp_path, {"test": "cat\n"})
    assert read_words(tmp_path, "test").tolist() == [2, 0]
    place(tmp_path, {"train": "cat\ncat\n"})
    assert read_words(tmp_path, "test").tolist() == [1, 0], "the vocabulary is that of the training text"


def test_nothing_is_written_to_the_data_folder(tmp_path):
    place(tmp_path)
    before = sorted(path.name for path in (tmp_path / "ptb").iterdir())
    assert len(read_words(tmp_path)) == 13
    assert sorted(path.name for path in (tmp_path / "ptb").iterdir()) == before


def refusal(call, *arguments: object) -> str:
    with pytest.raises(ValueError) as error:
        call(*arguments)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_refusals(tmp_path):
    assert "`evenflow data get ptb" in refusal(read_words, tmp_path)
    assert refusal(read_words, tmp_path, "dev") == "part must be one of train, valid, test, got 'dev'"
    place(tmp_path, TEXTS | {"valid": "quiz \u00e9t\u00e9\n", "test": "\n \n"})
    path = {part: str(tmp_path / "ptb" / f"ptb.{part}.txt") for part in TEXTS}
    assert refusal(read_characters, tmp_path, "train", 0) == "longest must be a whole number of at least 1, got 0"
    none = f"cannot read {path['train']!r}: no line in it has at most 3 characters"
    assert refusal(read_characters, tmp_path, "train", 3) == none
    assert refusal(read_characters, tmp_path, "test") == f"cannot read {path['test']!r}: it has no sentence"
    place(tmp_path, {"train": "cat\n", "valid": "cat dog\n", "test": b""})
    neither = f"cannot read {path['valid']!r}: the training text has neither its word 'dog' nor <unk>"
    assert refusal(read_words, tmp_path, "valid") == neither
    assert refusal(read_words, tmp_path, "test") == f"cannot read {path['test']!r}: it is empty"
    place(tmp_path, {"train": b"cat\n\xff\n"})
    assert "line 2 is not UTF-8 text" in refusal(read_words, tmp_path)
    place(tmp_path, {"train": "".join(chr(0x4E00 + n) for n in range(255))})
    many = "the training text has 256 different characters, not 1 to 255"
    assert refusal(character_set, tmp_path) == f"cannot read {path['train']!r}: {many}"
    assert read_words(tmp_path).tolist() == [1, 0], "as words it will do"


def test_a_truncated_packed_text_is_refused(tmp_path):
    place(tmp_path, packed=True)
    path = tmp_path / "ptb" / "ptb.train.txt.gz"
    path.write_bytes(path.read_bytes()[:-6])
    assert "truncated gzip file" in refusal(read_words, tmp_path)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read(tmp_path):
    (place(tmp_path) / "ptb" / "ptb.train.txt").chmod(0)
    assert "there is no permission to read it" in refusal(read_words, tmp_path)


contents = st.one_of(
    st.binary(max_size=40),
    st.text(max_size=40).map(lambda text: text.encode("utf-8", "surrogatepass")),
    st.text("ab \n\r\t<>\x00\x1c\u2028\ufeff", max_size=40).map(str.encode),
)


def attempt(call, *arguments: object):
    """What the call gives, or the sentence it refuses with."""
    try:
        return call(*arguments)
    except ValueError as error:
        return str(error)


@given(training=contents, valid=contents)
def test_any_bytes_are_a_text_or_refused(training, valid, tmp_path_factory):
    folder = place(tmp_path_factory.getbasetemp(), {"train": training, "valid": valid})
    for part, content in (("train", training), ("valid", valid)):
        text = content.decode("utf-8-sig", "replace")
        numbers = attempt(read_words, folder, part)
        if isinstance(numbers, str):
            assert "\n" not in numbers
        else:
            words = vocabulary(folder)
            spoken = [word for line in text.removesuffix("\n").split("\n") for word in (*line.split(), "<eos>")]
            assert [words[n] for n in numbers] == [word if word in words else "<unk>" for word in spoken]
        found = attempt(read_characters, folder, part, 20)
        if isinstance(found, str):
            assert "\n" not in found
        else:
            known = character_set(folder)
            lines = [f"{line}\n" for line in text.replace("\r\n", "\n").split("\n") if line.strip()]
            lines = [line for line in lines if len(line) <= 20]
            parts = [re.findall("<unk>|.", line, re.DOTALL) for line in lines]
            seen = [[part if part in known else "<unk>" for part in line] for line in parts]
            assert [[known[n] for n in sentence] for sentence in found] == seen
