"""Layers in continuous time: `dt`, the time before each step, in every call form and engine."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import evenflow
from evenflow import RNN, RecurrentCell, SequenceModel, create
from evenflow.cells import CfCStep

SAME = {"atol": 1e-12, "rtol": 1e-10}  # float64, the same sums in another order
T, B, I, H = 12, 3, 2, 6
SYSTEMS = {
    "cfc": {},
    "ltc": {},
    "fastrnn": {},
    "sgornn": {},
    "antisymmetric": {},
    "rnn": {"leak": 0.3},
}


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def made(name: str, **options: object) -> evenflow.Recurrent:
    return create(name, I, H, dtype=torch.float64, **SYSTEMS.get(name, {}), **options)


def series() -> tuple[Tensor, Tensor]:
    return torch.randn(T, B, I, dtype=torch.float64), 3 * torch.rand(T, B, dtype=torch.float64)


@pytest.mark.parametrize("name", SYSTEMS)
@pytest.mark.parametrize("engine", ["auto", "torch"])
def test_agrees_with_the_loop(name: str, engine: str) -> None:
    """Outputs and all gradients, that by dt included, of two layers in both directions."""
    options = {"num_layers": 2, "bidirectional": True}
    layer, loop = made(name, engine=engine, **options), made(name, engine="reference", **options)
    loop.load_state_dict(layer.state_dict())
    x, dt = series()
    found = []
    for each in (layer, loop):
        gaps = dt.clone().requires_grad_()
        output, _ = each(x, dt=gaps)
        output.sin().sum().backward()
        found.append([output, gaps.grad, *(p.grad for p in each.parameters())])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, **SAME)
    assert found[0][1].abs().min() > 0


@pytest.mark.parametrize("name", SYSTEMS)
def test_gaps_of_one_are_the_default(name: str) -> None:
    layer, (x, _) = made(name), series()
    torch.testing.assert_close(layer(x, dt=torch.ones(T, B, dtype=torch.float64))[0], layer(x)[0], **SAME)
    assert (layer(x, dt=torch.full((T, B), 2.0, dtype=torch.float64))[0] - layer(x)[0]).abs().max() > 1e-3


def closed_form(w: dict[str, Tensor], x: Tensor, h: Tensor, dt: Tensor) -> Tensor:
    z = 1.7159 * torch.tanh(
        2 / 3 * (torch.cat([x, h], 1) @ torch.cat([w["weight_ih"], w["weight_hh"]], 1).T + w["bias"])
    )
    ff1, ff2, a, b = (z @ V.T + c for V, c in zip(w["weight_hz"].chunk(4), w["bias_z"].chunk(4), strict=True))
    interpolation = torch.sigmoid(a * dt + b)
    return torch.tanh(ff1) * (1 - interpolation) + interpolation * torch.tanh(ff2)


def liquid(w: dict[str, Tensor], x: Tensor, h: Tensor, dt: Tensor) -> Tensor:
    τ = 1 / w["rate"].exp()
    for _ in range(6):
        f = torch.sigmoid(x @ w["weight_ih"].T + h @ w["weight_hh"].T + w["bias"])
        h = (h + dt / 6 * f * w["reversal"]) / (1 + dt / 6 * (1 / τ + f))
    return h


@pytest.mark.parametrize(("name", "paper"), [("cfc", closed_form), ("ltc", liquid)])
def test_step_is_that_of_the_paper(name: str, paper) -> None:  # type: ignore[no-untyped-def]
    layer, (x, dt) = made(name), series()
    with torch.no_grad():
        for p in layer.parameters():
            p.add_(0.3 * torch.randn_like(p))
    h, weights = torch.randn(B, H, dtype=torch.float64), layer.direction_weights(0)
    output, _ = layer(x, h.unsqueeze(0), dt=dt)
    for t in range(T):
        h = paper(weights, x[t], h, dt[t].unsqueeze(1))
        torch.testing.assert_close(output[t], h, **SAME)


def test_parameter_counts() -> None:
    """CfC: as the authors' library has them with one hidden layer of H units; LTC: the first algorithm of the paper."""
    assert sum(p.numel() for p in made("cfc").parameters()) == (I + H) * H + H + 4 * (H * H + H)
    assert sum(p.numel() for p in made("ltc").parameters()) == I * H + H * H + 3 * H


def test_ltc_stays_within_its_reversal_potentials() -> None:
    layer, x = create("ltc", I, H), 100 * torch.randn(500, B, I)
    output, _ = layer(x, dt=50 * torch.rand(500, B))
    low, high = layer.reversal_l0.clamp(max=0), layer.reversal_l0.clamp(min=0)
    assert (output >= low - 1e-6).all()
    assert (output <= high + 1e-6).all()


@pytest.mark.parametrize("name", ["fastrnn", "sgornn", "antisymmetric", "rnn"])
def test_a_gap_of_k_steps_is_k_steps_of_one_drive(name: str) -> None:
    """Without recurrent weights the drive is that of the input, and a long gap is many steps of it."""
    layer = made(name, map="free")
    with torch.no_grad():
        layer.weight_hh_l0.zero_()
    x, h = torch.randn(1, B, I, dtype=torch.float64), torch.randn(1, B, H, dtype=torch.float64)
    slow, _ = layer(x.expand(5, B, I), h)
    fast, _ = layer(x, h, dt=torch.full((1, B), 5.0, dtype=torch.float64))
    torch.testing.assert_close(fast[0], slow[-1], **SAME)
    parts, _ = layer(x.expand(3, B, I), h, dt=torch.tensor([2.5, 0.0, 2.5], dtype=torch.float64)[:, None].expand(3, B))
    torch.testing.assert_close(parts[-1], slow[-1], **SAME)


def test_a_unit_that_keeps_all_or_nothing_has_gradients() -> None:
    for beta, wanted in ((1.0, 3.0), (0.0, 1.0)):
        layer = create("fastrnn", 1, 1, gates="fixed", alpha=1.0, beta=beta, activation="identity")
        with torch.no_grad():
            layer.weight_hh_l0.zero_()
            layer.weight_ih_l0.fill_(1.0)
        dt = torch.full((1, 1), 3.0, requires_grad=True)
        output, _ = layer(torch.ones(1, 1, 1), dt=dt)
        output.sum().backward()
        torch.testing.assert_close(output.item(), wanted)
        assert dt.grad.isfinite().all()
    layer = create("fastrnn", 1, 1)
    with torch.no_grad():
        layer.gate_beta_l0.fill_(50.0)  # β is 1 in single precision
    layer(torch.ones(3, 1, 1), dt=torch.rand(3, 1))[0].sum().backward()
    assert all(p.grad.isfinite().all() for p in layer.parameters())


@pytest.mark.parametrize("name", ["cfc", "sgornn"])
def test_call_forms(name: str) -> None:
    layer, (x, dt) = made(name), series()
    output, final = layer(x, dt=dt)
    first = made(name, batch_first=True)
    first.load_state_dict(layer.state_dict())
    torch.testing.assert_close(first(x.transpose(0, 1), dt=dt.T)[0].transpose(0, 1), output, **SAME)
    torch.testing.assert_close(layer(x[:, 0], dt=dt[:, 0])[0], output[:, 0], **SAME)
    state, stepped = None, []
    for t in range(T):
        h, state = layer.step(x[t], state, dt[t])
        stepped.append(h)
    torch.testing.assert_close(torch.stack(stepped), output, **SAME)
    torch.testing.assert_close(state, final, **SAME)
    for options in ({"checkpoint_every": 5}, {"checkpoint_every": 1}):
        other = made(name, **options)
        other.load_state_dict(layer.state_dict())
        torch.testing.assert_close(other(x, dt=dt)[0], output, **SAME)


@pytest.mark.parametrize("bidirectional", [False, True], ids=["one way", "both ways"])
def test_ragged_series_are_those_run_alone(bidirectional: bool) -> None:
    layer, (x, dt) = made("cfc", bidirectional=bidirectional), series()
    lengths = [5, 12, 9]
    packed, gaps = (pack_padded_sequence(v, lengths, enforce_sorted=False) for v in (x, dt))
    output, _ = pad_packed_sequence(layer(packed, dt=gaps)[0])
    for row, n in enumerate(lengths):
        torch.testing.assert_close(output[:n, row], layer(x[:n, row], dt=dt[:n, row])[0], **SAME)


def test_a_reverse_direction_takes_the_gap_behind() -> None:
    layer, (x, dt) = made("cfc", bidirectional=True), series()
    alone = made("cfc")
    alone.load_state_dict({k.removesuffix("_reverse"): v for k, v in layer.state_dict().items() if "_reverse" in k})
    turned = torch.cat([dt[:1], dt[1:].flip(0)])
    torch.testing.assert_close(layer(x, dt=dt)[0][..., H:], alone(x.flip(0), dt=turned)[0].flip(0), **SAME)


def test_a_cell_module_takes_gaps() -> None:
    layer, (x, dt) = made("cfc"), series()
    cell = RecurrentCell(CfCStep(), I, H, dtype=torch.float64)
    cell.load_state_dict({k.removesuffix("_l0"): v for k, v in layer.state_dict().items()})
    h, outputs = None, []
    for t in range(T):
        h = cell(x[t], h, dt[t])
        outputs.append(h)
    torch.testing.assert_close(torch.stack(outputs), layer(x, dt=dt)[0], **SAME)


@pytest.mark.parametrize("block", [None, "residual"])
def test_models_take_gaps(block: str | None) -> None:
    options = {} if block is None else {"block": block, "num_layers": 2, "input_size": I}
    model = SequenceModel(create("cfc", I if block is None else H, H), 4, **options).double().eval()
    x, dt = series()
    lengths = torch.tensor([5, 12, 9])
    together, _ = model(x, lengths=lengths, dt=dt)
    for row, n in enumerate(lengths.tolist()):
        torch.testing.assert_close(together[row], model(x[:n, row : row + 1], dt=dt[:n, row : row + 1])[0][0], **SAME)
    assert (together - model(x, lengths=lengths)[0]).abs().max() > 1e-4


def test_weight_dropout_and_compile_take_gaps() -> None:
    x, dt = (v.float() for v in series())
    layer = create("cfc", I, H, weight_dropout=0.5)
    assert (layer(x, dt=dt)[0] - layer(x, dt=dt)[0]).abs().max() > 0
    layer.eval()
    torch.compiler.reset()
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x, dt=dt)[0], layer(x, dt=dt)[0])


@pytest.mark.parametrize(
    ("layer", "dt", "words"),
    [
        (RNN(I, H), torch.ones(T, B), "dt must be left out for Elman, whose step reads no time"),
        (create("cfc", I, H, zoneout=0.1), torch.ones(T, B), "dt must be left out for CfC with zoneout"),
        (create("cfc", I, H), torch.ones(B, T), r"dt must have shape \(12, 3\) for this input, got \(3, 12\)"),
        (
            create("cfc", I, H),
            torch.ones(T, B).long(),
            "dt must be a tensor of floating point numbers, got torch",
        ),
        (create("cfc", I, H), 2.0, "dt must be a tensor of floating point numbers, got float"),
        (create("gated-feedback", I, H), torch.ones(T, B), "dt must be left out for GatedFeedback"),
    ],
    ids=["no time", "masks", "shape", "whole numbers", "no tensor", "stack"],
)
def test_what_is_no_gap_is_refused(layer: evenflow.Recurrent, dt: object, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        layer(torch.randn(T, B, I), dt=dt)


def test_probes_refuse_gaps() -> None:
    layer = create("cfc", I, H)
    with layer.record_runs(), pytest.raises(ValueError, match="dt must be left out inside record_runs"):
        layer(torch.randn(T, B, I), dt=torch.ones(T, B))


def test_gaps_help_on_a_series_at_irregular_times() -> None:
    """Forecasts of a wave from its values at random times: with dt the error is less than half of that without."""
    errors = {}
    for timed in (True, False):
        torch.manual_seed(0)
        model = SequenceModel(create("cfc", 1, 24), 1, readout="every")
        optimizer = torch.optim.Adam(model.parameters(), 1e-2)
        for _ in range(250):
            dt = 0.1 + 1.9 * torch.rand(31, 32)
            wave = torch.sin(dt.cumsum(0) + 6.3 * torch.rand(32)).unsqueeze(-1)
            # The state after a step is to know the value that comes after the next gap, which the input brings.
            x, ahead = wave[:-1], dt[1:]
            output, _ = model(x, dt=ahead) if timed else model(x)
            loss = (output - wave[1:])[10:].square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        errors[timed] = loss.item()
    assert errors[True] < errors[False] / 2
