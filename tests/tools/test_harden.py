"""The attack campaign counts what it tries, and a part of it runs here; docs/reliability.md has the whole."""

from __future__ import annotations

import gzip
import json
import os
import random
import shutil
import subprocess
import sys
import tomllib
import zlib
from pathlib import Path

import pytest

from harden import ATTACKS, Attack, Trials
from harden.__main__ import main
from harden.campaign import run_attacks
from harden.corpus import LARGEST, corpus, write_corpus
from harden.file_operations import Operation
from harden.fuzz import problem
from harden.mutants import changed_value, mutant
from harden.page_payloads import Elements
from harden.power_loss import restore

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs a POSIX system")

# The attacks that need no long preparation.
QUICK = ("kill-operations", "fuzz-data", "fuzz-parquet", "guided-data", "pages", "code-caches", "steps-torch")


def some_fail(trials: Trials) -> None:
    for number in range(5):
        with trials.trial(f"number {number}"):
            if number == 3:
                raise ValueError("it is three")


def dies(_: Trials) -> None:
    os._exit(7)


def breaks_off(_: Trials) -> None:
    raise KeyError("lost")


def test_trials_and_failures_are_counted():
    attacks = [Attack(run.__name__, "made", run) for run in (some_fail, dies, breaks_off)]
    some, dead, broken = run_attacks(attacks, 0, 0.05, 2, announce=lambda _: None)
    assert (some.tried, some.failures) == (5, ["number 3: ValueError: it is three"])
    assert (dead.tried, dead.failures) == (1, ["dies: its process ended with 7"])
    assert "KeyError: 'lost'" in broken.failures[0]


def test_the_table_and_the_exit_code(monkeypatch, capsys):
    attack = Attack("some-fail", "made trials", some_fail)
    monkeypatch.setitem(ATTACKS, attack.name, attack)
    assert main(["--minutes", "0.05", "--only", attack.name]) == 1
    assert "| some-fail: made trials | 5 | 1 |" in capsys.readouterr().out
    with pytest.raises(SystemExit) as ended:
        main(["--only", "no-such-attack"])
    assert ended.value.code == 2


@pytest.mark.parametrize(
    ("name", "good", "parse"),
    [
        ("a.csv", b"a,b\n1,2\n", bytes),
        ("a.json", b'{"a": [1, {"b": "c"}], "d": 2.5}', json.loads),
        ("a.toml", b"[a]\nb = 1\nc = ['d']\n", lambda content: tomllib.loads(content.decode())),
        ("a.gz", gzip.compress(b"a,b\n1,2\n" * 50, mtime=0), gzip.decompress),
    ],
    ids=["csv", "json", "toml", "gz"],
)
def test_mutants_follow_from_the_seed_and_some_keep_their_format(name, good, parse):
    first, again = ([mutant(random.Random(seed), Path(name), good) for seed in range(200)] for _ in range(2))
    assert first == again
    parsed = 0
    for content in first:
        try:
            parse(content)
            parsed += content != good
        except (ValueError, OSError, EOFError, RecursionError, zlib.error):
            pass
    assert parsed > 20
    assert len(set(first)) > 100


def test_a_changed_value_is_another_and_leaves_the_first_alone():
    value = {"a": [1, 2, {"b": "c"}], "d": 0.5}
    kept = json.dumps(value)
    others = {repr(changed_value(random.Random(seed), value)) for seed in range(100)}
    assert len(others - {repr(value)}) > 50
    assert json.dumps(value) == kept


def raising(error: BaseException):
    def read() -> None:
        raise error

    return read


def test_what_a_reader_may_do():
    assert problem(lambda: None) == ""
    assert problem(raising(ValueError("one line"))) == ""
    assert problem(raising(ValueError("two\nlines"))) == "ValueError: two | lines"
    assert problem(raising(UnicodeDecodeError("utf-8", b"\xff", 0, 1, "no"))).startswith("UnicodeDecodeError: ")
    assert problem(raising(KeyError("name"))) == "KeyError: 'name'"
    assert problem(raising(MemoryError())) == "more memory asked for than allowed"

    def endless() -> None:
        while True:
            pass

    assert problem(endless, 0.05).startswith("Hung: not back in time in test_harden.py:")


def test_what_a_page_may_hold():
    assert Elements('<p class="a">text</p><a href="#b">').found == [("p", ("class",)), ("a", ("href",))]
    for page in ("<p onclick=x>", "<a href=' JavaScript:x'>", '<img src="//example.org/x">', "<base href='https://x'>"):
        with pytest.raises(AssertionError):
            Elements(page)


def changes(run: Path, flushed: bool) -> list[Operation]:
    """A run writes a file under another name, flushes it or not, and renames it; the folder is flushed."""
    new, named = str(run / ".writing-a"), str(run / "a")
    wrote = [Operation("create", new), Operation("write", new, data=b"con"), Operation("write", new, "", 3, b"tent")]
    renamed = [Operation("rename", new, named), Operation("fsync", str(run))]
    return [Operation("mkdir", str(run)), *wrote, *[Operation("fsync", new)] * flushed, *renamed]


def on_disk(operations: list[Operation], run: Path, part: float | None, seed: int = 0) -> dict[str, bytes]:
    shutil.rmtree(run, ignore_errors=True)
    restore(operations, run, random.Random(seed), part)
    return {path.name: path.read_bytes() for path in run.iterdir()}


def test_what_a_power_failure_leaves(tmp_path):
    run = tmp_path / "run"
    whole = changes(run, flushed=True)
    assert on_disk(whole, run, 0.0) == {"a": b"content"}
    assert on_disk(whole[:-1], run, 0.0) == {}  # the folder has not been flushed
    assert on_disk(whole[:-1], run, 1.0) == {"a": b"content"}
    assert on_disk(whole[:4], run, 1.0) == {".writing-a": b"content"}
    hasty = changes(run, flushed=False)
    assert on_disk(hasty, run, 0.0) == {"a": b""}  # the name is there, the content is not
    found = {on_disk(hasty, run, None, seed).get("a") for seed in range(60)}
    assert {b"", b"con", b"content"} < found


def picky(content: bytes) -> None:
    """A reader with an error that bytes drawn at random do not find."""
    if content[:1] == b"h" and content[1:2] == b"i":
        raise KeyError("found")


GUIDED = """
import random, sys
from pathlib import Path
from harden import guided_fuzz
from harden.read_files import ReadFile
from harden.trials import Trials
import test_harden

folder = Path(sys.argv[1])
(folder / "a.bin").write_bytes(b"good")
target = ReadFile("picky", folder / "a.bin", lambda: test_harden.picky((folder / "a.bin").read_bytes()))
trials = Trials(random.Random(0), folder, 5.0, kept=folder / "kept", corpus=folder / "corpus")
guided_fuzz.guided(lambda _: iter([target]), trials, package="test_harden")
print(trials.failures, len(trials.notes), trials.tried > 100)
"""


def test_guided_fuzzing_finds_an_error_byte_by_byte(tmp_path):
    pytest.importorskip("atheris")
    around = {**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path, str(Path(__file__).parent)])}
    done = subprocess.run(
        [sys.executable, "-c", GUIDED, str(tmp_path)], env=around, capture_output=True, encoding="utf-8", check=True
    )
    assert done.stdout.startswith("[\"picky: KeyError: 'found'\"] 1 True"), done.stdout + done.stderr
    assert any(content.startswith(b"hi") for content in corpus("picky", tmp_path / "corpus"))
    assert (tmp_path / "a.bin").read_bytes() == b"good"


def test_the_corpus_keeps_small_files_once(tmp_path):
    write_corpus("a name", [b"one", b"two", b"one", bytes(LARGEST + 1)], tmp_path)
    assert sorted(corpus("a name", tmp_path)) == [b"one", b"two"]
    first = (tmp_path / "a-name.zip").read_bytes()
    write_corpus("a name", [b"two", b"one"], tmp_path)
    assert (tmp_path / "a-name.zip").read_bytes() == first
    write_corpus("a name", [], tmp_path)
    assert corpus("a name", tmp_path) == []


WITHOUT_BEST = """
import sys, warnings
from pathlib import Path
from harden.damaged_runs import Stopped, go_on
from harden.kills import LeftAlone
from harden.run_kinds import KINDS

warnings.simplefilter("ignore")  # as the attack does
run = LeftAlone(Path(sys.argv[1]))(KINDS["patience"])
(run.folder / "status.toml").unlink()  # killed before it said that it has ended
(run.folder / "checkpoint/best.safetensors").unlink()
print(go_on(Stopped(run, run.folder), run.folder, "resume").said)
"""


def test_the_attack_on_damaged_runs_hears_what_commands_warn_of(tmp_path):
    """A run that had stopped early and lost its best weights said so, and counted as silent."""
    around = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", WITHOUT_BEST, str(tmp_path)]
    done = subprocess.run(command, env=around, capture_output=True, encoding="utf-8", check=True)
    assert "best.safetensors are missing; they are" in done.stdout


def campaign(*arguments: str) -> str:
    """The campaign in a process of its own, which has used no threads; its table."""
    command = [sys.executable, str(Path(__file__).parents[2] / "tools" / "harden"), *arguments]
    done = subprocess.run(command, capture_output=True, encoding="utf-8")
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_minute_of_the_campaign():
    campaign("--minutes", "1", "--jobs", "1", "--only", *QUICK)


@pytest.mark.slow
def test_ten_minutes_of_the_campaign():
    campaign("--minutes", "10")
