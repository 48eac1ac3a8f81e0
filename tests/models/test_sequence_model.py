"""SequenceModel: embedding or raw input, layer, readout."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from evenflow import RNN, EchoState, SequenceModel, create


@pytest.mark.parametrize("layer", [RNN(3, 8), create("lstm", 3, 8), nn.GRU(3, 8)], ids=["rnn", "lstm", "torch-gru"])
def test_readouts(layer):
    x = torch.randn(7, 5, 3)
    every, state = SequenceModel(layer, 4, readout="every")(x)
    assert every.shape == (7, 5, 4)
    last = SequenceModel(layer, 4)
    outputs, _ = last(x, state)
    assert outputs.shape == (5, 4)
    torch.testing.assert_close(outputs, last.output(layer(x, state)[0][-1]))


def test_lengths_read_each_sequence_at_its_own_end():
    model = SequenceModel(RNN(3, 8), 2)
    x, lengths = torch.randn(7, 4, 3), torch.tensor([2, 7, 5, 1])
    outputs, _ = model(x, lengths=lengths)
    for b, length in enumerate(lengths.tolist()):
        torch.testing.assert_close(outputs[b], model(x[:length, b : b + 1])[0][0])


@pytest.mark.parametrize("readout", ["last", "every"])
@pytest.mark.parametrize("bidirectional", [False, True], ids=["one way", "both ways"])
def test_padded_batches_answer_as_packed_ones(readout, bidirectional):
    layer = create("lstm", 3, 5, bidirectional=bidirectional)
    model = SequenceModel(layer, 2, readout=readout)
    x, lengths = torch.randn(7, 4, 3), torch.tensor([2, 7, 5, 1])
    assert model.one_way is not bidirectional
    packed, padded = (model(x, lengths=lengths, padded=way)[0] for way in (False, True))
    running = torch.arange(7)[:, None] < lengths if readout == "every" else slice(None)
    torch.testing.assert_close(padded[running], packed[running])


def test_vocabulary_embeds_whole_numbers():
    model = SequenceModel(RNN(6, 8, bidirectional=True), 10, readout="every", vocabulary=10)
    outputs, _ = model(torch.randint(10, (7, 5)))
    assert outputs.shape == (7, 5, 10)
    assert model.parameter_counts() == {
        "embedding": 60,
        "layer": 2 * (8 * 6 + 8 * 8 + 8),
        "output": 170,
        "total": 60 + 240 + 170,
    }


class Both(nn.Module):
    """A layer of one's own that runs both ways and does not say so."""

    def __init__(self):
        super().__init__()
        self.inner, self.input_size, self.hidden_size = nn.GRU(3, 4, bidirectional=True), 3, 8

    def forward(self, x, state=None):
        return self.inner(x, state)


def test_a_layer_that_does_not_say_that_it_runs_one_way_is_packed():
    model, x, lengths = SequenceModel(Both(), 2), torch.randn(7, 4, 3), torch.tensor([2, 7, 5, 1])
    packed, asked = (model(x, lengths=lengths, padded=way)[0] for way in (False, True))
    assert torch.equal(packed, asked)


def test_an_embedding_that_starts_small():
    model = SequenceModel(RNN(30, 8), 10, readout="every", vocabulary=50, embedding_range=0.1)
    found = model.embedding.weight.abs()
    assert 0.09 < found.max() <= 0.1
    assert abs(found.mean() - 0.05) < 0.005  # uniform
    assert model.embedding.weight.requires_grad


@pytest.mark.parametrize("readout", ["last", "every"])
def test_dropout_of_inputs_and_of_what_the_readout_sees(readout):
    x = torch.randn(4, 50, 3)
    plain = SequenceModel(RNN(3, 40), 2, readout=readout)
    model = SequenceModel(RNN(3, 40), 2, readout=readout, input_dropout=0.5, output_dropout=0.25)
    model.load_state_dict(plain.state_dict())
    torch.testing.assert_close(model.eval()(x)[0], plain(x)[0])  # in training alone
    seen = {}
    model.layer.register_forward_pre_hook(lambda _, given: seen.update(x=given[0]))
    model.output.register_forward_pre_hook(lambda _, given: seen.update(h=given[0]))
    model.train()(x)
    for name, share in (("x", 0.5), ("h", 0.25)):
        assert abs((seen[name] == 0).float().mean() - share) < 0.1
    kept = seen["x"] != 0
    torch.testing.assert_close(seen["x"][kept], 2 * x[kept])


@pytest.mark.parametrize("readout", ["last", "every"])
def test_dropout_of_the_scores(readout):
    x = torch.randn(4, 50, 3)
    model = SequenceModel(RNN(3, 8), 20, readout=readout, score_dropout=0.2)
    plain = model.eval()(x)[0]
    scores = model.train()(x)[0]
    kept = scores != 0
    assert abs((~kept).float().mean() - 0.2) < 0.05
    torch.testing.assert_close(scores[kept], plain[kept] / 0.8)


@pytest.mark.parametrize("readout", ["last", "every"])
def test_hidden_units_of_the_readout(readout):
    layer = RNN(3, 8, bidirectional=True, dtype=torch.float64)
    model = SequenceModel(layer, 4, readout=readout, readout_units=5)
    with torch.no_grad():
        model.hidden.bias.normal_()
        model.output.bias.normal_()
    x = torch.randn(7, 6, 3, dtype=torch.float64)
    h = layer(x)[0] if readout == "every" else layer(x)[0][-1]
    W_r, b_r, W_o, b_o = *model.hidden.parameters(), *model.output.parameters()
    torch.testing.assert_close(model(x)[0], (h @ W_r.mT + b_r).clamp(min=0) @ W_o.mT + b_o)
    assert model.parameter_counts() == {"layer": 2 * (8 * 3 + 8 * 8 + 8), "hidden": 85, "output": 24, "total": 301}


def test_hidden_units_start_from_the_generator_and_leave_a_linear_readout_as_it_was():
    seeded = [torch.Generator().manual_seed(3) for _ in range(3)]
    one, other = (SequenceModel(RNN(3, 8), 4, readout_units=5, generator=source) for source in seeded[:2])
    assert torch.equal(one.hidden.weight, other.hidden.weight)
    assert torch.equal(one.output.weight, other.output.weight)
    assert not one.hidden.bias.any()
    expected = [nn.init.xavier_uniform_(torch.empty(shape), generator=seeded[2]) for shape in ((5, 8), (4, 5))]
    torch.testing.assert_close([one.hidden.weight.data, one.output.weight.data], expected, atol=0, rtol=0)
    again, source = (torch.Generator().manual_seed(4) for _ in range(2))
    plain = SequenceModel(RNN(3, 8), 4, generator=again)
    assert [name for name, _ in plain.named_parameters()][-2:] == ["output.weight", "output.bias"]
    assert plain.hidden is None
    assert torch.equal(plain.output.weight, nn.init.xavier_uniform_(torch.empty(4, 8), generator=source))


def test_states_are_dropped_before_the_hidden_units_and_none_of_those():
    model = SequenceModel(RNN(3, 40), 2, output_dropout=0.5, readout_units=60)
    seen = {}
    model.hidden.register_forward_pre_hook(lambda _, given: seen.update(h=given[0]))
    model.output.register_forward_pre_hook(lambda _, given: seen.update(units=given[0]))
    model.train()(torch.randn(4, 50, 3))
    assert abs((seen["h"] == 0).float().mean() - 0.5) < 0.1
    torch.testing.assert_close(seen["units"], torch.relu(model.hidden(seen["h"])))


def test_hidden_units_of_states_in_half_precision():
    layer = RNN(3, 8, storage="bfloat16")
    outputs, _ = SequenceModel(layer, 2, readout="every", readout_units=5)(torch.randn(4, 2, 3))
    assert outputs.dtype == torch.float32


def test_a_reservoir_with_a_trained_readout():
    model = SequenceModel(EchoState(3, 20), 2, readout="every")
    outputs, _ = model(torch.randn(6, 4, 3))
    outputs.square().mean().backward()
    assert model.parameter_counts() == {"layer": 0, "output": 42, "total": 42}


def test_dtype_follows_the_layer():
    model = SequenceModel(RNN(3, 8, dtype=torch.float64), 2)
    assert model(torch.randn(4, 2, 3, dtype=torch.float64))[0].dtype == torch.float64


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: SequenceModel(RNN(2, 4), 1, readout="all"), "readout must be one of last, every, got 'all'"),
        (lambda: SequenceModel(RNN(2, 4), 0), "output_size"),
        (lambda: SequenceModel(RNN(2, 4), 1, vocabulary=0), "vocabulary"),
        (
            lambda: SequenceModel(RNN(2, 4), 1, readout_units=0),
            "readout_units must be a whole number of at least 1, got 0",
        ),
        (
            lambda: SequenceModel(RNN(2, 4), 1, vocabulary=5, embedding_range=0.0),
            "embedding_range must be a number above 0, got 0.0",
        ),
        (lambda: SequenceModel(RNN(2, 4), 1, embedding_range=0.1), "left out without a vocabulary, got 0.1"),
        (lambda: SequenceModel(RNN(2, 4, batch_first=True), 1), "time first"),
        (lambda: SequenceModel(nn.Linear(2, 4), 1), "recurrent layer"),
        (lambda: SequenceModel(RNN(2, 4), 1, vocabulary=5)(torch.randn(3, 2)), "whole numbers"),
        (
            lambda: SequenceModel(RNN(2, 4), 1, output_dropout=1.0),
            "output_dropout must be a number of at least 0 and below 1, got 1.0",
        ),
        (
            lambda: SequenceModel(RNN(2, 4), 1, score_dropout=-1),
            "score_dropout must be a number of at least 0 and below 1, got -1",
        ),
    ],
)
def test_bad_input(call, words):
    with pytest.raises(ValueError) as error:
        call()
    assert words in str(error.value)


@pytest.mark.parametrize("make", [lambda: create("sgornn", 3, 8), lambda: nn.LSTM(3, 8)], ids=["sgornn", "torch"])
@pytest.mark.parametrize("vocabulary", [None, 7])
def test_steps_are_a_call_on_the_sequence(make, vocabulary):
    model = SequenceModel(make(), 5, readout="every", vocabulary=vocabulary)
    inputs = torch.randn(6, 2, 3) if vocabulary is None else torch.randint(vocabulary, (6, 2))
    with torch.no_grad():
        wanted, _ = model(inputs)
        state, outputs = None, []
        for each in inputs:
            output, state = model.step(each, state)
            outputs.append(output)
    torch.testing.assert_close(torch.stack(outputs), wanted)


@pytest.mark.parametrize("options", [{}, {"vocabulary": 4}, {"vocabulary": 4, "embedding_range": 0.1}])
@pytest.mark.parametrize("name", ["gru", "sgornn", "factorized", "gated-feedback"])
def test_reset_parameters_draws_what_a_new_model_draws(name, options):
    def made(seed):
        draw = torch.Generator().manual_seed(seed)
        return SequenceModel(create(name, 3, 8, 2, generator=draw), 2, readout_units=5, generator=draw, **options)

    model = made(0)
    parameters = dict(model.named_parameters())
    model.reset_parameters(torch.Generator().manual_seed(1))
    assert all(model.get_parameter(key) is parameter for key, parameter in parameters.items())
    for key, value in made(1).state_dict().items():
        assert torch.equal(model.state_dict()[key], value), key


def test_reset_parameters_over_a_layer_of_torch():
    model = SequenceModel(nn.LSTM(3, 8), 2)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    model.reset_parameters(torch.Generator().manual_seed(1))
    assert not any(torch.equal(value, before[key]) for key, value in model.state_dict().items() if key != "output.bias")
