"""The verdict on a run, in one word and one sentence."""

from __future__ import annotations

from dataclasses import dataclass

from evenflow.lab.report.numbers import number
from evenflow.lab.report.run_record import RunRecord
from evenflow.lab.training.metrics import worsened

LEARNED = 0.95  # a best loss below this share of the memoryless baseline is more than noise


@dataclass(frozen=True)
class RunVerdict:
    """The verdict on a run.

    Attributes:
        word: the text of the badge.
        tone: "good", "bad" or "calm", the colour of the badge.
        reason: a sentence.
    """

    word: str
    tone: str
    reason: str


def judge(run: RunRecord) -> RunVerdict:
    """The verdict on a run, or on all its seeds."""
    verdicts = [judge_one(seed) for seed in run.seeds]
    words = [verdict.word for verdict in verdicts]
    if len(words) == 1:
        return verdicts[0]
    counts = ", ".join(f"{words.count(word)} {word.lower()}" for word in dict.fromkeys(words))
    reason = f"{len(words)} seeds: {counts}." + "".join(f" {sentence}" for sentence in _criterion(run))
    if len(set(words)) == 1:
        return RunVerdict(words[0], verdicts[0].tone, reason)
    tone = "bad" if {"Diverged", "Failed"} & set(words) else "calm"
    return RunVerdict(f"{words.count('Solved')} of {len(words)} solved", tone, reason)


def judge_one(run: RunRecord) -> RunVerdict:
    """The verdict on one run: diverged, failed, solved, unfinished, not solved, or none if nothing was validated."""
    message = str(run.status.get("message", ""))
    message = message[:1].upper() + message[1:] + ("" if message.endswith(".") or not message else ".")
    at = run.diverged_at
    if at is not None:
        reason = message or f"Loss or gradient stopped being a finite number by update {at:,}."
        return RunVerdict("Diverged", "bad", reason)
    if run.status.get("state") == "failed":
        return RunVerdict("Failed", "bad", message or "Training stopped with an error.")
    reason, at = " ".join((*_criterion(run), *_worsening(run), _compare_with_baseline(run))), run.solved_at
    if at is not None and run.task is not None:
        final = run.final("valid_metric")
        lost = "" if final is not None and run.task.solved(final) else ", lost again by the end"
        return RunVerdict("Solved", "good", f"First at update {at:,}{lost}. {reason}")
    if run.status.get("state") != "finished":
        of = "" if run.planned is None else f" of {run.planned:,}"
        return RunVerdict("Unfinished", "calm", f"Stands at update {run.updates:,}{of}. {reason}")
    if run.task is None or run.best_value("valid_metric") is None:
        return RunVerdict("No verdict", "calm", reason)
    return RunVerdict("Not solved", "bad", reason)


def _criterion(run: RunRecord) -> list[str]:
    return [] if run.task is None else [run.task.criterion]


def _worsening(run: RunRecord) -> list[str]:
    change = worsened(run.metrics)
    return (
        []
        if change is None
        else [f"It ended worse than it began: training loss {number(change[1])} after {number(change[0])}."]
    )


def _compare_with_baseline(run: RunRecord) -> str:
    best = run.best_value("valid_loss")
    if best is None:
        return "Nothing was validated."
    loss = f"Lowest validation loss {number(best)}"
    if run.baseline is None:
        return f"{loss}."
    if best < LEARNED * run.baseline:
        return f"{loss}, against {number(run.baseline)} without memory."
    better = "hardly" if best < run.baseline else "no"
    return f"{loss}: {better} better than {number(run.baseline)}, the best guess without memory."
