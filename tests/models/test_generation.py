"""Generation: draws have the model's probabilities, and a carried state gives what reading it all again would."""

from __future__ import annotations

import re
from collections import Counter
from itertools import islice
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from evenflow import LSTM, RNN, EchoState, GatedFeedbackRNN, SequenceModel, attach, create, generate, stream
from evenflow.maps import Householder
from evenflow.models import DataColumn, DataSchema, Predictor

ROWS = 40_000  # draws of one step
SPREAD = 5  # standard deviations that a share of the draws may be off
SYMBOLS, NOTES, WIDTH, STEPS, BATCH = 7, 11, 12, 9, 3
DOCUMENT = Path(__file__).parents[2] / "docs" / "generation.md"

LAYERS = {
    "rnn": lambda I: RNN(I, WIDTH, 2),
    "lstm": lambda I: LSTM(I, WIDTH),
    "sgornn": lambda I: create("sgornn", I, WIDTH),
    "full-urnn": lambda I: create("full-urnn", I, WIDTH),
    "gated-feedback": lambda I: GatedFeedbackRNN(I, WIDTH, 2, unit="lstm"),
    "learned-start": lambda I: RNN(I, WIDTH, initial_state="learned"),
    "esn": lambda I: EchoState(I, WIDTH),
    "torch-lstm": lambda I: nn.LSTM(I, WIDTH, 2),
    "torch-gru": lambda I: nn.GRU(I, WIDTH),
    "torch-gru-mapped": lambda I: attach(nn.GRU(I, WIDTH), "weight_hh_l0", Householder(WIDTH), blocks="n"),
}


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def make(kind: str, layer: str = "lstm") -> SequenceModel:
    """A model whose outputs are far from each other, so that no rounding decides what is likeliest."""
    if kind == "symbols":
        model = SequenceModel(LAYERS[layer](5), SYMBOLS, readout="every", vocabulary=SYMBOLS)
    else:
        model = SequenceModel(LAYERS[layer](NOTES), NOTES, readout="every")
    with torch.no_grad():
        model.output.weight.normal_(std=2.0)
    return model


def make_prompt(kind: str, *shape: int) -> Tensor:
    if kind == "symbols":
        return torch.randint(SYMBOLS, shape, generator=seeded(1))
    return (torch.rand(*shape, NOTES, generator=seeded(1)) < 0.3).float()


def with_bias(bias: list[float], kind: str) -> SequenceModel:
    """A model that gives `bias` at every step, whatever it read."""
    width = len(bias)
    model = SequenceModel(RNN(width, 4), width, readout="every", vocabulary=width if kind == "symbols" else None)
    with torch.no_grad():
        model.output.weight.zero_()
        model.output.bias.copy_(torch.tensor(bias))
    return model


# Streaming.


@pytest.mark.parametrize("kind", ["symbols", "notes"])
@pytest.mark.parametrize("layer", LAYERS)
def test_pieces_equal_the_whole(layer, kind):
    """Greedy steps with a carried state are those of a model that reads all of it again before each."""
    model, read = make(kind, layer), make_prompt(kind, 4, BATCH)
    following = generate(model, read, STEPS, greedy=True)
    for step in following:
        y = model(read)[0][-1]
        expected = y.argmax(-1) if kind == "symbols" else (y > 0).float()
        assert torch.equal(step, expected)
        read = torch.cat([read, step.unsqueeze(0)])
    assert following.dtype == (torch.int64 if kind == "symbols" else torch.float32)


@pytest.mark.parametrize("greedy", [True, False], ids=["greedy", "drawn"])
def test_nothing_is_read_twice(greedy):
    model, shapes = make("symbols"), []
    model.embedding.register_forward_pre_hook(lambda _, inputs: shapes.append(tuple(inputs[0].shape)))
    generate(model, make_prompt("symbols", 6, BATCH), 5, greedy=greedy)
    assert shapes == [(6, BATCH), *[(BATCH,)] * 4]


@pytest.mark.parametrize("kind", ["symbols", "notes"])
def test_generate_is_stream_cut_off(kind):
    model, prompt = make(kind), make_prompt(kind, 4, BATCH)
    whole = generate(model, prompt, STEPS, generator=seeded())
    source = stream(model, prompt, generator=seeded())
    first = list(islice(source, 4))
    rest = list(islice(source, STEPS - 4))  # goes on where it stopped
    assert torch.equal(torch.stack(first + rest), whole)
    assert whole.shape == ((STEPS, BATCH) if kind == "symbols" else (STEPS, BATCH, NOTES))


@pytest.mark.parametrize("kind", ["symbols", "notes"])
def test_a_prompt_without_a_batch(kind):
    model, prompt = make(kind), make_prompt(kind, 4, 1)
    batched, alone = generate(model, prompt, STEPS, greedy=True), generate(model, prompt[:, 0], STEPS, greedy=True)
    assert alone.shape == ((STEPS,) if kind == "symbols" else (STEPS, NOTES))
    assert torch.equal(batched[:, 0], alone)
    assert generate(model, prompt[:, :0], 2).shape[:2] == (2, 0)


def test_each_row_goes_its_own_way():
    model, prompt = make("symbols"), make_prompt("symbols", 4, BATCH)
    together = generate(model, prompt, STEPS, greedy=True)
    for b in range(BATCH):
        assert torch.equal(generate(model, prompt[:, b], STEPS, greedy=True), together[:, b])


def test_gradients_are_off_inside_and_left_alone_outside():
    model = make("symbols")
    for step in islice(stream(model, make_prompt("symbols", 4, BATCH)), 2):
        assert torch.is_grad_enabled()
        assert not step.requires_grad
    assert model.training


def test_the_model_is_taken_as_it_is_and_left_alone():
    model = SequenceModel(create("exprnn", 5, WIDTH, num_layers=2, dropout=0.5), 4, readout="every", vocabulary=4)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    calls: list[int] = []
    model.layer.parametrizations.weight_hh_l0[0].register_forward_hook(lambda *_: calls.append(1))
    words = stream(model, torch.tensor([1, 2]), greedy=True)
    assert len(calls) == 1, "each mapped matrix is made once"
    first = list(islice(words, 5))
    assert len(calls) == 1
    assert model.training
    assert list(model.state_dict()) == list(before)
    assert torch.equal(torch.stack(first), generate(model, torch.tensor([1, 2]), 5, greedy=True)), "no dropout"
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(float("nan"))
    assert next(words).item() in range(4)


def test_same_seed_same_steps():
    model, prompt = make("symbols"), make_prompt("symbols", 4, BATCH)
    torch.manual_seed(5)
    first = generate(model, prompt, 30, generator=seeded(2))
    state = torch.get_rng_state()
    assert torch.equal(generate(model, prompt, 30, generator=seeded(2)), first)
    assert torch.equal(torch.get_rng_state(), state), "the global generator is not touched"
    assert not torch.equal(generate(model, prompt, 30, generator=seeded(3)), first)


def test_kinds_of_numbers():
    prompt = make_prompt("symbols", 4, BATCH)
    model = make("symbols").double()
    assert torch.equal(generate(model, prompt.int(), 3, greedy=True), generate(model, prompt, 3, greedy=True))
    roll = make_prompt("notes", 4, BATCH)
    music = make("notes").double()
    from_bool = generate(music, roll.bool(), 3, generator=seeded())
    assert from_bool.dtype == torch.float64
    assert torch.equal(from_bool, generate(music, roll, 3, generator=seeded()))


# Probabilities.


def share_of(drawn: Tensor, expected: Tensor) -> None:
    """The shares of the draws are the probabilities, to within chance."""
    slack = SPREAD * (expected * (1 - expected) / ROWS).sqrt()
    assert ((drawn - expected).abs() <= slack).all(), (drawn, expected)


@pytest.mark.parametrize(
    ("temperature", "top_k"), [(1.0, None), (0.5, None), (3.0, None), (1.0, 2), (2.0, 4), (1.0, 1)]
)
def test_symbols_are_drawn_with_the_probabilities_of_softmax(temperature, top_k):
    bias = [0.5, -1.0, 2.0, 0.0, 1.0]
    prompt = torch.zeros(1, ROWS, dtype=torch.long)
    drawn = generate(with_bias(bias, "symbols"), prompt, 1, temperature=temperature, top_k=top_k, generator=seeded())
    y = torch.tensor(bias) / temperature
    kept = sorted(range(5), key=lambda v: -bias[v])[: top_k or 5]
    expected = torch.zeros(5)
    expected[kept] = y[kept].softmax(0)
    share_of(drawn[0].bincount(minlength=5) / ROWS, expected)
    assert set(drawn.unique().tolist()) <= set(kept)


@pytest.mark.parametrize(("temperature", "top_k"), [(1.0, None), (0.5, None), (3.0, None), (1.0, 2)])
def test_notes_are_drawn_each_by_itself(temperature, top_k):
    bias = [0.5, -1.0, 2.0, 0.0, -3.0]
    drawn = generate(
        with_bias(bias, "notes"), torch.zeros(1, ROWS, 5), 1, temperature=temperature, top_k=top_k, generator=seeded()
    )[0]
    assert set(drawn.unique().tolist()) <= {0.0, 1.0}
    expected = (torch.tensor(bias) / temperature).sigmoid()
    if top_k is not None:
        expected[[1, 3, 4]] = 0.0
    share_of(drawn.mean(0), expected)
    share_of((drawn[:, 0] * drawn[:, 2]).mean(), expected[0] * expected[2])  # independent


def test_greedy_is_the_limit_of_a_low_temperature():
    for kind in ("symbols", "notes"):
        model, prompt = make(kind), make_prompt(kind, 4, BATCH)
        cold = generate(model, prompt, STEPS, temperature=1e-6, generator=seeded())
        assert torch.equal(generate(model, prompt, STEPS, greedy=True), cold)


def test_greedy_chords_have_at_most_top_k_notes():
    model = with_bias([3.0, 1.0, -1.0, 2.0, 0.5], "notes")
    prompt = torch.zeros(1, 1, 5)
    assert generate(model, prompt, 1, greedy=True)[0, 0].tolist() == [1, 1, 0, 1, 1]
    assert generate(model, prompt, 1, greedy=True, top_k=2)[0, 0].tolist() == [1, 0, 0, 1, 0]


def test_steps_after_the_first_are_drawn_anew():
    """Uniform symbols: all pairs of neighbours come equally often."""
    drawn = generate(with_bias([0.0] * 3, "symbols"), torch.zeros(1, 500, dtype=torch.long), 41, generator=seeded())
    pairs = Counter(zip(drawn[:-1].flatten().tolist(), drawn[1:].flatten().tolist(), strict=True))
    assert len(pairs) == 9
    assert all(abs(count / 20_000 - 1 / 9) < 0.012 for count in pairs.values())  # 5 standard deviations


# A model that has learnt something.


def test_a_trained_model_goes_on_with_the_tune():
    tune = torch.tensor([0, 1, 2, 1, 0, 3]).repeat(8)
    model = SequenceModel(RNN(8, 24, generator=seeded()), 4, readout="every", vocabulary=4, generator=seeded())
    optimizer = torch.optim.Adam(model.parameters(), 0.02)
    for _ in range(120):
        loss = nn.functional.cross_entropy(model(tune[:-1, None])[0][:, 0], tune[1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert torch.equal(generate(model, tune[:6], 42, greedy=True), tune[6:])
    assert torch.equal(generate(model, tune[:9], 30, temperature=0.3, generator=seeded()), tune[9:39])


def test_document_runs():
    blocks = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    assert len(blocks) >= 2
    space: dict[str, object] = {}
    for block in blocks:
        exec(block, space)


# Wrong input.

SOME = torch.tensor([1, 2])


def broken() -> SequenceModel:
    return with_bias([float("nan")] * 3, "symbols")


BAD = [
    (lambda: generate(make("symbols"), SOME[:0], 3), "prompt must have at least one step, got (0,)"),
    (
        lambda: generate(make("notes"), torch.zeros(0, 2, NOTES), 3),
        "prompt must have at least one step, got (0, 2, 11)",
    ),
    (lambda: generate(make("symbols"), torch.tensor([1, 7]), 3), "prompt must hold symbols from 0 to 6, got 7"),
    (lambda: generate(make("symbols"), torch.tensor([-1]), 3), "prompt must hold symbols from 0 to 6, got -1"),
    (lambda: generate(make("symbols"), [1, 2], 3), "prompt must be a tensor, got list"),
    (
        lambda: generate(make("symbols"), torch.ones(3), 3),
        "prompt must hold whole numbers for a model with a vocabulary, got torch.float32",
    ),
    (lambda: generate(make("symbols"), torch.ones(3, 2, 2).long(), 3), "prompt must be (T, B) or (T), got (3, 2, 2)"),
    (
        lambda: generate(make("notes"), torch.zeros(3, 10), 3),
        "prompt must be (T, B, N) or (T, N) with N = 11, got (3, 10)",
    ),
    (
        lambda: generate(make("notes"), torch.full((3, NOTES), 64.0), 3),
        "prompt must hold zeros and ones, a note off or on, got 64",
    ),
    (lambda: generate(make("symbols"), SOME, 0), "steps must be a whole number of at least 1, got 0"),
    (lambda: generate(make("symbols"), SOME, 3, temperature=0.0), "temperature must be a number above 0, got 0.0"),
    (
        lambda: generate(make("symbols"), SOME, 3, temperature=float("nan")),
        "temperature must be a number above 0, got nan",
    ),
    (lambda: generate(make("symbols"), SOME, 3, top_k=0), "top_k must be a whole number of at least 1, got 0"),
    (lambda: generate(make("symbols"), SOME, 3, top_k=8), "top_k must be at most 7, the number of outputs, got 8"),
    (
        lambda: generate(make("symbols"), SOME, 3, greedy=True, temperature=0.5),
        "greedy draws nothing, so it cannot be combined with temperature=0.5",
    ),
    (
        lambda: generate(make("symbols"), SOME, 3, greedy=True, top_k=2),
        "greedy draws nothing, so it cannot be combined with top_k=2",
    ),
    (
        lambda: generate(SequenceModel(RNN(4, 4), 5, vocabulary=5), SOME, 3),
        "model must have readout 'every', an output at each step, got 'last'",
    ),
    (
        lambda: generate(SequenceModel(RNN(4, 4, bidirectional=True), 5, readout="every", vocabulary=5), SOME, 3),
        "model must not be bidirectional: its reverse direction needs the steps to come",
    ),
    (
        lambda: generate(SequenceModel(RNN(4, 4), 6, readout="every", vocabulary=5), SOME, 3),
        "model must have one output for each of its 5 symbols, got 6",
    ),
    (
        lambda: generate(SequenceModel(RNN(4, 4), 1, readout="every"), SOME, 3),
        "model must have as many outputs as its 4 inputs, or a vocabulary, got 1",
    ),
    (lambda: generate(nn.LSTM(4, 4), SOME, 3), "model must be a SequenceModel, got LSTM"),
    (
        lambda: generate(broken(), SOME, 3),
        "the model's outputs must be finite to generate from them, got infinite or nan values",
    ),
    (lambda: stream(make("symbols"), SOME[:0]), "prompt must have at least one step, got (0,)"),
]


@pytest.mark.parametrize(("call", "words"), BAD, ids=[words[:45] for _, words in BAD])
def test_bad_input_is_refused_in_one_sentence(call, words):
    """At the call, not at the first step: a stream that cannot begin is no stream."""
    with pytest.raises(ValueError) as error:
        call()
    assert str(error.value) == words


@pytest.mark.parametrize("form", [(7, 3, 2), (7, 2)])
def test_a_forecaster_continues_numbers_in_their_units(form):
    columns = (DataColumn("a", mean=100.0, deviation=20.0), DataColumn("b"))
    model = SequenceModel(create("gru", 2, 4), 2, readout="every")
    predictor = Predictor(model, DataSchema("next", "every", columns))
    x = 100 * torch.rand(form, dtype=torch.float64)
    found = generate(predictor, x, 5)
    assert found.shape == (5, *form[1:])
    rows = x if x.dim() == 3 else x[:, None]
    expected = torch.from_numpy(predictor.forecast(rows.transpose(0, 1), 5)).transpose(0, 1)
    assert torch.equal(found, expected if x.dim() == 3 else expected[:, 0])
    with pytest.raises(ValueError, match=r"^temperature, top_k, greedy and generator go with symbols and notes, not "):
        generate(predictor, x, 5, greedy=True)
