"""What became of a run, in one word and one sentence."""

from __future__ import annotations

from dataclasses import dataclass

from evenflow.lab.report.numbers import number
from evenflow.lab.report.record import Record

LEARNED = 0.95  # a best loss under this part of the memoryless baseline is more than noise around it


@dataclass(frozen=True)
class Verdict:
    """word: for the badge; tone: good, bad or calm, the colour of the badge; reason: a sentence."""

    word: str
    tone: str
    reason: str


def judge(run: Record) -> Verdict:
    """The verdict of one run: diverged, failed, solved, unfinished, not solved, or none where nothing was measured."""
    message = str(run.status.get("message", ""))
    at = run.diverged_at
    if at is not None:
        return Verdict(
            "Diverged", "bad", _sentence(message) or f"Loss or gradient stopped being a finite number by update {at:,}."
        )
    if run.status.get("state") == "failed":
        return Verdict("Failed", "bad", _sentence(message) or "Training stopped with an error.")
    reason, at = _against_baseline(run), run.solved_at
    if at is not None and run.task is not None:
        final = run.final("valid_metric")
        kept = final is not None and run.task.solved(final)
        return Verdict("Solved", "good", f"First at update {at:,}{'' if kept else ', lost again by the end'}. {reason}")
    if run.status.get("state") != "finished":
        of = "" if run.planned is None else f" of {run.planned:,}"
        return Verdict("Unfinished", "calm", f"Stands at update {run.updates:,}{of}. {reason}")
    if run.task is None or run.best("valid_metric") is None:
        return Verdict("No verdict", "calm", reason)
    return Verdict("Not solved", "bad", reason)


def _against_baseline(run: Record) -> str:
    best = run.best("valid_loss")
    if best is None:
        return "Nothing was validated."
    loss = f"Best validation loss {number(best)}"
    if run.baseline is None:
        return f"{loss}."
    if best < LEARNED * run.baseline:
        return f"{loss}, against {number(run.baseline)} without memory."
    better = "hardly" if best < run.baseline else "no"
    return f"{loss}: {better} better than {number(run.baseline)}, the best guess without memory."


def _sentence(message: str) -> str:
    return message[:1].upper() + message[1:] + ("" if message.endswith(".") or not message else ".")
