"""The table of systems: every row works in every way a layer is used, and counts the parameters its document counts."""

from __future__ import annotations

import pickle
import subprocess
import sys

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

import evenflow
from evenflow import SequenceModel, create, feedforward, systems
from evenflow.maps import residual
from evenflow.systems import NETWORKS

SAME = {"atol": 1e-11, "rtol": 1e-10}  # float64, the same sums in another order
HALF = {"atol": 0.1, "rtol": 0.1}  # bfloat16 inputs: three digits, and a recurrence on them
COMPILED = {"atol": 1e-4, "rtol": 1e-4}  # complex64: compiled, a unitary map is its plain equation, rounded otherwise

# The SGORNN document's tables 1 and 2: (system, hidden) with input width and one output; table 3: the layer alone.
ADDITION = {("vprnn", 128): 1409, ("sgornn", 128): 1411, ("fastrnn", 128): 16899, ("lstm", 128): 67201}
HAR2 = {("vprnn", 128): 2305, ("sgornn", 128): 2307, ("fastrnn", 128): 17795, ("lstm", 64): 19009}
PTB_LAYER = {("vprnn", 256): 67840, ("sgornn", 256): 67842, ("fastrnn", 256): 131330, ("lstm", 256): 525312}

# The Spectral-RNN document's table 4, 32 units: length, depth (steps of length / depth numbers each), classes, outputs,
# and the parameters of RNN, LSTM, oRNN and Spectral-RNN. Fourteen sets have more outputs than classes because the
# authors took raw labels as indices.
UCR = {
    "50words": (270, 27, 50, 50, (3058, 7218, 2426, 2850)),
    "Adiac": (176, 16, 37, 38, (2694, 6950, 2062, 2486)),
    "ArrowHead": (251, 251, 3, 3, (1219, 4515, 587, 1011)),
    "Beef": (470, 47, 5, 6, (1606, 5766, 974, 1398)),
    "BeetleFly": (512, 32, 2, 3, (1699, 6435, 1067, 1491)),
    "CBF": (128, 16, 3, 4, (1476, 5444, 844, 1268)),
    "Coffee": (286, 22, 2, 2, (1570, 6018, 938, 1362)),
    "CricketX": (300, 20, 12, 13, (1997, 6637, 1365, 1789)),
    "DistalPhalanxOutlineCorrect": (80, 10, 2, 2, (1410, 5378, 778, 1202)),
    "DistalPhalanxTW": (80, 10, 6, 9, (1641, 5609, 1009, 1433)),
    "ECG200": (96, 12, 2, 2, (1410, 5378, 778, 1202)),
    "ECG5000": (140, 14, 5, 6, (1606, 5766, 974, 1398)),
    "ECGFiveDays": (136, 17, 2, 3, (1443, 5411, 811, 1235)),
    "FaceAll": (131, 131, 14, 15, (1615, 4911, 983, 1407)),
    "FaceFour": (350, 25, 4, 5, (1701, 6245, 1069, 1493)),
    "FacesUCR": (131, 131, 14, 15, (1615, 4911, 983, 1407)),
    "GunPoint": (150, 15, 2, 3, (1507, 5667, 875, 1299)),
    "InsectWingbeatSound": (256, 16, 11, 12, (1996, 6732, 1364, 1788)),
    "ItalyPowerDemand": (24, 6, 2, 3, (1315, 4899, 683, 1107)),
    "Lighting2": (637, 49, 2, 2, (1570, 6018, 938, 1362)),
    "MiddlePhalanxOutlineCorrect": (80, 10, 2, 2, (1410, 5378, 778, 1202)),
}
UCR_SYSTEMS = {"rnn": {}, "lstm": {}, "ornn": {"reflectors": 16}, "spectral": {"reflectors": 16}}
ORTHOGONAL = ["urnn", "exprnn", "dtriv", "scornn", "ornn", "vprnn", "sgornn", "arjovsky-urnn", "full-urnn", "scurnn"]
ONE_LAYER = ("esn",)  # takes no num_layers
NOT_ONE_UNIT = {
    "nnrnn": "even",
    "goru": "even",
    "vprnn": "even",
    "sgornn": "even",
    "arjovsky-urnn": "even",
    "full-urnn": "even",
    "scurnn": "even",
    "scrn": "context",
    "lru": "even",
    "s4d": "even",
    "s5": "even",
    "rotrnn": "even",
}


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def make(name: str, *sizes: int, num_layers: int = 1, **options: object) -> torch.nn.Module:
    """A system with `num_layers` layers, where it can have more than one."""
    layers = {} if name in ONE_LAYER else {"num_layers": num_layers}
    return create(name, *sizes, **layers, **options)


def flat(result: tuple) -> list[Tensor]:
    output, state = result
    return [output, *([state] if isinstance(state, Tensor) else state)]


@pytest.mark.parametrize("name", systems())
def test_every_system_trains(name):
    model = SequenceModel(create(name, 3, 16), 2)
    x, y = torch.randn(12, 8, 3), torch.randn(8, 2)
    optimiser = torch.optim.Adam(model.parameters(), 1e-2)
    losses = []
    for _ in range(300):
        optimiser.zero_grad()
        loss = (model(x)[0] - y).square().mean()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
        if losses[-1] < 0.05 * losses[0]:
            break
    assert losses[-1] < 0.1 * losses[0], "8 random sequences must be learnt by heart"


@pytest.mark.parametrize("name", systems())
def test_finite_gradients_over_five_thousand_steps(name):
    layer, x = make(name, 2, 4), torch.randn(5000, 1, 2, requires_grad=True)
    output, _ = layer(x)
    output[-1].sum().backward()
    assert all(p.grad.isfinite().all() for p in layer.parameters())
    assert x.grad.isfinite().all()
    assert (x.grad[-1] != 0).any()


@pytest.mark.parametrize("name", systems())
def test_pieces_with_carried_state_equal_the_whole(name):
    layer = make(name, 3, 8, num_layers=2, dtype=torch.float64)
    x = torch.randn(11, 4, 3, dtype=torch.float64)
    whole, state, pieces = layer(x), None, []
    for piece in x.split(4):
        output, state = layer(piece, state)
        pieces.append(output)
    for expected, got in zip(flat(whole), flat((torch.cat(pieces), state)), strict=True):
        torch.testing.assert_close(got, expected, **SAME)


@pytest.mark.parametrize("name", systems())
def test_state_dict_and_pickle_round_trips(name):
    first, second = make(name, 3, 8, num_layers=2), make(name, 3, 8, num_layers=2)
    x = torch.randn(6, 4, 3)
    expected = first(x)[0]
    assert not torch.equal(expected, second(x)[0])
    second.load_state_dict(first.state_dict())
    assert torch.equal(second(x)[0], expected)
    assert torch.equal(pickle.loads(pickle.dumps(first))(x)[0], expected)


LOADED = """
import sys, torch
from safetensors.torch import load_file
from evenflow import create
torch.set_num_threads(1)
x, expected = (load_file(f"{sys.argv[1]}/{name}.safetensors") for name in ("inputs", "outputs"))
for name, output in expected.items():
    layer = create(name, 3, 8)
    layer.load_state_dict(load_file(f"{sys.argv[1]}/layer-{name}.safetensors"))
    assert torch.equal(layer(x["x"])[0], output), name
print(len(expected))
"""


def test_every_system_loads_from_safetensors_in_a_fresh_process(tmp_path):
    x, outputs = torch.randn(20, 4, 3), {}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # sums over threads are not taken in one order
    for name in systems():
        layer = create(name, 3, 8)
        save_file(layer.state_dict(), tmp_path / f"layer-{name}.safetensors")
        outputs[name] = layer(x)[0].detach().contiguous()
    torch.set_num_threads(threads)
    save_file({"x": x}, tmp_path / "inputs.safetensors")
    save_file(outputs, tmp_path / "outputs.safetensors")
    done = subprocess.run([sys.executable, "-c", LOADED, str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == len(systems())


@pytest.mark.parametrize("name", ["rnn", "full-urnn", "lstm", "scrn", "gated-feedback"])
def test_a_compiled_layer_has_taps(name):
    layer = create(name, 2, 6, num_layers=2, dtype=torch.float64)
    x = torch.randn(5, 3, 2, dtype=torch.float64)
    torch.compiler.reset()
    seen = []
    for way in (layer, torch.compile(layer, backend="aot_eager")):
        with layer.taps() as taps:
            output, _ = way(x)
        output.sin().sum().backward()
        seen.append([tap.grad for tap in taps])
    assert len(seen[0]) == 2
    torch.testing.assert_close(seen[1], seen[0])


@pytest.mark.parametrize("name", systems())
def test_autocast_compile_and_an_empty_batch(name):
    layer = create(name, 3, 8)
    x = torch.randn(5, 4, 3, requires_grad=True)
    expected, _ = layer(x)
    with torch.autocast("cpu", torch.bfloat16):
        output, _ = layer(x)
    torch.testing.assert_close(output.float(), expected, **HALF)
    output.float().sum().backward()
    assert all(p.grad.isfinite().all() for p in (x, *layer.parameters()))
    torch.compiler.reset()  # it counts what it has compiled in this process, and stops at eight
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x)[0], expected, **(COMPILED if layer.cell.takes_complex else {}))
    output, *states = flat(layer(torch.randn(5, 0, 3)))
    assert output.shape == (5, 0, 8)
    assert all(state.shape == (layer.num_layers, 0, 8) for state in states)


# Of the others some products run by torch's own rules: what comes in between two scans, what two bases make.
@pytest.mark.parametrize("name", [name for name in systems() if name not in ("esn", "scrn", "factorized", "asrnn")])
def test_a_way_back_under_autocast_is_that_outside_of_it(name):
    layer, x, gradients = create(name, 3, 8), torch.randn(5, 4, 3), []
    for inside in (False, True):
        layer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = layer(x)[0].float().sum()
            if inside:
                loss.backward()
        if not inside:
            loss.backward()
        gradients.append([p.grad.clone() for p in layer.parameters()])
    for one, other in zip(*gradients, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("name", systems())
def test_one_unit(name):
    if name in NOT_ONE_UNIT:
        with pytest.raises(ValueError, match=NOT_ONE_UNIT[name]):
            create(name, 1, 1)
    else:
        assert create(name, 1, 1)(torch.randn(5, 2, 1))[0].isfinite().all()


@pytest.mark.parametrize("name", systems())
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=str)
def test_gives_back_the_dtype_of_its_weights(name, dtype):
    layer = create(name, 3, 8).to(dtype)
    for member in flat(layer(torch.randn(5, 2, 3, dtype=dtype))):
        assert member.dtype == dtype


@pytest.mark.parametrize("name", systems())
def test_a_nan_is_not_hidden(name):
    x = torch.randn(5, 2, 3)
    x[2, 0, 0] = float("nan")
    output, _ = create(name, 3, 8)(x)
    assert output[2:, 0].isnan().any(-1).all()
    assert output[:2].isfinite().all()
    assert output[:, 1].isfinite().all()


@pytest.mark.parametrize("name", systems())
def test_wrong_shapes_are_refused_in_one_sentence(name):
    layer = create(name, 3, 8)
    layers = layer.num_layers
    form = "input must be (T, B, I) or (T, I) with I = 3"
    for shape, words in {
        (0, 2, 3): "input must have at least one time step, got (0, 2, 3)",
        (0, 3): "input must have at least one time step, got (0, 3)",
        (5, 2, 4): f"{form}, got (5, 2, 4)",
        (3,): f"{form}, got (3,)",
    }.items():
        with pytest.raises(ValueError) as error:
            layer(torch.randn(shape))
        assert str(error.value) == words
    states = (torch.randn(layers, 2, 7),) * layer.cell.state_size
    with pytest.raises(ValueError) as error:
        layer(torch.randn(5, 2, 3), states if len(states) > 1 else states[0])
    assert (
        str(error.value)
        == f"{layer.cell.states[0]}0 must have shape ({layers}, 2, 8) for this input, got ({layers}, 2, 7)"
    )


@pytest.mark.parametrize("name", systems())
def test_one_step_and_one_sequence(name):
    layer = create(name, 3, 8, dtype=torch.float64)
    x = torch.randn(1, 1, 3, dtype=torch.float64)
    batched, alone = flat(layer(x)), flat(layer(x[:, 0]))
    assert batched[0].shape == (1, 1, 8)
    for together, single in zip(batched, alone, strict=True):
        torch.testing.assert_close(together[:, 0], single, **SAME)


def test_spectral_with_all_singular_values_one_is_ornn():
    x = torch.randn(9, 4, 3, dtype=torch.float64)
    spectral = create("spectral", 3, 8, reflectors=(5, 0), margin=0.0, dtype=torch.float64)
    ornn = create("ornn", 3, 8, reflectors=5, dtype=torch.float64)
    numbers = spectral.parametrizations.weight_hh_l0
    ornn.load_state_dict(
        {n: p for n, p in spectral.state_dict().items() if "original" not in n}
        | {"parametrizations.weight_hh_l0.original": numbers.original0}
    )
    torch.testing.assert_close(spectral(x)[0], ornn(x)[0], **SAME)


@pytest.mark.parametrize(("gated", "plain", "activation"), [("fastrnn", "rnn", "tanh"), ("sgornn", "vprnn", "relu")])
def test_gates_at_one_and_zero_leave_the_plain_layer(gated, plain, activation):
    first = create(gated, 3, 8, gates="fixed", alpha=1.0, beta=0.0, activation=activation)
    second = create(plain, 3, 8)
    second.load_state_dict(first.state_dict())
    x = torch.randn(9, 4, 3)
    torch.testing.assert_close(first(x)[0], second(x)[0])


def test_ugru_with_a_free_map_is_gru():
    ugru, gru = create("ugru", 3, 8, map="free"), create("gru", 3, 8)
    gru.load_state_dict(ugru.state_dict())
    x = torch.randn(9, 4, 3)
    assert torch.equal(ugru(x)[0], gru(x)[0])


@pytest.mark.parametrize("readout", ["last", "every"])
def test_the_readout_of_scrn_has_the_documents_two_terms(readout):
    """Galvan's 2.13: y = f(U h + V s), where f is left to the loss."""
    plain, context = 6, 2
    model = SequenceModel(create("scrn", 3, plain + context, context_size=context), 4, readout=readout).double()
    x = torch.randn(7, 5, 3, dtype=torch.float64)
    h, s = model.layer(x)[0].split([plain, context], -1)
    U, V = model.output.weight.split([plain, context], -1)
    expected = h @ U.mT + s @ V.mT + model.output.bias
    torch.testing.assert_close(model(x)[0], expected if readout == "every" else expected[-1], **SAME)
    rate, B = 0.95, model.layer.weight_ih_l0[plain:]
    torch.testing.assert_close(s[0], (1 - rate) * x[0] @ B.mT, **SAME)  # it is the context that V reads


@pytest.mark.parametrize("margin", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("name", ["factorized", "spectral"])
def test_options_of_the_spectrum_pass_through(name, margin):
    layer = create(name, 3, 8, margin=margin, gain=1.05, initial_state="learned")
    with torch.no_grad():
        layer.parametrizations.weight_hh_l0.original2.normal_(std=3)
    s = torch.linalg.svdvals(layer.weight_hh_l0)
    assert (s - 1).abs().max() <= margin + 1e-5
    assert layer.cell.gain == 1.05


@pytest.mark.parametrize("name", UCR)
def test_parameter_counts_of_the_spectral_document(name):
    length, depth, _, outputs, counts = UCR[name]
    for (system, options), count in zip(UCR_SYSTEMS.items(), counts, strict=True):
        layer = create(system, length // depth, 32, initial_state="learned", **options)
        assert SequenceModel(layer, outputs).parameter_counts()["total"] == count, system


@pytest.mark.parametrize(("table", "inputs"), [(ADDITION, 2), (HAR2, 9)], ids=["addition", "har-2"])
def test_parameter_counts_of_the_sgornn_document(table, inputs):
    for (name, hidden), count in table.items():
        model = SequenceModel(create(name, inputs, hidden), 1)
        assert model.parameter_counts()["total"] == count, name


def test_parameter_counts_of_the_sgornn_language_model():
    for (name, hidden), count in PTB_LAYER.items():
        assert sum(p.numel() for p in create(name, hidden, hidden).parameters()) == count, name


@pytest.mark.parametrize("name", ORTHOGONAL)
def test_orthogonal_systems_are_orthogonal(name):
    assert residual(create(name, 2, 24).weight_hh_l0) < 1e-5


def test_options_go_over_the_systems_own():
    layer = create("sgornn", 2, 8, map="exponential", activation="abs", num_layers=2, bidirectional=True)
    assert type(layer.parametrizations.weight_hh_l1_reverse[0]).__name__ == "Exponential"
    assert create("irnn", 2, 8, map="exponential").hidden_size == 8  # the free map's own options go with it


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("sgorn", "did you mean sgornn"),
        ("SGORNN", "sgornn"),
        ("transformer", "known are antisymmetric, antisymmetric-gated"),
    ],
)
def test_unknown_names_get_the_nearest(name, words):
    with pytest.raises(ValueError) as error:
        create(name, 2, 8)
    assert words in str(error.value)


def test_networks_without_time_say_where_they_are():
    assert set(NETWORKS) == set(feedforward.NETWORKS)
    for name, row in NETWORKS.items():
        assert row.network is feedforward.NETWORKS[name]
        assert row.equation
        assert row.document
        with pytest.raises(ValueError) as error:
            create(name, 7, 16)
        sentence, call = str(error.value).split(": it is ")
        assert sentence == f"system {name!r} has no time and so is no recurrent layer"
        network = eval(call, {"evenflow": evenflow, "output_size": 3})  # the call it names works
        assert network(torch.randn(2, 7)).shape == (2, 3)
        assert network.width == 16


def test_the_command_line_shows_every_row(capsys, monkeypatch):
    from evenflow.lab import cli

    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit) as left:
        cli.main(["systems"])
    assert left.value.code == 0
    lines = capsys.readouterr().out.splitlines()
    for name, row in [*systems().items(), *NETWORKS.items()]:
        (line,) = [line for line in lines if line.split()[:1] == [name]]
        assert row.document in line
        assert row.equation in line
        parameters = create(name, 2, 128).parameters() if name in systems() else row.network(2, 1).parameters()
        assert line.split()[-1] == f"{sum(p.numel() for p in parameters):,}"
    assert len([line for line in lines if line.startswith("Use one:")]) == 2
    (line,) = [line for line in lines if line.split()[:1] == ["sgornn"]]
    assert line.split()[-1] == "1,282"  # 14 x 64 angles, 128 x 2 inputs, 128 biases, 2 gates


def test_an_option_that_a_reservoir_has_not_is_named():
    with pytest.raises(ValueError) as error:
        create("esn", 2, 8, bidirectional=True)
    assert str(error.value).startswith("system 'esn' has no option 'bidirectional'; it takes radius, leak, density")
    assert create("esn", 2, 8, leak=0.5).leak == pytest.approx(0.5)


def test_unknown_option_is_named():
    with pytest.raises(ValueError, match="reflectorz"):
        create("ornn", 2, 8, reflectorz=3)


def test_systems_is_read_only():
    with pytest.raises(TypeError):
        systems()["mine"] = systems()["rnn"]  # type: ignore[index]


@pytest.mark.parametrize("engine", ["auto", "torch", "reference"])
@pytest.mark.parametrize("name", systems())
def test_a_gradient_of_the_gradient_is_right(name, engine):
    layer = create(name, 2, 4, engine=engine).double()
    x = torch.randn(3, 2, 2, dtype=torch.float64, requires_grad=True)
    if name != "lstm-1997":  # its gradient is cut off, so it is nobody's slope
        assert torch.autograd.gradgradcheck(lambda x: layer(x)[0], x)
    weights = [x, *(p for p in layer.parameters() if p.requires_grad)]
    found = []
    for layer.engine in (engine, "reference"):
        slopes = torch.autograd.grad(layer(x)[0].square().sum(), weights, create_graph=True)
        curved = sum(slope.square().sum() for slope in slopes)
        found.append(torch.autograd.grad(curved, weights))
    torch.testing.assert_close(*found, rtol=1e-9, atol=1e-9)


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # torch runs them one by one
@pytest.mark.parametrize("name", systems())
def test_many_gradients_side_by_side(name):
    """As a Jacobian by `torch.autograd.functional.jacobian(..., vectorize=True)` asks for them."""
    layer = create(name, 3, 4).double()
    x = torch.randn(4, 2, 3, dtype=torch.float64, requires_grad=True)
    output = layer(x)[0]
    grads = torch.randn(3, *output.shape, dtype=torch.float64)
    found = torch.autograd.grad(output, x, grads, is_grads_batched=True, retain_graph=True)[0]
    alone = [torch.autograd.grad(output, x, grad, retain_graph=True)[0] for grad in grads]
    torch.testing.assert_close(found, torch.stack(alone), **SAME)
