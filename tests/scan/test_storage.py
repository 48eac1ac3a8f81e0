"""Steps stored in half precision, and a state that is not."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import pack_sequence

from evenflow import SequenceModel, create, systems
from evenflow.lab import tasks
from evenflow.lab.training import fit
from evenflow.layers.feedback_stack import GatedFeedbackRNN
from evenflow.layers.named import GRU, LSTM, RNN
from evenflow.layers.recurrent import Recurrent
from evenflow.models.population import Population

CLOSE = {"atol": 0.05, "rtol": 0.05}  # bfloat16 has three digits, and rounds every step's input
STORED = 0.6  # of the bytes in float32, weights and input included
LAYERS = {"rnn": RNN, "gru": GRU, "lstm": LSTM}


@pytest.fixture(autouse=True)
def _seed() -> None:
    """One draw of the weights: a unit at the kink of modrelu may switch in half precision, and its gradient with it."""
    torch.manual_seed(1)


def twins(name: str, **options: object) -> tuple[Recurrent, Recurrent]:
    layers = [create(name, 3, 16, storage=storage, **options) for storage in (None, "bfloat16")]
    layers[1].load_state_dict(layers[0].state_dict())
    return layers[0], layers[1]


def finals(state: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return (state,) if isinstance(state, Tensor) else state


@pytest.mark.parametrize("name", [name for name in systems() if name not in ("gated-feedback", "esn")])
def test_every_system(name: str) -> None:
    plain, stored = twins(name)
    x = torch.randn(6, 5, 3, generator=torch.Generator().manual_seed(0))
    found = []
    for layer in (plain, stored):
        output, state = layer(x)
        output.float().square().mean().backward()
        found.append((output.float(), *finals(state), *(p.grad for p in layer.parameters() if p.grad is not None)))
    assert stored(x)[0].dtype == torch.bfloat16
    assert all(s.dtype == torch.float32 for s in finals(stored(x)[1]))
    for one, other in zip(*found, strict=True):
        assert other.dtype == one.dtype
        torch.testing.assert_close(other, one, atol=0.05 * float(one.detach().abs().max()) + 1e-6, rtol=0.05)


@pytest.mark.parametrize("name", ["rnn", "sgornn", "ugru", "lstm-peephole"])
def test_what_is_kept_takes_half_the_memory(name: str) -> None:
    def kept(layer: Recurrent) -> int:
        held: dict[int, int] = {}

        def pack(t: Tensor) -> Tensor:
            held[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
            return t

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            layer(torch.randn(300, 8, 3))
        return sum(held.values())

    plain, stored = (kept(layer) for layer in twins(name))
    assert stored < STORED * plain


@pytest.mark.parametrize("engine", ["auto", "torch"])
@pytest.mark.parametrize("stored", ["storage", "layer"])
def test_the_state_is_in_single_precision(stored: str, engine: str) -> None:
    """Steps of 2^-10 would be lost on a state of bfloat16 above 1/4."""
    layer = RNN(1, 1, activation="identity", engine=engine, storage="bfloat16" if stored == "storage" else None)
    with torch.no_grad():
        for weight in layer.parameters():
            weight.fill_(1)
        layer.bias_l0.zero_()
    x = torch.full((1024, 1, 1), 2.0**-10)
    if stored == "layer":
        layer, x = layer.to(torch.bfloat16), x.to(torch.bfloat16)
    output, _ = layer(x)
    torch.testing.assert_close(output[-1].float(), torch.ones(1, 1), atol=2**-8, rtol=0)
    output.sum().backward()
    # ∂/∂b: each of 1024 steps moves all later ones.
    torch.testing.assert_close(layer.bias_l0.grad.float(), torch.tensor([1024 * 1025 / 2]), atol=0, rtol=2**-7)


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("kind", LAYERS.values(), ids=LAYERS)
def test_layers_in_double_precision(kind: type[Recurrent], layers: int) -> None:
    model = SequenceModel(kind(2, 4, layers, storage="bfloat16"), 3).double()
    output, _ = model(torch.randn(5, 2, 2, dtype=torch.float64))
    assert output.dtype == torch.float64
    output.sum().backward()
    assert all(p.grad is not None and p.grad.dtype == torch.float64 for p in model.parameters())


def test_an_input_in_double_precision_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"^input must be torch\.float32 as the layer's weights are, got torch\.float64"
    ):
        RNN(2, 4, storage="bfloat16")(torch.randn(5, 2, 2, dtype=torch.float64))


@pytest.mark.parametrize("kind", LAYERS.values(), ids=LAYERS)
def test_on_no_device(kind: type[Recurrent]) -> None:
    output, _ = kind(2, 4, 2, storage="bfloat16", device="meta")(torch.empty(5, 3, 2, device="meta"))
    assert (output.shape, output.dtype) == ((5, 3, 4), torch.bfloat16)


@pytest.mark.parametrize("kind", LAYERS.values(), ids=LAYERS)
def test_stacked_both_ways_packed_and_compiled(kind: type[Recurrent]) -> None:
    layer = kind(3, 8, num_layers=2, bidirectional=True, storage="bfloat16")
    sequences = [torch.randn(n, 3) for n in (2, 5, 4)]
    packed, _ = layer(pack_sequence(sequences, enforce_sorted=False))
    assert packed.data.dtype == torch.bfloat16
    x = torch.randn(5, 2, 3)
    expected, _ = layer(x)
    torch.compiler.reset()
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x)[0], expected)


def test_models_and_populations() -> None:
    models = [SequenceModel(RNN(2, 8, storage="bfloat16"), 3) for _ in range(2)]
    x = torch.randn(2, 7, 4, 2)
    outputs, _ = Population(models)(x)
    for model, inputs, output in zip(models, x, outputs, strict=True):
        alone, _ = model(inputs)
        assert alone.dtype == torch.float32
        torch.testing.assert_close(output, alone, **CLOSE)
    outputs.sum().backward()


@pytest.mark.parametrize("listener", ["probes", "penalty", "simplex", "hessian-free"])
def test_what_listens_to_the_states(listener: str) -> None:
    """Two layers, so that one reads what the other has stored."""
    settings = {
        "probes": {"probe_every": 1},
        "penalty": {"penalty": "stabilizer(1) + norm_preserving(1)"},
        "simplex": {"optimizer": "temporal-simplex"},
        "hessian-free": {"optimizer": "hessian-free"},
    }[listener]
    model = SequenceModel(create("sgornn", 2, 4, num_layers=2, storage="bfloat16"), 1)
    fit(model, tasks.make("adding", length=6), steps=2, batch_size=3, progress=False, device="cpu", **settings)
    assert all(p.isfinite().all() for p in model.parameters())


def test_what_cannot_be() -> None:
    with pytest.raises(ValueError, match="storage must be one of bfloat16, float16, got 'int8'"):
        RNN(2, 4, storage="int8")
    with pytest.raises(ValueError, match="storage must be None with checkpoint_every"):
        RNN(2, 4, storage="bfloat16", checkpoint_every=5)
    with pytest.raises(ValueError, match="storage must be None for GatedFeedbackRNN"):
        GatedFeedbackRNN(2, 4, storage="bfloat16")
    assert "storage='bfloat16'" in repr(RNN(2, 4, storage="bfloat16"))
