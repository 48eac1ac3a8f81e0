from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenflow.lab.tasks import make
from evenflow.lab.tasks.own_division import Division


@given(
    st.lists(st.integers(0, 3), min_size=2, max_size=60),
    st.floats(0.01, 0.9),
    st.integers(0, 5),
    st.sampled_from(["random", "stratified", "time", "group"]),
)
def test_every_sequence_is_on_one_side(members, share, seed, how):
    groups = [f"g{member}" for member in members] if how == "group" else ()
    if how == "group" and len(set(groups)) < 2:
        with pytest.raises(ValueError, match=r"^validation by group needs two groups, and every sequence is of 'g"):
            Division(share, how, seed).rows(len(members), groups=groups)
        return
    training, validation = Division(share, how, seed).rows(len(members), members, groups)
    assert sorted([*training, *validation]) == list(range(len(members)))
    assert len(validation) >= 1
    if how == "group":
        assert len(training) >= 1
        assert {members[n] for n in training}.isdisjoint(members[n] for n in validation)
        return
    assert len(validation) == Division(share).count(len(members))
    if how == "time":
        assert training.max(initial=-1) < validation.min()
    if how == "stratified":
        for label in set(members):
            exact = len(validation) * members.count(label) / len(members)
            # One more than the exact share where classes of a single sequence stay in training.
            assert abs(sum(members[n] == label for n in validation) - exact) <= 1


def test_the_seed_chooses_the_sequences():
    first, second = (Division(0.2, "random", seed).rows(50)[1].tolist() for seed in (1, 2))
    assert first != second
    assert first == Division(0.2, "random", 1).rows(50)[1].tolist()


@pytest.fixture
def people(tmp_path):
    """Six people with three recordings each, and a column that is of no use."""
    rows = [
        f"{person}-{n},{person},{10 * person + n + step / 10},note,{'ab'[n % 2]}"
        for person in range(6)
        for n in range(3)
        for step in range(25)
    ]
    path = tmp_path / "people.csv"
    path.write_text("\n".join(["id,person,x,remark,target", *rows]))
    return f"csv:{path}"


def persons(task):
    """The people whose values are in this part, read off the numbers."""
    column = task.schema().inputs[0]
    values = np.concatenate(task.sequences())[:, 0] * column.deviation + column.mean
    return {int(value // 10) for value in values}


def test_no_person_is_on_both_sides(people):
    task = make(people, sequence="id", group="person", ignore="remark", share=0.3)
    assert (task.count(), task.held_out().count()) == (12, 6)
    assert persons(task).isdisjoint(persons(task.held_out()))
    assert persons(task) | persons(task.held_out()) == set(range(6))
    assert [column.name for column in task.schema().inputs] == ["x"]


def test_windows_of_sequences(people):
    options = {"sequence": "id", "inputs": "x", "share": 0.3, "group": "person", "length": 10}
    task = make(people, **options, stride=5)
    assert [len(x) for x in task.sequences()[:4]] == [10, 10, 10, 10]
    assert (task.count(), task.held_out().count()) == (12 * 4, 6 * 3)
    assert persons(task).isdisjoint(persons(task.held_out()))
    column = task.schema().inputs[0]
    np.testing.assert_allclose(
        task.sequences()[1][:, 0] * column.deviation + column.mean,
        task.sequences()[0][0, 0] * column.deviation + column.mean + 0.5 + np.arange(10) / 10,
        rtol=1e-5,
    )
    assert task.schema().length == 10
    assert make(people, **options).count() == 12 * 3


def test_a_step_of_a_series_is_in_one_part(tmp_path):
    (tmp_path / "wave.csv").write_text("level\n" + "\n".join(map(str, range(1000))))
    task = make(f"csv:{tmp_path / 'wave.csv'}", length=20, stride=3, share=0.25)
    column = task.schema().inputs[0]
    held = task.held_out()
    last, first = (
        float(part.sequences()[place][step, 0]) * column.deviation + column.mean
        for part, place, step in ((task, -1, -1), (held, 0, 0))
    )
    assert first == pytest.approx(760, abs=0.01)
    assert last < first
    assert (task.count(), held.count()) == (1 + -(-(760 - 20) // 3), 12)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"group": "nobody"}, r"cannot read '.*': it has no column 'nobody', found 'id', .*"),
        ({"group": "target"}, r"cannot read '.*': line .* changes the group of its sequence, which has one"),
        ({"ignore": "remarks"}, r"cannot read '.*': it has no column 'remarks', found .*"),
        ({"inputs": "x,id"}, r"inputs must be columns without another use, got 'id'"),
        ({"split": "person"}, r"split must be one of random, stratified, group, time, got 'person'"),
        ({"split": "group"}, r"split group needs the name of the column of groups, as in group=person"),
        ({"split": "time", "group": "person"}, r"split must be group where a column of groups is named, got 'time'"),
        ({"share": 1.0}, r"share must be .*, got 1.0"),
        ({"stride": 0}, r"stride must be a whole number of at least 1, got 0"),
        ({"inputs": 3}, r"inputs must be the name of a column, as text, got 3"),
    ],
)
def test_wrong_options(people, options, sentence, tmp_path):
    if options == {"group": "target"}:
        path = tmp_path / "mixed.csv"
        path.write_text("id,x,target\n" + "".join(f"{n % 4},{n},{'ab'[n % 3 > 0]}\n" for n in range(20)))
        people = f"csv:{path}"
    options = {
        "sequence": "id",
        **({} if "inputs" in options or options == {"group": "target"} else {"ignore": "remark"}),
        **options,
    }
    with pytest.raises(ValueError, match=f"^{sentence}$"):
        make(people, **options).count()


def test_an_npz_file_may_hold_its_own_validation_part(tmp_path):
    x = np.random.default_rng(0).normal(size=(6, 4, 2))
    path = tmp_path / "own.npz"
    np.savez(path, x=x, y=np.arange(6) % 2, x_valid=x[:3], y_valid=[0, 1, 1])
    task = make(f"npz:{path}")
    assert (task.count(), task.held_out().count()) == (6, 3)
    assert [int(target) for target in task.held_out()._parts().targets["validation"]] == [0, 1, 1]
    with pytest.raises(ValueError, match=r"^share, split and split_seed go with data that are to be divided"):
        make(f"npz:{path}", share=0.2).count()
