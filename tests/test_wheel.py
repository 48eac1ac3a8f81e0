"""The built wheel, installed into fresh environments in paths with spaces: the library alone, and with the extra `lab`.

torch is too large to install anew. An environment therefore sees the packages that pip would install for the wheel, and
no others, through links to this environment's copies.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[1]
INSTALL = 'pip install "evenflow[lab]"'
LIBRARY = """
import torch, evenflow
layer, readout = evenflow.create("sgornn", 2, 16), torch.nn.Linear(16, 1)
optimizer = torch.optim.Adam([*layer.parameters(), *readout.parameters()], lr=1e-2)
x, y = torch.randn(20, 8, 2), torch.randn(8, 1)
losses = []
for _ in range(5):
    loss = (readout(layer(x)[0][-1]) - y).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
assert losses[-1] < losses[0], losses
assert "site-packages" in evenflow.__file__, evenflow.__file__
"""


def run(*command: object, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a command with none of this process's paths to the sources, and with these environment variables."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    return subprocess.run(
        [str(part) for part in command], env=environment | variables, capture_output=True, text=True, encoding="utf-8"
    )


def built(folder: Path, **environment: str) -> Path:
    """The wheel, built as `make wheel` builds it: from the source distribution of a copy of the checkout."""
    source = folder / "source"
    shutil.copytree(
        ROOT,
        source,
        ignore=shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "build", "dist", "runs", "demo-runs"),
        copy_function=shutil.copy,  # with the time of the copy
    )
    options = ("--no-isolation", "--outdir", folder / "dist")
    done = run(sys.executable, "-m", "build", *options, source, **environment)
    assert done.returncode == 0, done.stderr
    (path,) = (folder / "dist").glob("*.whl")
    return path


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(tmp_path_factory.mktemp("wheel"))


def test_two_builds_give_the_same_bytes(tmp_path: Path) -> None:
    """At other times and in other folders, as `make wheel` builds."""
    wheels = []
    for name in ("one", "another-folder"):
        (tmp_path / name).mkdir()
        wheels.append(built(tmp_path / name, SOURCE_DATE_EPOCH="1700000000").read_bytes())
    assert wheels[0] == wheels[1]


def requirements(lines: list[str], extra: str = "") -> Iterator[str]:
    """The packages that these lines of a wheel's metadata ask for, on this machine and with this extra."""
    for line in lines:
        requirement = Requirement(line)
        if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
            yield requirement.name


def closure(names: Iterator[str]) -> dict[str, list[Path]]:
    """The packages with those that they require in turn: the folders and files of each in this environment."""
    waiting, packages = list(names), {}
    while waiting:
        name = waiting.pop().lower().replace("_", "-")
        if name in packages:
            continue
        try:
            found = distribution(name)
        except PackageNotFoundError:  # a part of torch that this build of it does without
            continue
        base = Path(str(found.locate_file("")))
        parts = {file.parts[0] for file in found.files or ()} - {"..", "__pycache__"}
        packages[name] = [base / part for part in sorted(parts)]
        waiting += requirements(found.requires or [])
    return packages


@pytest.fixture(scope="module")
def environments(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The folders with the commands of two environments, "library" and "lab"."""
    with zipfile.ZipFile(wheel) as archive:
        metadata = archive.read(next(name for name in archive.namelist() if name.endswith("METADATA"))).decode()
    lines = [line.partition(": ")[2] for line in metadata.splitlines() if line.startswith("Requires-Dist: ")]
    commands = {}
    for name, extra in (("library", ""), ("lab", "lab")):
        folder = tmp_path_factory.mktemp(f"the {name} in a path with spaces")
        venv.create(folder / "venv", with_pip=False, symlinks=True)
        commands[name] = folder / "venv" / ("Scripts" if os.name == "nt" else "bin")
        python = commands[name] / "python"
        installed = run(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", wheel)
        assert installed.returncode == 0, installed.stderr
        links = folder / "packages"
        links.mkdir()
        for paths in closure(requirements(lines, extra)).values():
            for path in paths:
                if path.exists() and not (links / path.name).exists():
                    (links / path.name).symlink_to(path)
        place = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").stdout.strip()
        Path(place, "packages.pth").write_text(f"{links}\n", encoding="utf-8")
    return commands


def test_what_is_in_the_wheel(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    packed = {name.removeprefix("evenflow/") for name in names if name.startswith("evenflow/")}
    ignored = {".pyc", ".egg-info"}
    sources = {path.relative_to(ROOT / "src/evenflow") for path in (ROOT / "src/evenflow").rglob("*") if path.is_file()}
    assert packed == {path.as_posix() for path in sources if path.suffix not in ignored}
    assert {Path(name).suffix for name in packed} >= {".py", ".cuh", ".h", ".c", ".toml", ".html", ".css", ".js"}
    assert "py.typed" in packed
    others = {name.split("/")[0] for name in names} - {"evenflow"}
    assert all(name.endswith(".dist-info") for name in others), "no tool is installed"


def test_twine_finds_no_fault(wheel: Path) -> None:
    checked = run(sys.executable, "-m", "twine", "--no-color", "check", "--strict", *wheel.parent.iterdir())
    assert checked.returncode == 0, checked.stdout
    assert checked.stdout.count("PASSED") == 2


def test_the_source_distribution_holds_the_checkout(wheel: Path) -> None:
    (path,) = wheel.parent.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        packed = {name.partition("/")[2] for name in archive.getnames()}
    tracked = run("git", "-C", ROOT, "ls-files")
    if tracked.returncode:
        pytest.skip("not a checkout of git")
    missing = set(tracked.stdout.splitlines()) - packed
    assert {
        name for name in missing if not Path(name).parts[0].startswith(".") and Path(name).name != ".gitignore"
    } == set()


def test_the_library_needs_torch_numpy_and_safetensors_alone(environments: dict[str, Path]) -> None:
    python = environments["library"] / "python"
    trained = run(python, "-c", LIBRARY)
    assert trained.returncode == 0, trained.stderr
    for name in ("fit", "tasks", "doctor"):
        refused = run(python, "-c", f"import evenflow; evenflow.{name}")
        assert f"ImportError: evenflow.{name} needs lightning_fabric" in refused.stderr
        assert INSTALL in refused.stderr
    refused = run(environments["library"] / "evenflow", "systems")
    assert refused.returncode == 1
    assert refused.stderr.startswith("evenflow: the command line needs ")
    assert refused.stderr.endswith(f"{INSTALL}\n")
    assert refused.stderr.count("\n") == 1


def test_the_lab_runs_the_command_line(environments: dict[str, Path], tmp_path: Path) -> None:
    options = [
        "--folder",
        tmp_path / "run",
        "--hidden",
        "8",
        "--steps",
        "3",
        "-t",
        "length=20",
        "--device",
        "cpu",
        "-q",
    ]
    trained = run(environments["lab"] / "evenflow", "train", "adding", "sgornn", *options)
    assert trained.returncode == 0, trained.stderr
    assert "3 updates. Best validation: mse" in trained.stdout
    reported = run(environments["lab"] / "evenflow", "report", tmp_path / "run")
    assert reported.returncode == 0, reported.stderr
    assert (tmp_path / "run" / "report.html").is_file()
