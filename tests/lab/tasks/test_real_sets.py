"""The real sets have the sizes that are published, and say what they hold."""

from __future__ import annotations

import math

import pytest
import torch

from evenflow.lab.data.treebank_files import read_words
from evenflow.lab.tasks import Position, make

CPU = torch.device("cpu")
# Cross entropy of the shares of the classes, words, characters and notes, in nats; to the digits shown.
ROUNDED = 5e-4


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize(
    ("name", "options", "sizes", "baseline"),
    [
        ("mnist", {}, (55_000, 5_000, 10_000), 2.3012),
        ("ptb-characters", {"longest": 75}, (9_855, 817, 917), 2.9336),
        ("har-rebuilt", {"classes": 2}, (6_617, 735, 2_947), 0.6929),
        ("har-rebuilt", {"one_output": True, "validation": "test"}, (7_352, 2_947, None), 0.6929),
        ("har-rebuilt", {"classes": 6}, (6_617, 735, 2_947), 1.7828),
        ("har-subset", {}, (2_160, 240, 950), 0.6927),
        ("ucr", {"set": "DistalPhalanxTW"}, (111, 28, 400), None),
        ("ucr", {"set": "50words"}, (361, 89, 455), None),
        ("music", {"set": "musedata"}, (524, 135, 124), 11.6457),
        ("music", {"set": "musedata", "average": "pieces"}, (524, 135, 124), 10.3596),
        ("music", {"set": "jsb-chorales"}, (229, 76, 77), 11.0932),
        ("music", {"set": "nottingham"}, (694, 173, 170), 10.0572),
        ("music", {"set": "piano-midi"}, (87, 12, 25), 11.3259),
        ("multilabel", {}, (4_392, 488, 2_515), None),
    ],
    ids=lambda value: " ".join(map(str, value.values())) if isinstance(value, dict) else None,
)
def test_sizes_and_baselines(data, name, options, sizes, baseline):
    task = make(name, data=str(data), **options)
    test = None if task.test() is None else task.test().count()
    assert (task.count(), task.held_out().count(), test) == sizes
    if baseline is not None:
        assert task.baseline == pytest.approx(baseline, abs=ROUNDED)


def test_the_words_of_the_penn_treebank(data):
    task = make("ptb-words", data=str(data))
    tokens = [part.count() + task.length for part in (task, task.held_out(), task.test())]
    assert tokens == [929_589, 73_760, 82_430]
    assert (task.vocabulary, task.output_size) == (10_000, 10_000)
    assert task.baseline == pytest.approx(6.5293, abs=ROUNDED)


@pytest.mark.parametrize("width", [1, 2, 28])
def test_mnist_is_read_row_by_row(data, width):
    ordered, permuted = (make("mnist", data=str(data), order=order, width=width) for order in ("ordered", "permuted"))
    first, second = (task.test().take(torch.arange(3)).inputs for task in (ordered, permuted))
    assert first.shape == second.shape == (784 // width, 3, width)
    image = first[:, 0].reshape(28, 28)
    assert image[7:11, 6:22].mean() > 0.4, "the first test image is a seven: a bar below its top"
    assert (image[:6] == 0).all()
    assert not torch.equal(first, second)
    assert sorted(first[:, 0].flatten().tolist()) == sorted(second[:, 0].flatten().tolist())
    assert (first.min(), first.max()) == (0, 1)


@pytest.mark.parametrize("order", ["ordered", "permuted"])
@pytest.mark.parametrize("width", [1, 4])
def test_shifted_images_of_mnist(small_data, order, width):
    plain = make("mnist", data=str(small_data))
    task = make("mnist", data=str(small_data), order=order, width=width, shift=2)
    assert task.count() == 25 * plain.count()
    assert [part.count() for part in (task.held_out(), task.test())] == [
        part.count() for part in (plain.held_out(), plain.test())
    ]
    images = plain.take(torch.arange(3))
    found = task.take(torch.arange(75))
    # The same, moved on a larger sheet, and read in the order of the pixels that a permuted task has.
    sheets = torch.nn.functional.pad(images.inputs[..., 0].T.reshape(3, 28, 28), (2, 2, 2, 2))
    moved = [sheet[2 - d : 30 - d, 2 - r : 30 - r] for sheet in sheets for d in range(-2, 3) for r in range(-2, 3)]
    pixels = torch.stack(moved).reshape(75, 784)[:, task._order()]
    assert torch.equal(found.inputs, pixels.reshape(75, 784 // width, width).transpose(0, 1))
    assert torch.equal(found.targets, images.targets.repeat_interleave(25))
    for held_out in (task.held_out(), task.test()):  # not moved: each row is an image
        alone = make("mnist", data=str(small_data), order=order, width=width).in_part(held_out.part)
        rows = torch.arange(held_out.count())
        assert torch.equal(held_out.take(rows).inputs, alone.take(rows).inputs)


@pytest.mark.parametrize(
    ("shift", "words"),
    [
        (5, "shift must be at most 4 pixels, got 5"),
        (0, "shift must be a whole number of at least 1, got 0"),
    ],
)
def test_a_shift_of_mnist_has_its_limits(shift, words):
    with pytest.raises(ValueError) as refused:
        make("mnist", shift=shift)
    assert str(refused.value) == words


def test_the_permutation_of_mnist_never_changes(small_data):
    """Values written down once: a drift would make runs incomparable without a word."""
    ordered, permuted = (
        make("mnist", data=str(small_data), order=order).test().take(torch.arange(40)).inputs[..., 0]
        for order in ("ordered", "permuted")
    )
    places = [(ordered == row).all(1).nonzero().flatten().tolist() for row in permuted[:8]]
    assert places == [[193], [747], [583], [510], [675], [486], [502], [7]]


def test_har_and_ucr_name_their_classes(small_data):
    six, two = (make("har", data=str(small_data), classes=count).schema().labels for count in (6, 2))
    assert six[3] == "sitting"
    assert two == ("walking, walking downstairs, standing", "walking upstairs, sitting, laying")
    assert make("ucr", data=str(small_data)).schema().labels == (1, 2, 3, 4, 5)


@pytest.mark.parametrize(
    ("name", "width", "steps"),
    [("ArrowHead", 1, 251), ("Adiac", 11, 16), ("CBF", 8, 16), ("Lighting2", 13, 49), ("ItalyPowerDemand", 4, 6)],
)
def test_ucr_is_folded_as_in_the_document(data, name, width, steps):
    task = make("ucr", data=str(data), set=name)
    assert task.batch(2, generator()).inputs.shape == (steps, 2, width)


def test_the_one_width_that_is_not_by_the_rule(data):
    assert make("ucr", data=str(data), set="50words").input_size == 15
    assert make("ucr", data=str(data), set="50words", width=10).batch(2, generator()).inputs.shape == (27, 2, 10)


def test_insect_wings_have_no_test_part(data):
    task = make("ucr", data=str(data), set="InsectWingbeatSound")
    assert task.test() is None
    with pytest.raises(ValueError, match=r"^InsectWingbeatSound has no test part in the data folder '.*'$"):
        task.in_part("test").count()


def test_har_signals_are_scaled_by_the_training_windows(data):
    task = make("har-rebuilt", data=str(data))
    windows = task.take(torch.arange(task.count())).inputs
    torch.testing.assert_close(windows.mean((0, 1)), torch.zeros(9), atol=1e-5, rtol=0)
    torch.testing.assert_close(windows.std((0, 1)), torch.ones(9), atol=1e-4, rtol=0)
    assert task.note == "rebuilt from raw recordings"
    assert make("har").note == ""


def test_two_classes_of_six_activities(data):
    two, six = (make("har-rebuilt", data=str(data), classes=classes).test() for classes in (2, 6))
    rows = torch.arange(two.count())
    pairs = set(zip(six.take(rows).targets.tolist(), two.take(rows).targets.tolist(), strict=True))
    assert pairs == {(0, 0), (1, 1), (2, 0), (3, 1), (4, 0), (5, 1)}


def test_one_output_tells_two_classes_apart(small_data):
    two, one = (make("har", data=str(small_data), one_output=which).test() for which in (False, True))
    rows = torch.arange(two.count())
    labels, targets = two.take(rows).targets, one.take(rows).targets
    assert torch.equal(targets, labels[:, None].float())
    # The sigmoid of one score is the softmax of that score and zero.
    scores = torch.randn(len(rows), 1, generator=generator())
    both = torch.cat([torch.zeros_like(scores), scores], 1)
    torch.testing.assert_close(one.loss(scores, targets), two.loss(both, labels))
    assert one.metric(scores, targets) == two.metric(both, labels)
    assert (one.output_size, one.problem) == (1, "multilabel")
    assert [column.name for column in one.schema().targets] == ["walking upstairs, sitting, laying"]


def test_har_validated_on_the_test_windows_has_no_test_left(small_data):
    usual, task = (make("har", data=str(small_data), validation=part) for part in ("tenth", "test"))
    assert task.test() is None
    assert task.count() == usual.count() + usual.held_out().count()
    rows = torch.arange(usual.test().count())
    assert torch.equal(task.held_out().take(rows).targets, usual.test().take(rows).targets)


def test_words_without_a_carried_state(small_data):
    carried, alone = (make("ptb-words", data=str(small_data), length=7, carry=carry) for carry in (True, False))
    for step in range(3):
        first, second = (task.training_batch(4, Position(step, 100), generator()) for task in (carried, alone))
        assert torch.equal(first.inputs, second.inputs)
        assert (first.carried, second.carried) == (step > 0, False)
    assert not any(batch.carried for batch in alone.every_batch(4, Position(0, 1), CPU))
    assert (carried.carries, alone.carries) == (True, False)


@pytest.mark.parametrize("size", [4, 20])
def test_streams_of_words_read_on(small_data, size):
    """Batches laid end to end are the text, cut into `size` streams; targets are the next words."""
    task = make("ptb-words", data=str(small_data), length=7)
    text = torch.from_numpy(read_words(small_data).astype("int64"))
    each = len(text) // size
    streams = text[: each * size].view(size, each).T
    steps = task.epoch_steps(size)
    batches = [task.training_batch(size, Position(step, 100), generator()) for step in range(steps + 1)]
    walked = torch.cat([batch.inputs for batch in batches[:-1]])
    assert torch.equal(walked, streams[: len(walked)])
    assert all(torch.equal(batch.targets[:-1], batch.inputs[1:]) for batch in batches)
    assert [batch.carried for batch in batches] == [False] + [True] * (steps - 1) + [False]
    whole = list(task.every_batch(size, Position(0, 1), CPU))
    assert torch.equal(torch.cat([batch.targets for batch in whole]), streams[1:])


def test_two_processes_share_the_streams(small_data):
    task = make("ptb-words", data=str(small_data), length=5)
    together = task.training_batch(4, Position(3, 9), generator()).inputs
    apart = [task.training_batch(2, Position(3, 9, 0, rank, 2), generator()).inputs for rank in range(2)]
    assert torch.equal(torch.cat(apart, 1), together)


def test_too_short_a_text_is_refused(small_data):
    task = make("ptb-words", data=str(small_data), length=1000)
    with pytest.raises(
        ValueError, match=r"^the training text has [\d,]+ words, too few for 50 streams of length 1000 "
    ):
        task.epoch_steps(50)


def test_perplexity_is_of_the_mean_loss():
    task = make("ptb-words")
    assert task.summary(math.log(120)) == pytest.approx(120)
    assert (task.metric_name, task.higher_is_better) == ("perplexity", False)
    assert task.solved(99.9)
    assert not task.solved(100)


@pytest.mark.parametrize(
    ("name", "options", "sentence"),
    [
        ("mnist", {"width": 3}, "width must be one of 1, 2, 4, 7, 8, 14, 16, 28, got 3"),
        ("mnist", {"order": "sorted"}, "order must be one of ordered, permuted, got 'sorted'"),
        ("har", {"classes": 3}, "classes must be 2 or 6, got 3"),
        ("har", {"validation": "x"}, "validation must be one of tenth, test, got 'x'"),
        ("har", {"classes": 6, "one_output": True}, "one_output goes with 2 classes, got 6"),
        ("ucr", {"set": ""}, "set must be the name of a UCR set, such as 'ECG5000', got ''"),
        ("ucr", {"width": 0}, "width must be a whole number of at least 1, got 0"),
        ("music", {"set": "abba"}, "set must be one of jsb-chorales, musedata, nottingham, piano-midi, got 'abba'"),
        ("multilabel", {"set": "x"}, "set must be one of bibtex, mediamill, got 'x'"),
        ("ptb-characters", {"longest": 1}, "longest must be a whole number of at least 2, got 1"),
        ("ptb-words", {"length": 0}, "length must be a whole number of at least 1, got 0"),
    ],
)
def test_wrong_options(name, options, sentence):
    with pytest.raises(ValueError, match=f"^{sentence}$"):
        make(name, **options)


def test_a_width_that_does_not_divide_the_series(small_data):
    with pytest.raises(ValueError, match=r"^width must divide the 140 numbers of a series of ECG5000, got 3$"):
        make("ucr", data=str(small_data), width=3).batch(2, generator())


@pytest.mark.parametrize(
    "name", ["mnist", "fashion-mnist", "cifar", "noisy-cifar", "ptb-words", "har", "ucr", "music", "multilabel"]
)
def test_missing_files_are_named(name, tmp_path):
    with pytest.raises(ValueError, match=str(tmp_path)):
        make(name, data=str(tmp_path)).batch(2, generator())


def test_a_piece_counts_alike_however_long_it_is(data):
    """Equation 4.2 of Galvan: a mean over the steps of each piece, then over pieces."""
    task = make("music", data=str(data), set="jsb-chorales", average="pieces")
    batch = task.take(torch.arange(5))
    outputs = torch.randn(*batch.targets.shape, generator=generator())
    pieces = []
    for piece, length in enumerate(batch.lengths.tolist()):
        known = outputs[:length, piece], batch.targets[:length, piece]
        pieces.append(torch.nn.functional.binary_cross_entropy_with_logits(*known, reduction="sum") / length)
    assert task.loss(outputs, batch.targets).item() == pytest.approx(torch.stack(pieces).mean().item(), rel=1e-5)
    assert task.weight(batch) == 5
    every = make("music", data=str(data), set="jsb-chorales")
    weighted = sum(loss * length for loss, length in zip(pieces, batch.lengths, strict=True)) / batch.lengths.sum()
    assert every.loss(outputs, batch.targets).item() == pytest.approx(weighted.item(), rel=1e-5)


def test_an_update_sees_a_part_of_a_piece_from_a_random_step_on(data):
    task, whole = (make("music", data=str(data), set="jsb-chorales", crop=crop) for crop in (20, None))
    seen = set()
    for draw in range(4):
        position = Position(0, 100, seed=3)
        batch = task.training_batch(6, position, generator(draw))
        pieces = whole.training_batch(6, position, generator(draw))
        assert batch.inputs.shape[0] == 20
        for piece, length in enumerate(batch.lengths.tolist()):
            full = pieces.lengths[piece].item()
            assert length == min(20, full)
            starts = [
                start for start in range(full - length + 1)
                if torch.equal(pieces.inputs[start : start + length, piece], batch.inputs[:length, piece])
                and torch.equal(pieces.targets[start : start + length, piece], batch.targets[:length, piece])
            ]  # fmt: skip
            assert starts
            seen.add((piece, starts[0]))
            assert (batch.targets[length:, piece] == -1).all()
    assert len(seen) > 6
    assert task.held_out().take(torch.arange(3)).inputs.shape[0] > 20


def test_another_seed_divides_a_ucr_set_anew(data):
    first, again, other = (make("ucr", data=str(data), set="CBF", split_seed=seed) for seed in (1, 1, 2))
    held = [task.held_out().tensors()[0] for task in (first, again, other)]
    assert torch.equal(held[0], held[1])
    assert not torch.equal(held[0], held[2])
    assert set(first.held_out().tensors()[1].tolist()) == {0, 1, 2}
