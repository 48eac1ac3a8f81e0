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

from evenflow.lab.training import NonFiniteLoss, Run, checkpoint, resume, stopping, train
from evenflow.lab.training.loop import Loop
from evenflow.lab.training.stopping import Terminated, TimeUp, check_stop, signal_handlers, stop_requested, time_limit
from evenflow.lab.training.train_population import train_population

LAST = CONFIG["training"]["steps"]


def during(monkeypatch: pytest.MonkeyPatch, step: int, do: Callable[[], None]) -> None:
    """Do something once, in the middle of the update after `step`."""
    draw, done = Loop.next_batch, []

    def drawn(loop: Loop):
        if loop.step == step and not done:
            done.append(step)
            do()
        return draw(loop)

    monkeypatch.setattr(Loop, "next_batch", drawn)


def press(number: int = signal.SIGINT, times: int = 1) -> Callable[[], None]:
    return lambda: [signal.raise_signal(number) for _ in range(times)] and None


def time_is_up() -> None:
    stopping._deadline.set(0.0)


def saved(folder: Path) -> int:
    return checkpoint.load(folder / "checkpoint", checkpoint.find(folder / "checkpoint")).step


@pytest.fixture(autouse=True)
def _interruptible():
    """A shell that runs the tests in the background has them ignore Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


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


def test_stopped_after_every_update_it_is_the_run_that_never_was(alone, tmp_path, monkeypatch):
    for step in range(LAST - 1):
        with monkeypatch.context() as patched, time_limit(100):
            during(patched, step, time_is_up)
            with pytest.raises(TimeUp):
                resume(tmp_path / "run", progress=False) if step else train(CONFIG, tmp_path / "run", progress=False)
        assert saved(tmp_path / "run") == step + 1
    resume(tmp_path / "run", progress=False)
    assert_same(alone, tmp_path / "run")


def test_when_the_time_is_over_nothing_begins(tmp_path):
    with time_limit(1e-9):
        with pytest.raises(TimeUp):
            train(CONFIG, tmp_path / "run", progress=False)
        with pytest.raises(TimeUp):
            train_population([CONFIG, CONFIG], [tmp_path / "a", tmp_path / "b"], progress=False)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("way", ["Ctrl-C", "time"])
def test_a_population_stops_and_goes_on(tmp_path, monkeypatch, way):
    configs = [CONFIG | {"training": CONFIG["training"] | {"seed": seed}} for seed in (1, 2)]
    folders = {where: [tmp_path / where / str(seed) for seed in (1, 2)] for where in ("whole", "parts")}
    train_population(configs, folders["whole"], progress=False)
    with monkeypatch.context() as patched:
        during(patched, 3, press() if way == "Ctrl-C" else time_is_up)
        with pytest.raises(KeyboardInterrupt), time_limit(100):
            train_population(configs, folders["parts"], progress=False)
    assert [saved(folder) for folder in folders["parts"]] == [4, 4]
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
    assert stop_requested() is None
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("ending", ["finished", "failed"])
def test_ctrl_c_is_not_lost_where_the_run_ends_by_itself(tmp_path, monkeypatch, ending):
    def diverge(*_) -> None:
        raise NonFiniteLoss("the loss became infinite or not a number")

    during(monkeypatch, LAST - 1, press())
    if ending == "failed":
        monkeypatch.setattr(Loop, "record", lambda loop, found=None: diverge() if loop.step == LAST else None)
    with pytest.raises(KeyboardInterrupt):
        train(CONFIG, tmp_path / "run", progress=False)
    assert Run(tmp_path / "run").status["state"] == ending


def test_ctrl_c_is_not_lost_where_the_time_is_up_as_well(tmp_path, monkeypatch):
    """Whoever limits the time goes on after `TimeUp`."""
    leave = Loop.save_before_stop
    monkeypatch.setattr(Loop, "save_before_stop", lambda loop: (press()(), leave(loop))[1])
    during(monkeypatch, 4, time_is_up)
    with pytest.raises(KeyboardInterrupt) as raised, time_limit(100):
        train(CONFIG, tmp_path / "run", progress=False)
    assert raised.type is KeyboardInterrupt
    assert saved(tmp_path / "run") == 5


@pytest.mark.parametrize("why", ["nan", "full disk"])
def test_what_cannot_be_saved_is_said_and_the_checkpoint_before_stays(tmp_path, monkeypatch, why):
    def spoil() -> None:
        press()()
        if why == "nan":
            next(iter(loops[0].model.parameters())).data.fill_(float("nan"))
        else:
            monkeypatch.setattr(checkpoint, "save", full)

    def full(*_):
        raise OSError(28, "No space left on device")

    loops: list[Loop] = []
    start = Loop.start
    monkeypatch.setattr(Loop, "start", lambda loop: (loops.append(loop), start(loop))[1])
    during(monkeypatch, 4, spoil)
    with (
        pytest.warns(UserWarning, match="step 5 is not saved, the run goes on from one before"),
        pytest.raises(KeyboardInterrupt),
    ):
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


@pytest.mark.parametrize("times", [1, 2])
def test_a_request_to_end_is_heard_however_often_it_is_made(alone, tmp_path, monkeypatch, times):
    """As schedulers make it, some time before they kill."""
    with monkeypatch.context() as patched:
        during(patched, 4, press(signal.SIGTERM, times))
        with pytest.raises(Terminated):
            train(CONFIG, tmp_path / "run", progress=False)
    assert Run(tmp_path / "run").status["state"] == "interrupted"
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    assert saved(tmp_path / "run") == 5
    resume(tmp_path / "run", progress=False)
    assert_same(alone, tmp_path / "run")


def test_the_command_ends_when_it_is_asked_to(tmp_path):
    arguments = ["train", "adding", "rnn", "--steps", "1000000", "--folder", str(tmp_path / "run"), "-q"]
    process = subprocess.Popen([sys.executable, "-m", "evenflow", *arguments], stderr=subprocess.PIPE, text=True)
    while not (tmp_path / "run/metrics.csv").exists() or (tmp_path / "run/metrics.csv").read_text().count("\n") < 2:
        assert process.poll() is None
        time.sleep(0.1)
    process.terminate()
    _, said = process.communicate(timeout=60)
    assert process.returncode == 1
    assert said == "evenflow: interrupted; a run goes on where it was with `evenflow resume FOLDER`\n"
    status = Run(tmp_path / "run").status
    assert (status["state"], status["step"]) == ("interrupted", saved(tmp_path / "run"))


def test_a_process_forked_meanwhile_ends_at_once():
    ready, tell = os.pipe()
    with signal_handlers():
        child = os.fork()
        if child == 0:
            os.write(tell, b".")
            time.sleep(60)
            os._exit(0)
        os.read(ready, 1)
        os.kill(child, signal.SIGTERM)
        _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGTERM


def test_on_a_terminal_the_first_ctrl_c_is_answered(monkeypatch):
    said: list[bytes] = []
    monkeypatch.setattr(os, "isatty", lambda number: number == 2)
    monkeypatch.setattr(os, "write", lambda number, text: said.append(text))
    with pytest.raises(KeyboardInterrupt), signal_handlers():
        signal.raise_signal(signal.SIGINT)
    assert said == [b"\nevenflow: stopping after this update; Ctrl-C again stops at once\n"]


def test_a_handler_set_meanwhile_stays():
    def own(number, frame):
        pass

    with signal_handlers():
        signal.signal(signal.SIGINT, own)
    try:
        assert signal.getsignal(signal.SIGINT) is own
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def test_a_request_after_the_last_update_is_not_of_the_next_run(alone, tmp_path, monkeypatch):
    with monkeypatch.context() as patched:
        during(patched, LAST - 1, press())
        with pytest.raises(KeyboardInterrupt):
            train(CONFIG, tmp_path / "interrupted", progress=False)
    train(CONFIG, tmp_path / "run", progress=False)
    assert_same(alone, tmp_path / "run")


def test_another_thread_trains_as_before(alone, tmp_path):
    """It gets no signals, and the time of this one is not its own."""
    with time_limit(1e-9):
        thread = threading.Thread(target=train, args=(CONFIG, tmp_path / "run"), kwargs={"progress": False})
        thread.start()
        thread.join()
    assert_same(alone, tmp_path / "run")


def test_a_thread_has_a_limit_of_its_own_and_no_signals():
    found: list[object] = []

    def work():
        found.append(stop_requested())
        with time_limit(1e-9):
            found.append(type(stop_requested()))

    with signal_handlers():
        thread = threading.Thread(target=work)
        handlers = stopping._handlers.get()
        handlers.request = KeyboardInterrupt
        thread.start()
        thread.join()
        handlers.request = None
    assert found == [None, TimeUp]
    assert stop_requested() is None


def test_of_two_limits_the_nearer_counts():
    with time_limit(100):
        check_stop()
        with time_limit(1e-9), pytest.raises(TimeUp):
            check_stop()
        assert stop_requested() is None
        with time_limit(None), time_limit(50, since=time.monotonic() - 60):
            assert isinstance(stop_requested(), TimeUp)
    with time_limit(1e-9), time_limit(100), time_limit(None):
        assert isinstance(stop_requested(), TimeUp)
    assert stop_requested() is None


def test_attention_within_attention_is_one():
    with pytest.raises(KeyboardInterrupt), signal_handlers(), signal_handlers():
        signal.raise_signal(signal.SIGINT)
    assert stop_requested() is None
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), "soon"])
def test_seconds_must_be_above_zero(seconds):
    with pytest.raises(ValueError, match="seconds must be a number above 0"), time_limit(seconds):
        pass
