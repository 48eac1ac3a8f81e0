from __future__ import annotations

import io
import pickle

import numpy as np
import pytest
from damage import answer_or_sentence, damaged, refusal, same_folder
from hypothesis import given
from hypothesis import strategies as st

from evenflow.lab.data import read_npz

X = np.arange(24, dtype=np.float64).reshape(2, 4, 3)


@pytest.fixture
def npz(tmp_path):
    def write(**arrays):
        path = tmp_path / "a.npz"
        np.savez(path, **arrays)
        return path

    return write


@pytest.mark.parametrize(
    ("y", "kind", "readout", "outputs", "shape"),
    [
        pytest.param(np.array([7, 3]), "classification", "last", 2, (2,), id="a whole number a sequence"),
        pytest.param(np.array(["b", "a"]), "classification", "last", 2, (2,), id="a word a sequence"),
        pytest.param(np.array([b"b", b"a"]), "classification", "last", 2, (2,), id="bytes"),
        pytest.param(np.array([True, False]), "classification", "last", 2, (2,), id="yes and no"),
        pytest.param(np.arange(8).reshape(2, 4), "classification", "every", 8, (4,), id="a whole number a step"),
        pytest.param(np.array([0.5, 1]), "regression", "last", 1, (2, 1), id="a number a sequence"),
        pytest.param(np.zeros((2, 3)), "regression", "last", 3, (2, 3), id="numbers a sequence"),
        pytest.param(np.zeros((2, 4)), "regression", "every", 1, (4, 1), id="a number a step"),
        pytest.param(np.zeros((2, 4, 5)), "regression", "every", 5, (4, 5), id="numbers a step"),
        pytest.param(None, "next", "every", 3, None, id="nothing"),
    ],
)
def test_what_targets_look_like(npz, y, kind, readout, outputs, shape):
    own = read_npz(npz(x=X) if y is None else npz(x=X, y=y))
    assert (own.kind, own.readout, own.outputs, own.names) == (kind, readout, outputs, ("x0", "x1", "x2"))
    np.testing.assert_array_equal(np.stack(own.inputs), X)
    assert own.inputs[0].dtype == np.float32
    assert own.test is None
    if y is None:
        assert own.targets is None
    elif readout == "last":
        assert own.targets.shape == shape
    else:
        assert [target.shape for target in own.targets] == [shape, shape]
    assert bool(own.labels) == (kind == "classification")


def test_labels_are_sorted(npz):
    own = read_npz(npz(x=np.zeros((3, 4)), y=np.array([10, 9, 10], np.uint8)))
    assert (own.labels, own.targets.tolist(), own.targets.dtype) == ((9, 10), [1, 0, 1], np.int64)
    own = read_npz(npz(x=np.zeros((3, 4)), y=np.array(["é", "b", "é"])))
    assert (own.labels, own.targets.tolist()) == (("b", "é"), [1, 0, 1])


def test_lengths(npz):
    """What lies behind the length of a sequence may be anything, and is not there afterwards."""
    x, y = X.copy(), np.array([[0, 1, -9, -9], [0, 1, 2, 1]])
    x[0, 2:] = np.nan
    own = read_npz(npz(x=x, y=y, lengths=np.array([2, 4])))
    assert own.lengths.tolist() == [2, 4]
    assert own.labels == (0, 1, 2)
    assert [target.tolist() for target in own.targets] == [[0, 1], [0, 1, 2, 1]]


def test_a_test_part(npz):
    own = read_npz(npz(x=X, y=np.array([3, 1]), x_test=X[:1, :2], y_test=np.array([2]), lengths_test=np.array([1])))
    assert own.labels == own.test.labels == (1, 2, 3)
    assert (own.targets.tolist(), own.test.targets.tolist()) == ([2, 0], [1])
    assert (own.outputs, own.test.outputs, own.test.lengths.tolist()) == (3, 3, [1])
    assert read_npz(npz(x=X, x_test=X[:1])).test.kind == "next"


def test_choices_of_the_user(npz):
    path = npz(x=X, y=np.arange(8).reshape(2, 4))
    assert read_npz(path, kind="regression").targets[0].tolist() == [[0], [1], [2], [3]]
    assert read_npz(path, kind="regression", readout="last").outputs == 4
    assert read_npz(path, kind="next").targets is None
    assert read_npz(npz(x=X, y=np.array([2.0, 1.0])), kind="classification").labels == (1, 2)
    assert read_npz(npz(x=X[..., 0], y=np.array([0, 1]))).names == ("x0",)


@pytest.mark.parametrize(
    ("arrays", "options", "wrong"),
    [
        pytest.param({"y": X}, {}, "it has no array 'x', found 'y'", id="no x"),
        pytest.param(
            {"x": np.zeros(3)}, {}, "'x' must be numbers (N, T) or (N, T, I), got float64 (3,)", id="one dimension"
        ),
        pytest.param(
            {"x": np.zeros((2, 0))}, {}, "'x' must be numbers (N, T) or (N, T, I), got float64 (2, 0)", id="no steps"
        ),
        pytest.param(
            {"x": np.array([["a"]])}, {}, "'x' must be numbers (N, T) or (N, T, I), got <U1 (1, 1)", id="text"
        ),
        pytest.param(
            {"x": np.zeros((2, 3), complex)},
            {},
            "'x' must be numbers (N, T) or (N, T, I), got complex128 (2, 3)",
            id="complex",
        ),
        pytest.param(
            {"x": np.array([[0, 0], [0, np.nan]])},
            {},
            "row 1, step 1, of 'x' holds something else than finite float32 numbers",
            id="NaN",
        ),
        pytest.param(
            {"x": np.array([[0, 1e39], [0, 0]])},
            {},
            "row 0, step 1, of 'x' holds something else than finite float32 numbers",
            id="large",
        ),
        pytest.param(
            {"x": X, "lengths": np.array([4, 5])}, {}, "row 1 of 'lengths' is 5, allowed are 1 to 4", id="too long"
        ),
        pytest.param(
            {"x": X, "lengths": np.array([0, 4])}, {}, "row 0 of 'lengths' is 0, allowed are 1 to 4", id="length 0"
        ),
        pytest.param(
            {"x": X, "lengths": np.array([4.0, 4])},
            {},
            "'lengths' must be 2 whole numbers, got float64 (2,)",
            id="real lengths",
        ),
        pytest.param(
            {"x": X, "lengths": np.array([1, 4])},
            {},
            "row 0 of 'x' has one step, and predicting the next needs two",
            id="one step",
        ),
        pytest.param({"x": X}, {"kind": "regression"}, "it has no array 'y', which regression needs", id="no y"),
        pytest.param(
            {"x": X, "y": np.array([1, 2, 3])},
            {},
            "'y' must have shape (2,) for classification, readout last, got (3,)",
            id="three classes",
        ),
        pytest.param(
            {"x": X, "y": np.zeros((2, 3), int)},
            {},
            "'y' must have shape (2,) for classification, readout last, got (2, 3)",
            id="3 classes a row",
        ),
        pytest.param(
            {"x": X, "y": np.zeros((3, 1))},
            {},
            "'y' must have shape (2,) or (2, O) for regression, readout last, got (3, 1)",
            id="three rows",
        ),
        pytest.param(
            {"x": X, "y": np.zeros((2, 5, 1))},
            {},
            "'y' must have shape (2, 4) or (2, 4, O) for regression, readout every, got (2, 5, 1)",
            id="five steps",
        ),
        pytest.param(
            {"x": X, "y": np.zeros((2, 0))},
            {},
            "'y' must have shape (2,) or (2, O) for regression, readout last, got (2, 0)",
            id="no numbers",
        ),
        pytest.param(
            {"x": X, "y": np.array([0.5, np.inf])},
            {},
            "row 1 of 'y' holds something else than finite float32 numbers",
            id="infinite",
        ),
        pytest.param(
            {"x": X, "y": np.full((2, 4), np.nan)},
            {},
            "row 0, step 0, of 'y' holds something else than finite float32 numbers",
            id="NaN a step",
        ),
        pytest.param(
            {"x": X, "y": np.array([0.5, 1])},
            {"kind": "classification"},
            "'y' must be whole numbers or text for classification, got float64",
            id="half a class",
        ),
        pytest.param(
            {"x": X, "y": np.array(["a", "b"])},
            {"kind": "regression"},
            "'y' must be numbers for regression, got <U1",
            id="words",
        ),
        pytest.param({"x": X, "y": np.array([b"\xff", b"b"])}, {}, "'y' holds text that is not UTF-8", id="not UTF-8"),
        pytest.param(
            {"x": X, "y": np.array([1, 1])},
            {},
            "every target is 1, and classification needs two classes",
            id="one class",
        ),
        pytest.param({"x": X, "y_test": X}, {}, "it has 'y_test' and no 'x_test'", id="y_test alone"),
        pytest.param({"x": X, "y": np.arange(2), "x_test": X}, {}, "it has 'y' and no 'y_test'", id="no y_test"),
        pytest.param({"x": X, "x_test": X, "y_test": np.arange(2)}, {}, "it has 'y_test' and no 'y'", id="only y_test"),
        pytest.param(
            {"x": X, "x_test": X[..., :2]},
            {},
            "'x_test' and 'y_test' differ from 'x' and 'y' in more than their rows and steps",
            id="other inputs",
        ),
    ],
)
def test_bad_arrays(npz, arrays, options, wrong):
    path = npz(**arrays)
    assert refusal(read_npz, path, **options) == f"cannot read {str(path)!r}: {wrong}"


def test_objects_are_never_unpickled(npz, tmp_path):
    class Creates:
        def __reduce__(self):
            return open, (str(tmp_path / "made"), "w")

    said = refusal(read_npz, npz(x=np.array([[Creates()]], dtype=object)))
    assert said.endswith(": array 'x' holds Python objects (a pickle), which are never read")
    said = refusal(read_npz, npz(x=X, y=np.array([Creates(), Creates()], dtype=object)))
    assert said.endswith(": array 'y' holds Python objects (a pickle), which are never read")
    assert not (tmp_path / "made").exists()
    pickle.loads(pickle.dumps(Creates())).close()
    assert (tmp_path / "made").exists(), "the payload itself must work, or this test shows nothing"


def saved(**arrays) -> bytes:
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


arrays_of_numbers = st.builds(
    lambda shape, dtype, seed: (np.random.default_rng(seed).integers(0, 4, shape)).astype(dtype),
    st.lists(st.integers(0, 3), max_size=4).map(tuple),
    st.sampled_from(["f4", "f8", "i2", "u1", "?", "U2", "S1", "c8", "f2"]),
    st.integers(0, 9),
)


@same_folder
@given(
    st.dictionaries(
        st.sampled_from(["x", "y", "lengths", "x_test", "y_test", "lengths_test"]), arrays_of_numbers, min_size=1
    )
)
def test_any_arrays_give_sequences_or_one_sentence(tmp_path, arrays):
    path = tmp_path / "a.npz"
    path.write_bytes(saved(**arrays))
    for kind in (None, "classification", "regression", "next"):
        for readout in (None, "last", "every") if kind != "next" else (None,):
            own = answer_or_sentence(lambda k=kind, r=readout: read_npz(path, k, r), path)
            for part in (own, own.test) if own and own.test else (own,) if own else ():
                assert part.kind == (kind or part.kind)
                assert len(part.inputs) == len(part.lengths)
                assert part.targets is None or len(part.targets) == len(part.inputs)


@same_folder
@given(damaged(saved(x=np.arange(8.0).reshape(2, 4), y=np.array([0, 1]))))
def test_a_damaged_file_gives_sequences_or_one_sentence(tmp_path, broken):
    path = tmp_path / "a.npz"
    path.write_bytes(broken)
    own = answer_or_sentence(lambda: read_npz(path), path)
    if own is not None and own.kind == "classification":
        assert own.labels == (0, 1)
