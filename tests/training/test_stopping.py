"""A run that is asked to stop ends after the update it is in, and loses nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from killed_runs import CONFIG, assert_same

from evenflow.training import NonFiniteLoss, Run, checkpoint, resume, train
from evenflow.training.loop import Loop
from evenflow.training.population import train_population
from evenflow.training.stopping import TimeUp, attentive, limited, wanted

LAST = CONFIG["training"]["steps"]


def during(monkeypatch: pytest.MonkeyPatch, step: int, do: Callable[[], None]) -> None:
    """Do something once, in the middle of the update after `step`."""
    draw, done = Loop.draw, []

    def drawn(loop: Loop):
        if loop.step == step and not done:
            done.append(step)
            do()
        return draw(loop)

    monkeypatch.setattr(Loop, "draw", drawn)


def press(number: int = signal.SIGINT, times: int = 1) -> Callable[[], None]:
    return lambda: [signal.raise_signal(number) for _ in range(times)] and None


def saved(folder: Path) -> int:
    return checkpoint.load(folder / "checkpoint", checkpoint.find(folder / "checkpoint")).step


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "alone"
    train(CONFIG, folder, progress=False)
    return folder


@pytest.mark.parametrize("step", range(LAST - 1))
def test_ctrl_c_ends_a_run_after_its_update_and_it_goes_on_from_there(alone, tmp_path, monkeypatch, step):
    with monkeypatch.context() as patched:
        during(patched, step, press())
        with pytest.raises(KeyboardInterrupt):
            train(CONFIG, tmp_path / "run", progress=False)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    status = Run(tmp_path / "run").status
    assert (status["state"], status["step"], status["message"]) == (
        "interrupted", step + 1, f"interrupted at step {step + 1}")  # fmt: skip
    assert saved(tmp_path / "run") == step + 1
    resume(tmp_path / "run", progress=False)
    assert_same(alone, tmp_path / "run")


def test_stopped_after_every_update_it_is_the_run_that_never_was(alone, tmp_path):
    with pytest.raises(TimeUp), limited(1e-9):
        train(CONFIG, tmp_path / "run", progress=False)
    for step in range(2, LAST):
        with pytest.raises(TimeUp), limited(1e-9):
            resume(tmp_path / "run", progress=False)
        assert saved(tmp_path / "run") == step
    with limited(1e-9):
        resume(tmp_path / "run", progress=False)
    assert_same(alone, tmp_path / "run")


@pytest.mark.parametrize("way", ["Ctrl-C", "time"])
def test_a_population_stops_and_goes_on(tmp_path, monkeypatch, way):
    configs = [CONFIG | {"training": CONFIG["training"] | {"seed": seed}} for seed in (1, 2)]
    folders = {where: [tmp_path / where / str(seed) for seed in (1, 2)] for where in ("whole", "parts")}
    train_population(configs, folders["whole"], progress=False)
    with monkeypatch.context() as patched:
        during(patched, 3, press() if way == "Ctrl-C" else lambda: None)
        stop = limited(1e-9 if way == "time" else None)
        with pytest.raises(KeyboardInterrupt), stop:
            train_population(configs, folders["parts"], progress=False)
    at = 4 if way == "Ctrl-C" else 1
    assert [saved(folder) for folder in folders["parts"]] == [at, at]
    assert {Run(folder).status["state"] for folder in folders["parts"]} == {"interrupted"}
    train_population(configs, folders["parts"], resume=True, progress=False)
    for whole, part in zip(folders["whole"], folders["parts"], strict=True):
        assert_same(whole, part)


def test_a_second_ctrl_c_does_not_wait(tmp_path, monkeypatch):
    during(monkeypatch, 4, press(times=2))
    with pytest.raises(KeyboardInterrupt):
        train(CONFIG, tmp_path / "run", progress=False)
    assert Run(tmp_path / "run").status["step"] == 4  # the update was not made
    assert saved(tmp_path / "run") == 3
    assert wanted() is None
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("ending", ["finished", "failed"])
def test_ctrl_c_is_not_lost_where_the_run_ends_by_itself(tmp_path, monkeypatch, ending):
    def diverge(*_) -> None:
        raise NonFiniteLoss("the loss became infinite or not a number")

    during(monkeypatch, LAST - 1, press())
    if ending == "failed":
        monkeypatch.setattr(Loop, "look", lambda loop, found=None: diverge() if loop.step == LAST else None)
    with pytest.raises(KeyboardInterrupt):
        train(CONFIG, tmp_path / "run", progress=False)
    assert Run(tmp_path / "run").status["state"] == ending


def test_where_weights_are_no_numbers_any_more_the_checkpoint_before_stays(tmp_path, monkeypatch):
    def spoil() -> None:
        press()()
        next(iter(loops[0].model.parameters())).data.fill_(float("nan"))

    loops: list[Loop] = []
    start = Loop.start
    monkeypatch.setattr(Loop, "start", lambda loop: (loops.append(loop), start(loop))[1])
    during(monkeypatch, 4, spoil)
    with pytest.raises(KeyboardInterrupt):
        train(CONFIG, tmp_path / "run", progress=False)
    assert saved(tmp_path / "run") == 3
    assert Run(tmp_path / "run").status["state"] == "interrupted"


def test_somebody_elses_handler_stays(alone, tmp_path, monkeypatch):
    heard: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: heard.append(number))
    try:
        during(monkeypatch, 2, press())
        train(CONFIG, tmp_path / "run", progress=False)
    finally:
        signal.signal(signal.SIGINT, before)
    assert heard == [signal.SIGINT]
    assert_same(alone, tmp_path / "run")


def test_asked_to_end_a_process_saves_its_run_and_ends(alone, tmp_path):
    """As a scheduler asks for it, some time before it kills."""
    text = f"""
import signal
from killed_runs import CONFIG
from evenflow.training import train
from evenflow.training.loop import Loop
draw = Loop.draw
def drawn(loop):
    if loop.step == 4:
        print("asked")
        signal.raise_signal(signal.SIGTERM)
    return draw(loop)
Loop.draw = drawn
train(CONFIG, {str(tmp_path / "run")!r}, progress=False)
print("not here")
"""
    path = os.pathsep.join([str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, env=os.environ | {"PYTHONPATH": path}
    )
    assert done.returncode == -signal.SIGTERM, done.stderr
    assert done.stdout == "asked\n"
    assert Run(tmp_path / "run").status["state"] == "interrupted"
    assert saved(tmp_path / "run") == 5
    resume(tmp_path / "run", progress=False)
    assert_same(alone, tmp_path / "run")


def test_another_thread_trains_as_before(alone, tmp_path):
    """It gets no signals, and the time of this one is not its own."""
    with limited(1e-9):
        thread = threading.Thread(target=train, args=(CONFIG, tmp_path / "run"), kwargs={"progress": False})
        thread.start()
        thread.join()
    assert_same(alone, tmp_path / "run")


def test_a_thread_may_have_a_limit_of_its_own():
    found = []

    def work():
        try:
            with limited(1e-6) as check:
                while True:
                    check()
        except TimeUp as error:
            found.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert len(found) == 1
    assert wanted() is None


def test_of_two_limits_the_nearer_counts():
    with limited(100):
        assert wanted() is None
        with limited(1e-9):
            assert isinstance(wanted(), TimeUp)
        assert wanted() is None
        with limited(None) as check, limited(50, since=time.monotonic() - 60):
            assert isinstance(wanted(), TimeUp)
            check()  # that of the outer block, which has none
    with limited(1e-9), limited(100):
        assert isinstance(wanted(), TimeUp)
    assert wanted() is None


def test_attention_within_attention_is_one():
    with pytest.raises(KeyboardInterrupt), attentive(), attentive():
        signal.raise_signal(signal.SIGINT)
    assert wanted() is None
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), "soon"])
def test_seconds_must_be_above_zero(seconds):
    with pytest.raises(ValueError, match="seconds must be a number above 0"), limited(seconds):
        pass
