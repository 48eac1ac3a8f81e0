"""Files from a server of our own: fetched whole and right, or not at all and with one clear sentence."""

from __future__ import annotations

import gzip
import hashlib
import os
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from evenflow.lab.data import CATALOG, File, Source, fetch
from evenflow.lab.data.fetch import Unreachable, get, get_source, state

CONTENT = bytes(range(256)) * 1000  # longer than what is read at a time, so that a file arrives in pieces


class Server(ThreadingHTTPServer):
    """Serves `files` by path, and remembers what was asked for."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.files: dict[str, bytes] = {"/a.bin": CONTENT}
        self.asked: list[str] = []

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.server_port}{path}"


class Answer(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        if self.path == "/cut.bin":  # says more than it sends
            self.send_response(200)
            self.send_header("Content-Length", str(len(CONTENT)))
            self.end_headers()
            self.wfile.write(CONTENT[:100])
            return
        content = self.server.files.get(self.path)
        if content is None:
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch) -> Iterator[Server]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def file_at(url: str | None, path: str = "set/a.bin", content: bytes = CONTENT) -> File:
    return File(path, len(content), hashlib.sha256(content).hexdigest(), url)


def source_of(*files: File, **more: object) -> Source:
    return Source("made", "a made set", files, "none", "Nobody 2000", "a note", **more)  # type: ignore[arg-type]


def test_a_file_is_fetched_once(server, tmp_path, capfd):
    source, folder = source_of(file_at(server.url("/a.bin"))), tmp_path / "new" / "data"
    assert state(source, folder).word == "missing"
    assert get_source(source, folder) == [folder / "set" / "a.bin"]
    assert (folder / "set" / "a.bin").read_bytes() == CONTENT
    assert os.listdir(folder / "set") == ["a.bin"]
    assert state(source, folder, verify=True).word == "present"
    assert get_source(source, folder) == [folder / "set" / "a.bin"]
    assert server.asked == ["/a.bin"]
    captured = capfd.readouterr()
    assert captured.out == captured.err == "", "no log lines, and no bar where there is no terminal"


def test_only_missing_files_are_fetched(server, tmp_path):
    server.files["/b.bin"] = b"other"
    source = source_of(file_at(server.url("/a.bin")), file_at(server.url("/b.bin"), "set/b.bin", b"other"))
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "a.bin").write_bytes(CONTENT)
    assert state(source, tmp_path).reason == "no set/b.bin"
    get_source(source, tmp_path)
    assert server.asked == ["/b.bin"]
    assert (tmp_path / "set" / "b.bin").read_bytes() == b"other"


def test_a_fetched_file_may_be_read_by_others(server, tmp_path):
    (path,) = get_source(source_of(file_at(server.url("/a.bin"))), tmp_path)
    assert path.stat().st_mode & 0o444 == 0o444


@pytest.mark.parametrize(("shown", "bars"), [(True, 1), (False, 0)], ids=["shown", "quiet"])
def test_a_bar_is_drawn_on_a_terminal(shown, bars, server, tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(fetch, "BAR_AFTER", 0.0)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    monkeypatch.setattr("rich.progress.Progress.add_task", lambda bar, name, **_: drawn.append(name))
    monkeypatch.setattr("rich.progress.Progress.update", lambda bar, task, completed: drawn.append(completed))
    get_source(source_of(file_at(server.url("/a.bin"))), tmp_path, progress=shown)
    assert drawn.count("set/a.bin") == bars
    assert drawn[-1:] == [len(CONTENT)] * bars


def test_a_wrong_checksum_leaves_nothing(server, tmp_path):
    server.files["/a.bin"] = CONTENT[:-1] + b"x"
    file = file_at(server.url("/a.bin"))
    with pytest.raises(ValueError) as error:
        get_source(source_of(file), tmp_path / "new")
    assert str(error.value) == (
        f"what {file.url} gave is not set/a.bin (its SHA-256 is not {file.sha256}); nothing was kept"
    )
    assert os.listdir(tmp_path) == [], "neither the file nor its folders"


def test_a_wrong_checksum_leaves_the_neighbours(server, tmp_path):
    server.files["/a.bin"] = b"wrong"
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "mine.txt").write_text("keep")
    with pytest.raises(ValueError):
        get_source(source_of(file_at(server.url("/a.bin"))), tmp_path)
    assert os.listdir(tmp_path / "set") == ["mine.txt"]


@pytest.mark.parametrize(
    ("path", "why"),
    [("/none.bin", "the server answered 404"), ("/cut.bin", "the connection broke off")],
    ids=["not found", "cut off"],
)
def test_a_server_that_fails_is_named_with_what_to_do(path, why, server, tmp_path):
    url = server.url(path)
    with pytest.raises(Unreachable) as error:
        get_source(source_of(file_at(url)), tmp_path / "new")
    target = tmp_path / "new" / "set" / "a.bin"
    assert str(error.value) == (
        f"set/a.bin was not fetched because {why}; put the file from {url} at {str(target)!r} by hand"
    )
    assert os.listdir(tmp_path) == []


def test_no_network_says_which_file_to_put_where(tmp_path, monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with socket.socket() as closed:  # bound and not listening: connections are refused
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}/a.bin"
        with pytest.raises(Unreachable) as error:
            get_source(source_of(file_at(url)), tmp_path / "new")
    assert "because the server could not be reached; " in str(error.value)
    assert f"put the file from {url} at {str(tmp_path / 'new' / 'set' / 'a.bin')!r} by hand" in str(error.value)
    assert os.listdir(tmp_path) == []


def test_a_file_of_the_user_is_left_alone(server, tmp_path):
    path = tmp_path / "set" / "a.bin"
    path.parent.mkdir()
    path.write_bytes(b"mine")
    source = source_of(file_at(server.url("/a.bin")))
    with pytest.raises(ValueError) as error:
        get_source(source, tmp_path)
    assert str(error.value) == (
        f"{str(path)!r} is not the file that made has (it has 4 bytes, not 256,000); move it away and get it again"
    )
    assert path.read_bytes() == b"mine"
    assert server.asked == []


def test_a_file_without_address_is_named(tmp_path):
    with pytest.raises(ValueError) as error:
        get_source(source_of(file_at(None)), tmp_path)
    target = tmp_path / "set" / "a.bin"
    assert str(error.value) == f"made cannot be fetched: put {str(target)!r} in place by hand (a note)"
    with pytest.raises(ValueError) as error:
        get("har", tmp_path)
    assert "body_acc_x_train.txt' and the 19 other files in place by hand" in str(error.value)


def test_a_folder_that_cannot_be_made_is_named(server, tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(ValueError) as error:
        get_source(source_of(file_at(server.url("/a.bin"))), tmp_path / "file" / "data")
    assert str(error.value).startswith(f"cannot make the folder {str(tmp_path / 'file' / 'data' / 'set')!r}: ")
    assert server.asked == []


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_is_named(server, tmp_path):
    (tmp_path / "set").mkdir(mode=0o500)
    with pytest.raises(ValueError, match="cannot write"):
        get_source(source_of(file_at(server.url("/a.bin"))), tmp_path)


def test_an_unknown_name_is_answered_with_the_nearest(tmp_path):
    with pytest.raises(ValueError) as error:
        get("mnits", tmp_path)
    assert str(error.value) == "unknown data set 'mnits', did you mean mnist?"


@pytest.mark.parametrize(
    ("content", "quick", "thorough", "reason"),
    [
        (CONTENT, "present", "present", ""),
        (CONTENT[:-1], "damaged", "damaged", "set/a.bin: it has 255,999 bytes, not 256,000"),
        (CONTENT[:-1] + b"x", "present", "damaged", "set/a.bin: its SHA-256 is another"),
        (b"", "damaged", "damaged", "set/a.bin: it is empty"),
        (None, "damaged", "damaged", "set/a.bin: it is a folder"),
    ],
    ids=["right", "short", "changed", "empty", "folder"],
)
def test_states(content, quick, thorough, reason, tmp_path):
    source, path = source_of(file_at(None)), tmp_path / "set" / "a.bin"
    path.parent.mkdir()
    path.mkdir() if content is None else path.write_bytes(content)
    assert state(source, tmp_path).word == quick
    found = state(source, tmp_path, verify=True)
    assert (found.word, found.reason) == (thorough, reason)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (gzip.compress(CONTENT, 1), ""),
        (gzip.compress(CONTENT, 9), ""),
        (gzip.compress(CONTENT[:-1]), "it has 255,999 bytes, not 256,000"),
        (gzip.compress(CONTENT)[:-8] + bytes(4) + gzip.compress(CONTENT)[-4:], "it is a damaged gzip file"),
        (gzip.compress(CONTENT[:-1] + b"x"), "its SHA-256 is another"),
        (b"x" * 10, "it is not a gzip file"),
        (b"x", "it is not a gzip file"),
    ],
    ids=["packed", "packed otherwise", "short", "bad end", "changed", "not gzip", "one byte"],
)
def test_a_packed_file_is_known_by_its_content(content, reason, tmp_path):
    right = file_at(None)
    packed = File("set/a.bin.gz", right.size, right.sha256, packed=True)
    source = source_of(File("set/a.bin", right.size, right.sha256, alternatives=(packed,)))
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "a.bin.gz").write_bytes(content)
    found = state(source, tmp_path, verify=True)
    assert found.word == ("damaged" if reason else "present")
    assert found.reason == (f"set/a.bin.gz: {reason}" if reason else "")


def test_another_layout_will_do(tmp_path):
    name = "ucr/ECG200"
    for part in ("TRAIN", "TEST"):
        assert state(CATALOG[name], tmp_path).word == "missing"
        path = tmp_path / "ucr" / "ECG200" / f"ECG200_{part}.tsv"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("1\t0.5\t0.25\n")
    assert state(CATALOG[name], tmp_path, verify=True).word == "present"
    assert [path.name for path in get(name, tmp_path)] == ["ECG200_TRAIN.tsv", "ECG200_TEST.tsv"]


def test_a_set_that_is_there_needs_no_network(data):
    files = get("mnist", data)
    assert all(isinstance(path, Path) and path.is_file() for path in files)
    assert len(files) == 4
