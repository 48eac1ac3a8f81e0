from __future__ import annotations

import numpy as np
import pytest
from damage import refusal

from evenflow.lab.data.music_files import read_music

# pieces to train on, to validate and to test on, and steps where the set's description gives them
SIZES = {
    "MuseData": ((524, 135, 124), (245202, 82755, 64339)),
    "JSB_Chorales": ((229, 76, 77), None),
    "Nottingham": ((694, 173, 170), None),
    "Piano_midi": ((87, 12, 25), None),
}


@pytest.mark.parametrize("name", SIZES)
def test_sizes(data, name):
    pieces, steps = SIZES[name]
    music = read_music(data, name)
    assert list(music) == ["train", "valid", "test"]
    assert tuple(len(part) for part in music.values()) == pieces
    if steps:
        assert tuple(sum(map(len, part)) for part in music.values()) == steps
    for part in music.values():
        for piece in part:
            assert (piece.dtype, piece.shape[1]) == (np.uint8, 88)
            assert piece.flags.c_contiguous
            assert piece.max() <= 1


@pytest.mark.parametrize("name", ["jsb-chorales", "JSB_chorales", "jsb"])
def test_ways_to_say_a_name(data, name):
    assert len(read_music(data, name)["train"]) == 229


def write(folder, **variables):
    io = pytest.importorskip("scipy.io")
    (folder / "music").mkdir(exist_ok=True)
    path = folder / "music" / "Nottingham.mat"
    cells = {}
    for name, rolls in variables.items():
        cells[name] = np.empty((1, len(rolls)), dtype=object)
        for place, roll in enumerate(rolls):
            cells[name][0, place] = roll
    io.savemat(path, cells)
    return path


ROLL = np.eye(3, 88)


def test_float_rolls_become_whole(tmp_path):
    write(tmp_path, traindata=[ROLL, ROLL[:1]], validdata=[ROLL], testdata=[ROLL])
    music = read_music(tmp_path, "nottingham")
    assert [len(piece) for piece in music["train"]] == [3, 1]
    np.testing.assert_array_equal(music["test"][0], ROLL)


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        pytest.param({"testdata": []}, "it has no cell 'testdata' of piano rolls", id="no test part"),
        pytest.param(
            {"validdata": [ROLL, ROLL[:, 1:]]}, "piece 1 of 'validdata' has shape (3, 87), expected (T, 88)", id="87"
        ),
        pytest.param({"traindata": [2 * ROLL]}, "piece 0 of 'traindata' holds something else than 0 and 1", id="two"),
        pytest.param(
            {"traindata": [ROLL * np.nan]}, "piece 0 of 'traindata' holds something else than 0 and 1", id="NaN"
        ),
        pytest.param(
            {"traindata": [ROLL[:0]]}, "piece 0 of 'traindata' has shape (0, 88), expected (T, 88)", id="no steps"
        ),
    ],
)
def test_other_things_than_piano_rolls(tmp_path, change, wrong):
    path = write(tmp_path, **({"traindata": [ROLL], "validdata": [ROLL], "testdata": [ROLL]} | change))
    assert refusal(read_music, tmp_path, "nottingham") == f"cannot read {str(path)!r}: {wrong}"


def test_unknown_and_missing(tmp_path):
    assert refusal(read_music, tmp_path, "Bach") == (
        "unknown music set 'Bach', known are JSB_Chorales, MuseData, Nottingham, Piano_midi"
    )
    path = tmp_path / "music" / "MuseData.mat"
    assert refusal(read_music, tmp_path, "musedata") == f"cannot read {str(path)!r}: there is no such file"
