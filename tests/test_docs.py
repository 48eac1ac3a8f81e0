"""Commands, imports, links and paths in README.md, CONTRIBUTING.md, CHANGELOG.md, docs/ and examples/ exist.

tests/test_code_on_pages.py runs the code.
"""

from __future__ import annotations

import re
import runpy
import shlex
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer
from test_structure import ROOMS

from evenflow.lab import cli
from evenflow.lab.recipes.recipe_catalog import names
from evenflow.lab.tasks import make as make_task
from evenflow.lab.tasks.registry import FILES, SYNTHETIC, TASKS
from evenflow.maps import Map

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")] + sorted(
    [
        *(ROOT / "docs").glob("*.md"),
        *(ROOT / "docs/concepts").glob("*.md"),
        *(ROOT / "docs/tutorials").glob("*.md"),
        ROOT / "docs/how-to/index.md",
        ROOT / "docs/systems/index.md",
        *(ROOT / "examples").glob("*/README.md"),
    ]
)
FENCED = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```$", flags=re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")
IN_BACKTICKS = re.compile(r"`([^`\n]+)`")
FOLDERS = ("src/", "tests/", "tools/", "benchmarks/", "docs/", "examples/")
FILE = re.compile(r"[\w./-]+\.(?:py|cuh|json|svg|toml|md|h|c)")

# Files that evenflow writes, and options of other programs.
WRITTEN = {
    "bundle.json", "config.toml", "status.toml", "record.json", "seeds.toml", "sweep.json", "model.c", "model.h",
    "study.py", "study.json",
}  # fmt: skip
OTHER_OPTIONS = {"--tool", "--rate", "--rates", "--max-restarts"}

pages = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


@cache
def repository_files() -> list[str]:
    """The paths of all files in the folders that pages speak of, from the root of the repository."""
    return [str(path.relative_to(ROOT)) for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.is_file()]


def fenced(page: Path, *languages: str) -> list[str]:
    return [code for language, code in FENCED.findall(page.read_text("utf-8")) if language in languages]


def commands(page: Path) -> list[list[str]]:
    """The arguments of every `evenflow` command in the fenced blocks of a page."""
    lines = "".join(fenced(page, "", "sh", "bash", "console")).splitlines()
    called = [line.removeprefix("$ ") for line in lines]
    return [shlex.split(line, comments=True)[1:] for line in called if re.match(r"evenflow [a-z]", line)]


def parse(arguments: list[str]) -> None:
    """Parse the arguments as the command line would, and run nothing."""
    command = typer.main.get_command(cli.app)
    context = command.make_context("evenflow", arguments)
    while isinstance(command, typer.core.TyperGroup):
        name, command, rest = command.resolve_command(context, [*context._protected_args, *context.args])
        assert command is not None
        context = command.make_context(name, rest, parent=context)


def options(command: Any) -> set[str]:
    """The options of a command and of its subcommands."""
    own = {option for parameter in command.params for option in parameter.opts}
    return own.union(*(options(other) for other in getattr(command, "commands", {}).values()))


def slugs(page: Path) -> set[str]:
    """The anchors that GitHub gives to the headings of a page."""
    text = FENCED.sub("", page.read_text("utf-8"))
    headings = re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pages
def test_commands_parse(page: Path) -> None:
    for arguments in commands(page):
        try:
            parse(arguments)
        except Exception as error:
            raise AssertionError(f"evenflow {shlex.join(arguments)}: {error}") from error


@pages
def test_options_exist(page: Path) -> None:
    """Each option in backticks belongs to some command."""
    quoted = re.findall(r"`(--[a-z-]+)", FENCED.sub("", page.read_text("utf-8")))
    assert {option for option in quoted if option not in options(typer.main.get_command(cli.app))} <= OTHER_OPTIONS


@pages
def test_imports_work(page: Path) -> None:
    lines = "".join(fenced(page, "python")).splitlines()
    for line in lines:
        if re.match(r"(from evenflow[\w.]* import [\w, ]+|import evenflow[\w.]*)", line):
            exec(line, {})


@pages
def test_relative_links_lead_somewhere(page: Path) -> None:
    for link in LINK.findall(FENCED.sub("", page.read_text("utf-8"))):
        if "://" in link:
            continue
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        assert target.exists(), link
        assert not anchor or anchor in slugs(target), link


@pages
def test_paths_exist(page: Path) -> None:
    """Paths from the root or, for files, the ends of such paths (`maps/exponential.py`)."""
    text = page.read_text("utf-8")
    scripts = re.findall(r"python3? ((?:tools|benchmarks|docs|examples)/[\w./]+)", text)
    quoted = IN_BACKTICKS.findall(FENCED.sub("", text))
    for path in [*scripts, *quoted]:
        if "*" in path or " " in path or path.isupper() or re.search(r"[A-Z]{3,}|[{}<>]", path):
            continue
        if path.startswith(FOLDERS):
            assert (ROOT / path).exists(), path
        elif FILE.fullmatch(path) and path not in WRITTEN:
            assert any(f"/{name}".endswith(f"/{path}") for name in repository_files()), path


def test_pages_of_the_readme_are_few_lines() -> None:
    assert len((ROOT / "README.md").read_text("utf-8").splitlines()) < 120
    assert len((ROOT / "docs/performance.md").read_text("utf-8").splitlines()) < 100


def test_every_recipe_is_on_the_page_of_recipes() -> None:
    text = (ROOT / "docs/recipes.md").read_text("utf-8")
    listed = re.findall(r"^\| `([\w./-]+)`", text[text.index("## The list") :], flags=re.MULTILINE)
    assert sorted(listed) == sorted(names())


def test_the_rooms_of_the_architecture_are_those_of_the_package() -> None:
    text = (ROOT / "docs/architecture.md").read_text("utf-8")
    rows = re.findall(r"^\| (`.*?`) \|", text[text.index("## Rooms") : text.index("## Letters")], flags=re.MULTILINE)
    library, lab = " ".join(rows).split("`__init__.py`")
    named = [IN_BACKTICKS.findall(part) for part in (library, lab)]
    rooms = [name.removesuffix(".py").rstrip("/") for name in named[0]] + ["evenflow"]
    rooms += [f"lab.{name.removesuffix('.py').rstrip('/')}" for name in named[1]]
    assert rooms == [room for room in ROOMS if room not in ("sklearn", "__main__")]


@pytest.mark.parametrize(
    "script", sorted([*(ROOT / "docs").glob("*.py"), ROOT / "docs/concepts/figures.py"]), ids=lambda script: script.name
)
def test_scripts_of_the_docs_load(script: Path) -> None:
    runpy.run_path(str(script), run_name="not_main")


def test_the_methods_of_a_map_exist() -> None:
    text = (ROOT / "docs/maps.md").read_text("utf-8")
    table = text[text.index("| method or attribute |") : text.index("## Precision")]
    first_cells = re.findall(r"^\| (`.*?) \|", table, flags=re.MULTILINE)
    methods = [name.partition("(")[0] for cell in first_cells for name in IN_BACKTICKS.findall(cell)]
    assert len(methods) >= 8
    assert [name for name in methods if not hasattr(Map, name)] == []


def test_the_criteria_of_the_page_of_tasks_are_those_of_the_tasks() -> None:
    rows = re.findall(
        r"^\| (`[^|]+) \| [^|]+ \| ([^|]+) \| ([^|]+) \|$", (ROOT / "docs/tasks.md").read_text("utf-8"), re.M
    )
    table = {name: (metric, limit) for names, metric, limit in rows for name in IN_BACKTICKS.findall(names)}
    assert table.keys() == TASKS.keys() - FILES.keys()
    for name in (*(kind.name for kind in SYNTHETIC), "digits", "mackey-glass", "lorenz"):
        task, (metric, limit) = make_task(name), table[name]
        assert task.metric_name == metric.split(",")[0]
        assert limit.startswith(("above", "below")) == task.limit_excluded, name
        share = 0.1 * task.baseline if "tenth of the baseline" in limit else float(re.search(r"[\d.]+", limit)[0])
        assert share == pytest.approx(task.solved_limit, rel=1e-3)


def test_the_doctor_says_what_the_readme_says() -> None:
    (code,) = fenced(ROOT / "README.md", "python")
    said = re.findall(r"^print\((.*)\)  # (\w+)$", code, flags=re.MULTILINE)
    assert len(said) == 2
    scope: dict[str, object] = {}
    exec(code, scope)
    assert [eval(expression, scope) for expression, _ in said] == [word for _, word in said]
