"""The attack campaign counts what it tries, and a part of it runs here; docs/reliability.md has the whole."""

from __future__ import annotations

import os

import pytest

from harden import ATTACKS, Attack, Trials
from harden.__main__ import main
from harden.campaign import run_attacks

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs a POSIX system")


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
