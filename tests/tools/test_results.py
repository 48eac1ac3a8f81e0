"""Published results: records merged, pages written from them alone, and both in agreement where they are committed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from made_records import run, write

import publish_results as published
from evenflow.lab.recipes import load, names, reproduce
from evenflow.lab.recipes.recipe_catalog import DOCUMENTS
from publish_results import best_known, claims, stored_record
from publish_results.__main__ import main
from publish_results.remarks import numbers

COMMITTED = Path(__file__).parents[2] / "docs" / "results"
RECALL, MNIST = "urnn/table-3", "factorized/table-1"
ROW = "uRNN, N=100"
SMALL = 8_000  # bytes of a record of a few rows: it is to be read by people


def recall(row: str = ROW, seed: int = 1, accuracy: float = 99.9, **changes):
    return run(load(RECALL), row, seed, {"accuracy (%)": accuracy, "loss": 0.01}, **changes)


def command(*arguments: object) -> int:
    with pytest.raises(SystemExit) as left:
        main([*map(str, arguments)])
    return left.value.code


@pytest.fixture
def into(tmp_path) -> Path:
    return tmp_path / "results"


def entries(into: Path, name: str = RECALL) -> dict[tuple[str, int], dict]:
    return {(r["row"], r["seed"]): r for r in json.loads((into / f"{name}.json").read_text())["runs"]}


def test_rows_and_seeds_are_added_or_replaced_and_keep_their_own_origin(tmp_path, into):
    first = write(tmp_path / "a", RECALL, recall(seed=2, accuracy=50), recall(seed=1), recall("RNN, N=100"))
    published.merge([first], into)
    second = write(tmp_path / "b", RECALL, recall(seed=2, accuracy=98, hardware="another"), recall("uRNN, N=20"))
    published.merge([second], into)
    found = entries(into)
    # In the recipe's order, whatever the order they came in.
    assert list(found) == [("uRNN, N=20", 1), ("RNN, N=100", 1), (ROW, 1), (ROW, 2)]
    assert found[ROW, 2]["values"]["accuracy (%)"] == 98
    assert [found[ROW, seed]["hardware"] for seed in (1, 2)] == ["an H200", "another"]
    assert (into / f"{RECALL}.json").stat().st_size < SMALL


def test_the_record_has_no_published_number_and_is_read_back_as_it_was(tmp_path, into):
    published.merge([write(tmp_path / "a", RECALL, recall())], into)
    text = (into / f"{RECALL}.json").read_text()
    assert "published" not in text
    assert "".join(stored_record.read(into, load(RECALL)).files().values()).startswith(text)
    assert "published" not in "".join(p.read_text() for p in into.rglob("*.json"))


def test_a_row_keeps_the_lines_of_its_lowest_seed(tmp_path, into):
    line = {"loss": {"levels": [2.3], "x": [1, 2], "y": [2.0, 1.0]}}
    published.merge([write(tmp_path / "a", RECALL, recall(seed=2, lines=line), recall(seed=3, lines=line))], into)
    assert [line.seed for line in stored_record.read(into, load(RECALL)).lines] == [2]
    other = {"loss": {"levels": [2.3], "x": [1, 2], "y": [2.0, 0.5]}}
    published.merge([write(tmp_path / "b", RECALL, recall(seed=1, lines=other))], into)
    kept = stored_record.read(into, load(RECALL)).lines
    assert [(line.seed, list(line.y)) for line in kept] == [(1, [2.0, 0.5])]


def test_a_page_shows_measured_published_verdict_and_what_made_it(tmp_path, into):
    runs = [recall(seed=1, accuracy=100.0), recall(seed=2, accuracy=99.0), recall("RNN, N=100", accuracy=30.0)]
    published.merge([write(tmp_path / "a", RECALL, *runs)], into)
    published.write(into)
    page = (into / "urnn.md").read_text()
    assert "| uRNN, N=100 | accuracy (%) | 99.5 ± 0.71 (2 seeds) | 100 | reproduced |" in page
    assert "| RNN, N=100 | accuracy (%) | 30 | 9.36 | one seed: better |" in page
    assert "Run in part: 2 of 6 rows, 1 to 2 seeds each." in page
    assert "The document's ordering holds in 0 of 1 pairs, holds with one seed in 1." in page
    assert "an H200, evenflow 0.1.0, torch 2.13.0, 2026-11-15: 3 runs, 37.5 s, 900 updates." in page
    assert all(note.split(":")[0] in page for note in load(RECALL).notes)
    assert "- table-4: The tenth largest of N numbers (0 of 6 rows)" in page
    assert "![Recall the first of N numbers](urnn/table-3.svg)" in page
    assert (into / "urnn/table-3.svg").read_text().startswith("<svg ")


def test_what_made_a_row_is_said_by_its_seeds_where_they_differ(tmp_path, into):
    here = [recall(seed=1), recall("RNN, N=20"), recall("RNN, N=50"), recall("RNN, N=50", seed=4)]
    there = [recall(seed=seed, hardware="a laptop") for seed in (2, 3)] + [recall("RNN, N=100", hardware="a laptop")]
    published.merge([write(tmp_path / "a", RECALL, *here, *there)], into)
    page = published.pages(into)["urnn.md"]
    assert "an H200, evenflow 0.1.0, torch 2.13.0, 2026-11-15: 4 runs, 50 s, 1,200 updates: all others." in page
    laptop = "a laptop, evenflow 0.1.0, torch 2.13.0, 2026-11-15: 3 runs, 37.5 s, 900 updates"
    assert f"{laptop}: RNN, N=100; and with seeds 2, 3 uRNN, N=100." in page


def test_what_was_out_of_the_ordinary_is_said(tmp_path, into):
    changed = recall()["settings"] | {"task": {**recall()["settings"]["task"], "symbols": 12}}
    runs = [
        recall(settings=changed),
        recall("RNN, N=100", outcome="diverged", values={}),
        recall("RNN, N=20", outcome="stopped early", data="cut short"),
    ]
    published.merge([write(tmp_path / "a", RECALL, *runs)], into)
    page = published.pages(into)["urnn.md"]
    assert "Changed from the recipe: task.symbols = 12 (uRNN, N=100)." in page
    assert "Diverged: RNN, N=100 (seed 1)." in page
    assert "| RNN, N=100 | accuracy (%) | diverged | 9.36 | worse: diverged |" in page
    assert "Stopped early, as the recipe asks: 1 of 3 runs." in page
    assert "The data: cut short." in page


def test_a_recipe_that_has_changed_since_is_said_to_have(tmp_path, into):
    published.merge([write(tmp_path / "a", RECALL, recall())], into)
    assert "earlier settings" not in published.pages(into)["urnn.md"]
    path = into / f"{RECALL}.json"
    path.write_text(path.read_text().replace(entries(into)[ROW, 1]["recipe"], "00000000"))
    pages = published.pages(into)
    assert "Run with earlier settings of the recipe, and not yet with today's: all rows." in pages["urnn.md"]
    assert "| 99.9 | 100 | one seed: agrees (earlier settings) |" in pages["urnn.md"]
    assert "2 of the verdicts are of earlier settings." in pages["README.md"]
    assert (
        "| urnn/table-3 | 5 | 1 | – | `evenflow reproduce urnn/table-3 --scale full --seeds 3` |" in pages["README.md"]
    )


def test_runs_of_different_settings_are_not_averaged(tmp_path, into):
    published.merge([write(tmp_path / "a", RECALL, recall(seed=1, accuracy=50), recall(seed=2, accuracy=60))], into)
    path = into / f"{RECALL}.json"
    path.write_text(path.read_text().replace(entries(into)[ROW, 1]["recipe"], "00000000"))
    published.merge([write(tmp_path / "b", RECALL, recall(seed=1, accuracy=99), recall("RNN, N=100"))], into)
    assert [entry["values"]["accuracy (%)"] for (row, _), entry in entries(into).items() if row == ROW] == [99, 60]
    page = published.pages(into)["urnn.md"]
    assert "| uRNN, N=100 | accuracy (%) | 99 | 100 | one seed: agrees |" in page
    assert "Left out, because the row was run again with other settings: uRNN, N=100." in page


def test_where_and_how_often_a_run_is_saved_is_no_change(tmp_path, into):
    settings = recall()["settings"]
    settings["training"] |= {"device": "cuda", "checkpoint_every": 7, "seed": 5}
    published.merge([write(tmp_path / "a", RECALL, recall(settings=settings))], into)
    assert "changed" not in entries(into)[ROW, 1]


def test_never_comes_back_as_never(tmp_path, into):
    recipe = load("factorized/figure-1")
    values = {"updates to 90 %": 300.0, "updates to solve": "never", "accuracy (%)": 95.0}
    write(tmp_path / "a", recipe.address, run(recipe, "T=10000, m=none", 1, values))
    published.merge([tmp_path / "a"], into)
    assert "|  | updates to solve | never | never | one seed: agrees |" in published.pages(into)["factorized.md"]


def test_runs_without_data_are_left_out_with_a_sentence(tmp_path, into):
    gone = recall("RNN, N=20", outcome="no data: a folder is empty", values={})
    _, left = published.merge([write(tmp_path / "a", RECALL, recall(), gone)], into)
    assert left == ["Left out, urnn/table-3, RNN, N=20, seed 1: no data: a folder is empty."]
    assert list(entries(into)) == [(ROW, 1)]
    write(tmp_path / "b", RECALL, recall(), gone, {**gone, "seed": 2}, {**gone, "seed": 3})
    _, left = published.merge([tmp_path / "b"], into)
    assert left == ["Left out, urnn/table-3, RNN, N=20, seed 1, and 2 more: no data: a folder is empty."]


CLAIMS = """
[[claim]]
document = "urnn"
where = "table 3"
text = "uRNN recalls, and the RNN does not."
recipe = "urnn/table-3"
checks = [{ row = "uRNN, N=100", at_least = 99 }, { row = "RNN, N=100", at_most = 13 }]
why = "Not explained."
[[claim]]
document = "urnn"
where = "table 3"
text = "uRNN is ahead."
recipe = "urnn/table-3"
checks = [{ row = "uRNN, N=100", beats = "RNN, N=100", by = 5 }]
[[claim]]
document = "urnn"
where = "theorem 1"
text = "A theorem."
test = "tests/bounds/test_band.py::test_table_1"
[[claim]]
document = "urnn"
where = "figure 3"
text = "A sentence."
untested = "a sentence has no score"
"""


def claim_verdicts(into: Path) -> dict[str, str]:
    """The verdict of each claim on the overview."""
    page = published.pages(into)["README.md"]
    section = page.partition("## Every claim")[2].partition("\n## ")[0]
    rows = [line.split(" | ") for line in section.splitlines() if line.startswith("| [")]
    return {row[2]: row[3] for row in rows}


def test_the_overview_counts_what_was_run_and_the_verdicts(tmp_path, into):
    assert (
        f"0 in full, 0 in part, 0 with earlier settings, {len(names())} not yet" in published.pages(into)["README.md"]
    )
    runs = [recall(row.label, seed, 99.9 if row.label.startswith("u") else 10.2)
            for row in load(RECALL).rows for seed in (1, 2, 3)]  # fmt: skip
    published.merge([write(tmp_path / "a", RECALL, *runs)], into)
    page = published.pages(into)["README.md"]
    assert f"1 in full, 0 in part, 0 with earlier settings, {len(names()) - 1} not yet" in page
    # Without a spread a difference beyond the last printed digit counts. Of the uRNN 99.9 % are worse than 99.98 and
    # 100.0, and a loss of 0.01 is printed. Of the RNN 10.2 % are better than 9.36, worse than 10.22 and 10.56, and 0.01
    # is better than 2.33.
    line = next(line for line in page.splitlines() if line.startswith("| [urnn]"))
    counted = [int(part) if part.isdigit() else 0 for part in line.split(" | ")[1:-1]]
    assert counted[:4] == [3, 4, 5, 0]


def test_the_claims_follow_the_numbers(tmp_path, into):
    into.mkdir()
    (into / "claims.toml").write_text(CLAIMS)
    recalls, ahead = "uRNN recalls, and the RNN does not.", "uRNN is ahead."
    expected = {"A theorem.": "holds in tests", "A sentence.": "not tested"}
    assert claim_verdicts(into) == {recalls: "not run yet", ahead: "not run yet", **expected}
    published.merge([write(tmp_path / "a", RECALL, recall(), recall("RNN, N=100", accuracy=10.2))], into)
    assert claim_verdicts(into) == {recalls: "holds with one seed", ahead: "holds with one seed", **expected}
    several = [recall(row, seed, value) for row, value in ((ROW, 99.9), ("RNN, N=100", 10.2)) for seed in (1, 2)]
    published.merge([write(tmp_path / "b", RECALL, *several)], into)
    assert claim_verdicts(into) == {recalls: "holds", ahead: "holds", **expected}
    published.merge([write(tmp_path / "c", RECALL, recall("RNN, N=100", 1, 99.0))], into)
    assert claim_verdicts(into) == {recalls: "too noisy to tell", ahead: "too noisy to tell", **expected}
    published.merge([write(tmp_path / "d", RECALL, recall("RNN, N=100", 2, 99.0))], into)
    page = published.pages(into)["README.md"]
    assert claim_verdicts(into) == {recalls: "does not hold", ahead: "does not hold", **expected}
    failing = page.partition("## Claims that do not hold")[2].partition("##")[0]
    assert f"| {recalls} | fails | Not explained. |" in failing
    assert "2 of 2 checks" not in page
    assert "RNN, N=100: accuracy (%) 99" in page


def test_a_claim_does_not_compare_rows_of_different_settings(tmp_path, into):
    into.mkdir()
    (into / "claims.toml").write_text(CLAIMS)
    published.merge([write(tmp_path / "a", RECALL, recall(), recall("RNN, N=100", accuracy=10.2))], into)
    path = into / f"{RECALL}.json"
    # The digest is the same in both rows' lines only if they have the same settings, and these two do not.
    path.write_text(path.read_text().replace(entries(into)[ROW, 1]["recipe"], "00000000"))
    assert claim_verdicts(into)["uRNN is ahead."] == "not run yet (earlier settings)"
    assert claim_verdicts(into)["uRNN recalls, and the RNN does not."] == "holds with one seed (earlier settings)"


@pytest.mark.parametrize(
    ("better", "worse", "verdict"),
    [
        (94.1, 77.2, "holds with one seed"),
        (94.1, 89.2, "does not hold with one seed"),
        (94.1, None, "not run yet"),
        (94.1, "diverged", "holds with one seed"),
    ],
    ids=["ahead", "too close", "one row missing", "the other diverged"],
)
def test_the_verdict_on_margins(tmp_path, into, better, worse, verdict):
    into.mkdir()
    (into / "claims.toml").write_text(
        '[[claim]]\ndocument = "factorized"\nwhere = "table 1"\ntext = "Margins help."\nrecipe = "factorized/table-1"\n'
        'checks = [{ row = "m=0.1", beats = "m=0", by = 5 }]\n'
    )
    recipe, column = load(MNIST), "test accuracy (%)"
    runs = [run(recipe, "m=0.1", 1, {column: better})]
    if worse == "diverged":
        runs.append(run(recipe, "m=0", 1, {}, outcome="diverged"))
    elif worse is not None:
        runs.append(run(recipe, "m=0", 1, {column: worse}))
    published.merge([write(tmp_path / "a", MNIST, *runs)], into)
    assert claim_verdicts(into) == {"Margins help.": verdict}


@pytest.mark.parametrize(
    ("claim", "message"),
    [
        ('recipe = "urnn/table-3"\nchecks = [{ row = "uRNN, N=7", at_least = 9 }]', "unknown row of urnn/table-3"),
        ('recipe = "urnn/table-3"\nchecks = [{ row = "uRNN, N=20" }]', "a check must have at_least, at_most, beats"),
        ('recipe = "urnn/table-3"\ncolumn = "x"\norder = [["uRNN, N=20", "RNN, N=20"]]', "unknown column of urnn"),
        ('order = [["uRNN, N=20", "RNN, N=20"]]', "has checks and no recipe"),
        ("", "must have either checks, a test or a reason why it is untested"),
        ('tests = "x"', "unknown key of a claim 'tests'"),
    ],
    ids=["row", "nothing to check", "column", "no recipe", "nothing", "key"],
)
def test_slips_in_the_claims(into, claim, message):
    into.mkdir()
    (into / "claims.toml").write_text(f'[[claim]]\ndocument = "urnn"\nwhere = "1"\ntext = "A claim."\n{claim}\n')
    with pytest.raises(ValueError) as error:
        published.pages(into)
    assert message in str(error.value)
    assert "claims.toml" in str(error.value)


COMMITTED_CLAIMS = claims.read(COMMITTED)


def test_every_document_has_its_claims():
    assert {claim.document for claim in COMMITTED_CLAIMS} == set(DOCUMENTS)
    assert len({(claim.document, claim.text) for claim in COMMITTED_CLAIMS}) == len(COMMITTED_CLAIMS)


@pytest.mark.parametrize("claim", [claim for claim in COMMITTED_CLAIMS if claim.test], ids=lambda claim: claim.test)
def test_the_tests_that_claims_name_exist(claim):
    path, _, name = claim.test.partition("::")
    assert f"def {name}(" in (COMMITTED.parents[1] / path).read_text("utf-8")


def test_what_a_goal_takes_to_be_reached():
    goal = best_known.Goal("accuracy", goal=97.5)
    found = [best_known.Measured(values, "") for values in ((98.0,), (98.0, 98.1, 98.2, 98.0, 98.1), (97.4, 99.0))]
    assert [best_known.outcome(goal, each) for each in found] == [
        "reached with too few seeds",
        "reached",
        "not reached",
    ]
    assert best_known.outcome(goal, None) == "not run"
    lower = best_known.Goal("error", goal=1e-3, better="lower")
    assert best_known.outcome(lower, best_known.Measured((5e-3,), "")) == "not reached"


def test_a_real_reproduction_is_published_whole(tmp_path, into):
    done = reproduce("galvan/figure-3.1", "full", folder=tmp_path / "run", progress=False)
    published.merge([tmp_path / "run"], into)
    published.write(into)
    page = (into / "galvan.md").read_text()
    assert "Run in full: 5 of 5 rows" in page
    assert all(done.cells[label, "log10(first / last component)"].measured_text() in page for label in done.labels)
    assert "components" in (into / "galvan/figure-3.1.svg").read_text()


def test_the_folder_runs_as_a_command(into):
    code = [sys.executable, str(Path(__file__).parents[2] / "tools" / "publish_results"), "--into", str(into)]
    assert "README.md" in subprocess.run(code, capture_output=True, text=True, check=True).stdout


def test_remarks_are_shown_and_may_not_bring_numbers_of_their_own(tmp_path, into):
    published.merge([write(tmp_path / "a", RECALL, recall(accuracy=87.654))], into)
    remarks = into / "remarks.toml"
    remarks.write_text('["urnn/table-3"]\nremarks = ["On an H200 it stops at 87.7 % after 300 of 80,000 updates."]\n')
    assert "- On an H200 it stops at 87.7 % after 300 of 80,000 updates." in published.pages(into)["urnn.md"]
    remarks.write_text('["urnn/table-3"]\nremarks = ["With a rate of 0.123 it is solved."]\n')
    with pytest.raises(ValueError) as error:
        published.pages(into)
    assert str(error.value) == (
        "a remark on urnn/table-3 has the number 0.123, which neither its record nor its recipe holds: "
        "'With a rate of 0.123 it is solved.'"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('["urnn/table-33"]\nremarks = []', "unknown recipe in remarks.toml 'urnn/table-33', did you mean"),
        (
            '["urnn/table-3"]\nremark = "x"',
            "remarks.toml must have a list of sentences called remarks for urnn/table-3",
        ),
        ("= 3", "remarks.toml' cannot be read: "),
        ('["urnn/table-3"]\nremarks = ["x"]', "remarks.toml speaks of urnn/table-3, which has no record yet"),
    ],
    ids=["unknown recipe", "no list", "no TOML", "nothing to speak of"],
)
def test_slips_in_the_remarks(into, text, message):
    into.mkdir()
    (into / "remarks.toml").write_text(text)
    with pytest.raises(ValueError) as error:
        published.pages(into)
    assert message in str(error.value)


def test_numbers_of_a_text():
    assert numbers("1,411 of 0.25 on an H200, float32, 1e-3 and 20 %") == [(0, 1411), (2, 0.25), (3, 0.001), (0, 20)]


def test_the_command_merges_writes_and_checks(tmp_path, into, capsys):
    write(tmp_path / "runs/urnn/table-3/full", RECALL, recall())
    assert command(tmp_path / "runs", "--into", into) == 0
    assert "urnn/table-3: 1 runs in 1 of 6 rows." in capsys.readouterr().out
    assert sorted(p.name for p in into.glob("*.md")) == sorted(["README.md", *(f"{d}.md" for d in DOCUMENTS)])
    assert command("--into", into, "--check") == 0
    page = into / "urnn.md"
    page.write_text(page.read_text().replace("99.9", "100"))
    capsys.readouterr()
    assert command("--into", into, "--check") == 1
    assert f"page {page} differs from its record" in capsys.readouterr().err
    assert "100" in page.read_text()  # nothing was written
    assert command("--into", into) == 0
    assert command("--into", into, "--check") == 0
    capsys.readouterr()
    assert command("--into", into) == 0
    assert "The pages are as they were." in capsys.readouterr().out


def test_the_command_explains_itself_with_an_example(capsys):
    assert command("--help") == 0
    assert "Example:  python tools/publish_results" in capsys.readouterr().out


def damaged(folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "record.json").write_text('{"recipe": "urnn/table-3", ')


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda f: f.mkdir(), "holds neither record.json nor sweep.json: `evenflow reproduce NAME --scale"),
        (
            lambda f: write(f, RECALL, recall(), scale="quick"),
            "is of the quick scale, and only the full scale is published: "
            "run `evenflow reproduce urnn/table-3 --scale full`",
        ),
        (lambda f: write(f, RECALL, recipe="urnn/table-33"), "unknown recipe 'urnn/table-33', did you mean"),
        (damaged, "cannot be read: "),
        (lambda f: write(f, RECALL, format=1), "cannot be read: its format is 1, and 2 is known: run the recipe again"),
        (lambda f: write(f, RECALL, {"row": ROW, "seed": 1}), "cannot be read: a run lacks 'outcome'"),
        (lambda f: write(f, RECALL, recall() | {"row": "uRNN, N=7"}), "unknown row of urnn/table-3 'uRNN, N=7'"),
    ],
    ids=["no record", "quick scale", "unknown recipe", "damaged", "old format", "half a run", "unknown row"],
)
def test_wrong_records_are_refused_before_anything_is_written(tmp_path, into, capsys, make, message):
    good = write(tmp_path / "good", RECALL, recall())
    make(tmp_path / "wrong")
    assert command(good, tmp_path / "wrong", "--into", into) == 2
    said = capsys.readouterr().err
    assert message in said
    assert len(said.splitlines()) == 1
    assert not into.exists()


def test_check_takes_no_folders(tmp_path, into, capsys):
    assert command(tmp_path, "--into", into, "--check") == 2
    assert "--check goes without folders" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("path", "text", "message"),
    [
        ("urnn/table-9.json", "{}", "is of no recipe: `evenflow recipes` lists them"),
        ("urnn/table-3.json", "{", "cannot be read: "),
        ("urnn/table-3.json", '{"format": 1, "recipe": "urnn/table-4", "runs": []}', "it is no record of urnn/table-3"),
    ],
    ids=["no recipe", "damaged", "another recipe"],
)
def test_a_damaged_committed_record_is_named(into, path, text, message):
    (into / path).parent.mkdir(parents=True)
    (into / path).write_text(text)
    with pytest.raises(ValueError) as error:
        published.pages(into)
    assert Path(path).name in str(error.value)
    assert message in str(error.value)


def test_the_committed_pages_and_records_agree():
    """Every page is what the committed records, the recipes and the remarks give, to the letter."""
    wrong = [path.name for path in published.differing(COMMITTED)]
    assert not wrong, f"run `python tools/publish_results`: {', '.join(wrong)}"


@pytest.mark.parametrize("name", names())
def test_every_committed_number_names_what_made_it(name):
    for entry in stored_record.read(COMMITTED, load(name)).runs:
        assert all((entry.hardware, entry.evenflow, entry.torch, entry.date)), entry
        assert entry.outcome in ("finished", "stopped early", "diverged", "not trained")
        assert entry.seconds > 0 or entry.outcome == "not trained"
        assert set(entry.values) <= {column.name for column in load(name).columns}
