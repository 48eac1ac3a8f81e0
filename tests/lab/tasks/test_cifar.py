"""CIFAR-10 as sequences: pixels in order, colours and grey, rows before noise."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from evenflow.lab.data import read_cifar
from evenflow.lab.tasks import make

ROWS = torch.tensor([3, 0, 7])


def published(folder) -> tuple[np.ndarray, np.ndarray]:
    """The test images ``(N, 32, 32, 3)`` and labels, read by the description of the layout."""
    content = np.fromfile(folder / "cifar-10-batches-bin" / "test_batch.bin", np.uint8).reshape(-1, 3073)
    return np.stack([content[:, 1 + 1024 * c : 1025 + 1024 * c].reshape(-1, 32, 32) for c in range(3)], -1), content[
        :, 0
    ]


def test_pixels_in_order(small_data):
    images, labels = published(small_data)
    colour, grey = (make("cifar", data=str(small_data), pixels=pixels).test() for pixels in ("colour", "grey"))
    inputs, targets, _ = colour.take(ROWS)
    assert inputs.shape == (1024, 3, 3)
    for column, row in enumerate(ROWS.tolist()):
        assert targets[column] == labels[row]
        torch.testing.assert_close(inputs[:, column], torch.from_numpy(images[row].reshape(1024, 3)) / 255)
    one, _, _ = grey.take(ROWS)
    assert one.shape == (1024, 3, 1)
    luma = inputs.double() @ torch.tensor([0.299, 0.587, 0.114], dtype=torch.float64)
    assert (one[..., 0].double() - luma).abs().max() <= 0.51 / 255


@pytest.mark.parametrize("name", ["cifar", "noisy-cifar"])
def test_parts_do_not_overlap_and_pictures_come_back(name, small_data):
    task = make(name, data=str(small_data))
    assert (task.count(), task.held_out().count(), task.test().count()) == (108, 12, 20)
    images, _ = published(small_data)
    sequence = task.test().sequences()[0][4]
    np.testing.assert_allclose(task.picture(sequence), images[4].mean(-1))
    shown = [part.sequences()[0].reshape(part.count(), -1)[:, :3072] for part in (task, task.held_out())]
    assert not {row.tobytes() for row in shown[0]} & {row.tobytes() for row in shown[1]}


def test_rows_then_noise(small_data):
    images, _ = published(small_data)
    task = make("noisy-cifar", data=str(small_data)).test()
    inputs, _, _ = task.take(ROWS)
    assert inputs.shape == (1000, 3, 96)
    rows = torch.from_numpy(images[3].transpose(0, 2, 1).reshape(32, 96).copy()) / 255
    torch.testing.assert_close(inputs[:32, 0], rows)
    noise = inputs[32:]
    assert 0 <= noise.min() < 0.001 < 0.999 < noise.max() < 1
    assert abs(noise.mean() - 0.5) < 0.01
    assert (noise[:, 0] - noise[:, 1]).abs().mean() > 0.3, "each image has noise of its own"
    alone, _, _ = task.take(ROWS[:1])
    assert torch.equal(alone[:, 0], inputs[:, 0]), "which depends on the image alone"


def test_the_noise_never_changes(small_data):
    inputs, _, _ = make("noisy-cifar", data=str(small_data), length=40).test().take(torch.tensor([0]))
    assert inputs.shape == (40, 1, 96)
    assert inputs[32, 0, :3].tolist() == pytest.approx([0.5507979, 0.70814782, 0.29090474])  # RandomState(3)


def test_wrong_options():
    with pytest.raises(ValueError, match=r"^length must be at most 4096, the steps of the noise, got 5000$"):
        make("noisy-cifar", length=5000)
    with pytest.raises(ValueError, match=r"^length must be a whole number of at least 32, got 31$"):
        make("noisy-cifar", length=31)
    with pytest.raises(ValueError, match=r"^pixels must be one of colour, grey, got 'gray'$"):
        make("cifar", pixels="gray")


def test_damaged_files_are_named(small_data, tmp_path):
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    good = (small_data / "cifar-10-batches-bin" / "test_batch.bin").read_bytes()
    for content, words in {
        good[:-1]: r"it has 61,459 bytes, not a multiple of 3,073, an image and a label",
        b"\x0a" + good[1:]: "label 1 is 10, not below 10",
        b"": "empty",
    }.items():
        (folder / "test_batch.bin").write_bytes(content)
        with pytest.raises(ValueError, match=words):
            read_cifar(tmp_path, "test")
    with pytest.raises(ValueError, match=r"data_batch_1.bin is not in the data folder"):
        read_cifar(tmp_path)
