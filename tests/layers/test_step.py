"""`step` is the layer on a sequence of one step: outputs, states and gradients, and after every change to a weight."""

from __future__ import annotations

import copy
import functools
import pickle
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

import evenflow
from evenflow import create
from evenflow.layers import one_step
from evenflow.systems import SYSTEMS

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
from own_cells import CELLS

T, B, I, H = 6, 3, 5, 8
# The same sums in another order.
SAME = {torch.float64: {"atol": 1e-12, "rtol": 1e-10}, torch.float32: {"atol": 1e-5, "rtol": 1e-4}}

every_system = pytest.mark.parametrize("name", SYSTEMS)


def made(name: str, **options: object) -> evenflow.Recurrent:
    return create(name, I, H, generator=torch.Generator().manual_seed(1), **{"dtype": torch.float64, **options})


def given(*lead: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*lead, I, generator=torch.Generator().manual_seed(2), dtype=dtype)


def listed(state: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return state if isinstance(state, tuple) else (state,)


def stepped(layer: evenflow.Recurrent, x: Tensor, time: int = 0) -> tuple[Tensor, tuple[Tensor, ...]]:
    """A loop over the steps of x in place of one call."""
    outputs, state = [], None
    for x_t in x.unbind(time):
        output, state = layer.step(x_t, state)
        outputs.append(output)
    return torch.stack(outputs, time), listed(state)


def agree(layer: evenflow.Recurrent, x: Tensor, time: int = 0) -> None:
    output, state = layer(x)
    mine, ends = stepped(layer, x, time)
    for found, wanted in zip((mine, *ends), (output, *listed(state)), strict=True):
        assert found.shape == wanted.shape
        torch.testing.assert_close(found, wanted, **SAME[x.dtype])


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For every fast step whether it ran; a step that is not fast appears as False."""
    calls: list[bool] = []
    plain = one_step.OneStep.__call__

    def call(self: one_step.OneStep, *arguments: object) -> object:
        done = plain(self, *arguments)
        calls.append(done is not None)
        return done

    monkeypatch.setattr(one_step.OneStep, "__call__", call)
    return calls


@every_system
@pytest.mark.parametrize("dtype", SAME, ids=str)
@pytest.mark.parametrize("rows", [1, B, None])
def test_steps_are_the_layer(name, dtype, rows, plans):
    layer = made(name, dtype=dtype)
    x = given(T, rows, dtype=dtype) if rows else given(T, dtype=dtype)
    with torch.no_grad():
        agree(layer, x)
    assert plans == [True] * (T - 1)


@every_system
def test_steps_with_gradients_are_the_layer(name):
    layer = made(name)
    found: list[Tensor | None] = []
    wanted: list[Tensor | None] = []
    for run, gradients in ((layer, wanted), (functools.partial(stepped, layer), found)):
        x = given(T, B).requires_grad_()
        output, state = run(x)
        loss = output.square().sum() + sum(s.sum() for s in listed(state))
        moving = [p for p in (x, *layer.parameters()) if p.requires_grad]
        gradients += torch.autograd.grad(loss, moving, allow_unused=True)
    for ours, theirs in zip(found, wanted, strict=True):
        assert (ours is None) == (theirs is None)
        if ours is not None:
            torch.testing.assert_close(ours, theirs, atol=1e-10, rtol=1e-8)


@pytest.mark.parametrize("name", ["rnn", "ugru", "lstm", "sgornn", "spectral"])
@pytest.mark.parametrize(
    "options",
    [{"num_layers": 3}, {"batch_first": True}, {"initial_state": "learned"}, {"bias": False},
     {"num_layers": 2, "dropout": 0.5}, {"engine": "torch"}, {"engine": "reference"}, {"checkpoint_every": 2}],
    ids=str,
)  # fmt: skip
def test_options_of_the_layer(name, options):
    layer = made(name, **options)
    if options.get("initial_state"):
        with torch.no_grad():
            for key, p in layer.named_parameters():
                if key.startswith(("h0", "c0")):
                    p.normal_()
    layer.eval()
    with torch.no_grad():
        agree(layer, given(B, T) if layer.batch_first else given(T, B), int(layer.batch_first))


@pytest.mark.parametrize("name", ["rnn", "ugru", "lstm", "sgornn"])
@pytest.mark.parametrize("options", [{"zoneout": 0.3}, {"layer_norm": True}, {"recurrent_dropout": 0.4}], ids=str)
def test_regularisers_inside_the_step(name, options, plans):
    layer = made(name, **options).eval()
    with torch.no_grad():
        agree(layer, given(T, B))
        assert all(plans)
        plans.clear()
        state = layer.train()(given(1, B))[1]
        if "recurrent_dropout" in options:
            with pytest.raises(ValueError, match="recurrent_dropout has one mask for a whole sequence"):
                layer.step(given(B), state)
        else:
            layer.step(given(B), state)
    assert plans == ["layer_norm" in options]  # in training the others draw a mask


def test_a_setting_of_a_regularised_cell_is_seen():
    layer, x, state = made("rnn", zoneout=0.5), given(1), torch.ones(1, 1, H, dtype=torch.float64)
    layer.eval()
    with torch.no_grad():
        layer.step(x, state)
        layer.cell.core.gain = 3.0
        found, _ = layer.step(x, state)
        assert torch.equal(found, copy.deepcopy(layer).step(x, state)[0])


def test_a_projected_lstm_and_other_forms():
    for layer in (
        evenflow.LSTM(I, H, 2, proj_size=3),
        evenflow.RNN(I, H, activation="modrelu", gain=1.1),
        evenflow.RNN(I, H, leak=0.3, map="cayley"),
        evenflow.RNN(I, H, activation="sin"),
        evenflow.SCRN(I, H, rates="learned"),
        evenflow.GatedFeedbackRNN(I, H, unit="lstm"),
        evenflow.GatedFeedbackRNN(I, H, unit="gru"),
    ):
        with torch.no_grad():
            agree(layer, given(T, 1, dtype=torch.float32))


@pytest.mark.parametrize("name", CELLS)
def test_cells_of_ones_own(name, plans):
    layer = evenflow.Recurrent(CELLS[name](), I, H, num_layers=2, dtype=torch.float64)
    with torch.no_grad():
        agree(layer, given(T, B))
    assert all(plans)


def test_steps_after_a_prompt():
    layer, x = made("ugru"), given(T, B)
    with torch.inference_mode():
        output, _ = layer(x)
        _, state = layer(x[:4])
        for t in (4, 5):
            y, state = layer.step(x[t], state)
    torch.testing.assert_close(y, output[-1], **SAME[torch.float64])


def test_storage_in_half_precision():
    layer = made("gru", storage="bfloat16", dtype=torch.float32)
    with torch.no_grad():
        output, state = layer.step(given(B, dtype=torch.float32), torch.zeros(1, B, H))
        wanted, last = layer(given(1, B, dtype=torch.float32), torch.zeros(1, B, H))
    assert torch.equal(output, wanted[0])
    assert torch.equal(state, last)


# Changes between two steps. A deep copy keeps nothing, so it always steps with the weights as they are.


def shifted(value: Tensor) -> Tensor:
    return value + torch.linspace(0.1, 0.4, value.numel(), dtype=value.dtype).view_as(value)


def write(layer: nn.Module) -> None:
    with torch.no_grad():
        for p in layer.parameters():
            p.copy_(shifted(p))


def write_data(layer: nn.Module) -> None:
    for p in layer.parameters():
        p.data.copy_(shifted(p.data))


def replace_data(layer: nn.Module) -> None:
    for p in layer.parameters():
        p.data = shifted(p.data)


def update(layer: nn.Module) -> None:
    layer(given(T, B))[0].square().sum().backward()
    torch.optim.SGD(layer.parameters(), lr=0.1).step()


def load(layer: nn.Module, assign: bool = False) -> None:
    trained = {name for name, _ in layer.named_parameters()}
    state = {name: shifted(value) if name in trained else value for name, value in layer.state_dict().items()}
    layer.load_state_dict(state, assign=assign)


def load_assigned(layer: nn.Module) -> None:
    load(layer, assign=True)


def new_parameters(layer: nn.Module) -> None:
    for part in list(layer.modules()):
        for name, p in list(part._parameters.items()):
            setattr(part, name, nn.Parameter(shifted(p.detach())))


def reset(layer: nn.Module) -> None:
    layer.reset_parameters(torch.Generator().manual_seed(9))


def there_and_back(layer: nn.Module) -> None:
    layer.float().double()


def unmap(layer: nn.Module) -> None:
    for name in list(getattr(layer, "parametrizations", {})):
        evenflow.detach(layer, name)
    write(layer)


CHANGES: list[Callable[[nn.Module], None]] = [
    write, write_data, replace_data, update, load, load_assigned, new_parameters, reset, there_and_back, unmap
]  # fmt: skip


@pytest.mark.parametrize("name", [name for name in SYSTEMS if name != "esn"])
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_every_change_is_seen(name, change):
    layer, x = made(name), given(1)
    with torch.no_grad():
        _, state = layer(x.unsqueeze(0))
        before, _ = layer.step(x, state)
    change(layer)
    with torch.no_grad():
        found, wanted = (one.step(x, state)[0] for one in (layer, copy.deepcopy(layer)))
        by_layer = layer(x.unsqueeze(0), state)[0][0]
    assert torch.equal(found, wanted)
    torch.testing.assert_close(found, by_layer, **SAME[torch.float64])
    assert (found - before).abs().max() > (-1 if change is there_and_back else 1e-9)


def test_settings_of_the_cell_and_the_map_are_seen():
    layer, x, state = made("spectral", gain=1.0), given(1), torch.zeros(1, 1, H, dtype=torch.float64)
    with torch.no_grad():
        layer.parametrizations["weight_hh_l0"].original2.add_(1.0)
        state += 1
        before, _ = layer.step(x, state)
        layer.parametrizations["weight_hh_l0"][0].spectrum.margin = 0.5
        wider, _ = layer.step(x, state)
        layer.cell.gain = 2.0
        scaled, _ = layer.step(x, state)
        assert not torch.equal(before, wider)
        torch.testing.assert_close(scaled, 2 * wider)


def test_buffers_of_a_reservoir_are_seen():
    layer, x, state = made("esn"), given(1), torch.ones(1, 1, H, dtype=torch.float64)
    before, _ = layer.step(x, state)
    with torch.no_grad():
        layer.step(x, state)
        layer.weight_hh_l0.mul_(0.5)
        found, _ = layer.step(x, state)
        torch.testing.assert_close(found, layer(x.unsqueeze(0), state)[0][0])
    assert not torch.allclose(found, before)


# What a user may do with a layer and its steps.


def test_writing_to_an_output_does_not_write_to_the_state():
    layer, x = made("lstm", num_layers=2), given(B)
    with torch.no_grad():
        _, state = layer.step(x)
        output, new = layer.step(x, state)
        kept = [s.clone() for s in (*state, *new)]
        output.zero_()
        assert all(torch.equal(a, b) for a, b in zip((*state, *new), kept, strict=True))
        assert new[0].abs().max() > 0


@pytest.mark.parametrize("name", ["rnn", "urnn", "gated-feedback"])
def test_nothing_kept_is_copied_or_saved(name):
    layer, x = made(name), given(1)
    keys = set(layer.state_dict())
    with torch.no_grad():
        _, state = layer.step(x)
        wanted, _ = layer.step(x, state)
        size = len(pickle.dumps(made(name)))
        assert len(pickle.dumps(layer)) <= size + 200  # names of two empty objects; a matrix has 512 bytes
        for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
            assert other._one_step is not layer._one_step
            assert torch.equal(other.step(x, state)[0], wanted)
    assert set(layer.state_dict()) == keys


def test_a_pass_with_gradients_after_steps_without():
    layer, x = made("urnn"), given(1)
    with torch.inference_mode():
        _, state = layer.step(x)
        layer.step(x, state)
    layer.step(x)[0].sum().backward()
    assert all(p.grad is not None for p in layer.parameters() if p.requires_grad and p.ndim)


def test_taps_and_records_see_steps():
    layer, x = made("rnn"), given(B)
    with torch.no_grad():
        _, state = layer.step(x)
        with layer.record_runs() as runs:
            output, _ = layer.step(x, state)
        assert torch.equal(runs[0].states[0], output)
    with layer.taps() as taps:
        layer.step(x, state)[0].sum().backward()
    assert torch.equal(taps[0].grad, torch.ones(1, B, H, dtype=torch.float64))


def test_autocast_and_transforms():
    layer, x = made("gru", dtype=torch.float32), given(B, dtype=torch.float32)
    with torch.no_grad():
        _, state = layer.step(x)
        wanted, _ = layer.step(x, state)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            rough, _ = layer.step(x, state)
        assert torch.allclose(rough, wanted, atol=3e-2)
        each = torch.vmap(lambda v: layer.step(v, state)[0])(torch.stack([x, 2 * x]))
        torch.testing.assert_close(each[0], wanted, **SAME[torch.float32])
        other = {name: 2 * p for name, p in layer.named_parameters()}
        with torch.nn.utils.stateless._reparametrize_module(layer, other):
            doubled, _ = layer.step(x, state)
    assert not torch.allclose(doubled, wanted)
    torch.testing.assert_close(layer.step(x, state)[0], wanted, **SAME[torch.float32])


def test_threads_step_side_by_side():
    layer = made("lstm", num_layers=2)
    inputs = [torch.randn(200, 1 + n % 2, I, dtype=torch.float64) for n in range(4)]
    wanted = [layer(x)[0][-1] for x in inputs]
    wrong: list[int] = []

    def run(n: int) -> None:
        with torch.no_grad():
            state = None
            for x_t in inputs[n]:
                output, state = layer.step(x_t, state)
            if not torch.allclose(output, wanted[n], atol=1e-10):
                wrong.append(n)

    threads = [threading.Thread(target=run, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_map_is_not_computed_again(monkeypatch):
    layer, x = made("urnn"), given(1)
    with torch.no_grad(), monkeypatch.context() as patched:
        _, state = layer.step(x)
        layer.step(x, state)
        patched.setattr(evenflow.maps.Map, "compute", lambda *_: pytest.fail("computed again"))
        for _ in range(3):
            _, state = layer.step(x, state)
            layer(x.unsqueeze(0), state)
    with parametrize.cached():
        first, second = (layer.step(x, state)[0] for _ in range(2))
    assert torch.equal(first, second)


@pytest.mark.parametrize(
    ("x", "hx", "message"),
    [
        (given(B, 2)[..., :4], None, f"input must be one step, (B, I) or (I) with I = {I}, got (3, 2, 4)"),
        (given(1, B), None, f"input must be one step, (B, I) or (I) with I = {I}, got (1, 3, 5)"),
        ([1.0], None, f"input must be one step, (B, I) or (I) with I = {I}, got list"),
        (given(B), torch.zeros(1, 2, H), "h0 must have shape (1, 3, 8) for this input, got (1, 2, 8)"),
        (given(B), torch.zeros(B, H), "h0 must have shape (1, 3, 8) for this input, got (3, 8)"),
    ],
)  # fmt: skip
def test_bad_input_is_named(x, hx, message):
    layer = made("rnn")
    for mode in (torch.no_grad, torch.enable_grad):
        with mode(), pytest.raises(ValueError) as error:
            layer.step(x, hx)
        assert str(error.value) == message


def test_a_bidirectional_layer_has_no_single_step():
    with pytest.raises(ValueError, match="step needs a layer that runs one way"):
        made("rnn", bidirectional=True).step(given(B))
