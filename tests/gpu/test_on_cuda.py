"""What holds on the CPU holds on a GPU: maps, layers and training. `make test-gpu` runs these; elsewhere they skip."""

from __future__ import annotations

import pytest
import torch

from evenflow import SequenceModel, create, systems
from evenflow.activations import ACTIVATIONS
from evenflow.lab.tasks.distortion import distorted
from evenflow.layers.named import RNN
from evenflow.maps import MAPS, Map, residual

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

SIZES = (2, 16, 33, 128)
CLOSE = {"atol": 2e-5, "rtol": 2e-5}  # float32 sums in another order
EXACT = {"atol": 1e-10, "rtol": 1e-8}


def made(name: str, n: int):
    try:
        return MAPS[name](n)
    except ValueError:
        pytest.skip(f"{name} has no matrix of size {n}")


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("name", MAPS)
def test_maps_and_their_gradients(name, n):
    map = made(name, n)
    raw = map.start(torch.Generator().manual_seed(1))
    weight = None
    seen = []
    for device in ("cpu", "cuda"):
        leaves = [r.double().to(device).requires_grad_() for r in raw]
        matrix = map.to(device)(*leaves)
        weight = torch.linspace(-1, 1, n * n, dtype=torch.float64).reshape(n, n) if weight is None else weight
        loss = (matrix * weight.to(device)).sum()
        (loss.real + loss.imag if matrix.is_complex() else loss).backward()
        seen.append([matrix.detach().cpu(), *(leaf.grad.cpu() for leaf in leaves)])
    for expected, got in zip(*seen, strict=True):
        torch.testing.assert_close(got, expected, **EXACT)


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("name", MAPS)
def test_orthogonal_maps_are_orthogonal_in_single_precision(name, n):
    map = made(name, n).cuda()
    if not getattr(map, "orthogonal", False):
        pytest.skip(f"{name} is not bound to be orthogonal")
    matrix = map(*(r.cuda() for r in map.start(torch.Generator().manual_seed(1))))
    wide = matrix.to(torch.complex128) if matrix.is_complex() else matrix.double()
    assert residual(wide) < 2e-6


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_layers_equal_the_cpu(activation):
    layer = RNN(3, 16, 2, map="exponential", activation=activation, bidirectional=True, dtype=torch.float64)
    x = torch.randn(20, 5, 3, dtype=torch.float64)
    seen = []
    for device in ("cpu", "cuda"):
        layer.to(device).zero_grad()
        with layer.taps() as taps:
            output, _ = layer(x.to(device))
        output.sin().sum().backward()
        seen.append(
            [v.detach().cpu() for v in (output, *(p.grad for p in layer.parameters()), *(t.grad for t in taps))]
        )
    for expected, got in zip(*seen, strict=True):
        torch.testing.assert_close(got, expected, **EXACT)


@pytest.mark.parametrize("name", systems())
def test_every_system_on_cuda_and_under_autocast(name):
    torch.manual_seed(0)
    model = SequenceModel(create(name, 3, 16), 2).cuda()
    x = torch.randn(50, 4, 3, device="cuda")
    expected = SequenceModel.forward(model.cpu(), x.cpu())[0]
    outputs, _ = model.cuda()(x)
    torch.testing.assert_close(outputs.cpu(), expected, **CLOSE)
    with torch.autocast("cuda", torch.bfloat16):
        model(x)[0].float().sum().backward()
    assert all(p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("every", [1, 30])
@pytest.mark.parametrize("name", [name for name in systems() if name != "esn"])  # of that nothing is trained
def test_what_is_not_kept_is_found_again(name, every):
    """With `checkpoint_every` a system gives its outputs and gradients by the kernels, from less memory."""
    seen = []
    for pieces in (None, every):
        generator = torch.Generator().manual_seed(1)
        layer = create(name, 3, 32, generator=generator, checkpoint_every=pieces)
        with torch.no_grad():  # some weights start at zero, where they do nothing
            for p in layer.parameters():
                p.add_(torch.randn(p.shape, generator=generator), alpha=0.02)
        layer.cuda()
        x = torch.randn(100, 9, 3, generator=torch.Generator().manual_seed(2)).cuda().requires_grad_()
        with layer.taps() as taps:
            output, _ = layer(x)
        leaves = [v for v in (x, *layer.parameters(), *taps) if v.requires_grad]
        slopes = torch.autograd.grad(output.sin().sum(), leaves, allow_unused=True)
        seen.append([output.detach(), *(slope for slope in slopes if slope is not None)])
    for expected, got in zip(*seen, strict=True):
        assert (got - expected).norm() < 1e-5 * expected.norm().clamp(min=1e-6)


def test_states_and_nothing_else_are_kept():
    numbers = 4 * 784 * 50 * 128
    for name, members in (("sgornn", 1), ("ugru", 1), ("lstm", 2)):
        layer = create(name, 2, 128, checkpoint_every=1).cuda()
        x = torch.randn(784, 50, 2, device="cuda")
        layer(x)
        before = torch.cuda.memory_allocated()
        output, _ = layer(x)
        assert torch.cuda.memory_allocated() - before < (members + 0.2) * numbers
        output.sum().backward()


def test_fit_on_cuda(tmp_path):
    pytest.importorskip("lightning_fabric")
    from evenflow import fit
    from evenflow.lab import tasks

    results = []
    for _ in range(2):
        torch.manual_seed(0)
        model = SequenceModel(create("sgornn", 2, 16), 1)
        results.append(fit(model, tasks.make("adding", length=20), steps=30, device="cuda", progress=False))
    assert results[0].valid_loss == results[1].valid_loss  # same seed, same kind of device, same numbers


def pulled(map, raw, weight):
    leaves = [r.detach().requires_grad_() for r in raw]
    matrix = map(*leaves)
    loss = (matrix * weight).sum()
    (loss.real + loss.imag if matrix.is_complex() else loss).backward()
    return [matrix.detach(), *(leaf.grad for leaf in leaves)]


@pytest.mark.parametrize("name", MAPS)
def test_a_captured_map_gives_what_it_gave_before(name):
    """From the fourth call on a map on a GPU is replayed: with new numbers, in any order, and none written over."""
    map, fresh = MAPS[name](16).cuda(), MAPS[name](16).cuda()
    if hasattr(map, "permutations"):
        fresh.load_state_dict(map.state_dict())
    weight = torch.randn(16, 16, dtype=torch.float64, device="cuda")
    draws = [[r.double().cuda() for r in map.start(torch.Generator().manual_seed(seed))] for seed in range(6)]
    for raw in draws:
        for got, expected in zip(pulled(map, raw, weight), pulled_plainly(fresh, raw, weight), strict=True):
            torch.testing.assert_close(got, expected, **EXACT)
    assert len(map.graphs.captured) == 1, f"{name} could not be captured"
    # Two matrices made before either is pulled back.
    first, second = ([r.detach().requires_grad_() for r in draws[k]] for k in (0, 1))
    one, two = map(*first), map(*second)
    kept = one.detach().clone()
    for matrix in (two, one):
        loss = (matrix * weight).sum()
        (loss.real + loss.imag if matrix.is_complex() else loss).backward()
    assert torch.equal(one.detach(), kept)
    for leaves, raw in ((first, draws[0]), (second, draws[1])):
        for leaf, expected in zip(leaves, pulled_plainly(fresh, raw, weight)[1:], strict=True):
            torch.testing.assert_close(leaf.grad, expected, **EXACT)


def pulled_plainly(map, raw, weight):
    map.graphs.clear()  # never old enough to be captured
    return pulled(map, raw, weight)


@pytest.mark.parametrize("name", MAPS)
def test_a_captured_map_pulled_twice_moved_and_loaded(name):
    map, fresh = MAPS[name](16).cuda(), MAPS[name](16).cuda()
    fresh.load_state_dict(map.state_dict())
    weight = torch.randn(16, 16, dtype=torch.float64, device="cuda")
    raw = [r.double().cuda() for r in map.start()]
    for _ in range(5):
        pulled(map, raw, weight)
    leaves = [r.detach().requires_grad_() for r in raw]
    matrix = map(*leaves)
    loss = (matrix * weight).sum()
    loss = loss.real + loss.imag if matrix.is_complex() else loss
    first = torch.autograd.grad(loss, leaves, retain_graph=True, allow_unused=True)
    second = torch.autograd.grad(loss, leaves, allow_unused=True)
    for a, b in zip(first, second, strict=True):
        torch.testing.assert_close(a, b, **EXACT)
    map.cpu().cuda()
    for _ in range(5):
        for got, expected in zip(pulled(map, raw, weight), pulled_plainly(fresh, raw, weight), strict=True):
            torch.testing.assert_close(got, expected, **EXACT)


def test_a_captured_exponential_grows_with_its_angles_and_never_lies():
    map, fresh = MAPS["exponential"](8).cuda(), MAPS["exponential"](8).cuda()
    raw = map.start(torch.Generator().manual_seed(0))[0].cuda()
    for _ in range(5):
        map(raw)
    largest = map.angle_range.largest
    for step in range(20):  # by a quarter at each step, as no optimiser does
        grown = raw * 1.25**step
        fresh.graphs.clear()
        torch.testing.assert_close(map(grown), fresh(grown), atol=1e-4, rtol=0)
        torch.cuda.synchronize()
    assert map.angle_range.largest > largest, "captured anew"
    for _ in range(2):
        map(grown)
        torch.cuda.synchronize()
    assert map(grown * 100).isnan().all()  # in one go beyond what was captured
    torch.cuda.synchronize()
    assert map(grown * 100).isfinite().all()  # and captured anew for it


def test_a_layer_with_captured_maps_trains_as_without():
    losses = []
    for calls in (1, 40):
        torch.manual_seed(0)
        layer = RNN(2, 16, map="exponential", activation="abs").cuda()
        optimiser = torch.optim.Adam(layer.parameters(), 1e-2)
        x = torch.randn(10, 4, 2, device="cuda")
        for _ in range(40):
            if calls == 1:
                layer.parametrizations.weight_hh_l0[0].graphs.clear()
            optimiser.zero_grad()
            loss = (layer(x)[0] - 1).square().mean()
            loss.backward()
            optimiser.step()
        losses.append(loss.item())
    assert abs(losses[0] - losses[1]) < 1e-4 * abs(losses[0])


class Uncapturable(Map):
    """The numbers times two, with a look at them from the host, which no capture can hold."""

    @property
    def raw_shapes(self):
        return ((self.rows, self.columns),)

    def matrix(self, *raw):
        assert raw[0].sum().item() < 1e9
        return 2 * raw[0]


def test_a_map_that_cannot_be_captured_runs_all_the_same():
    map, raw = Uncapturable(4).cuda(), torch.randn(4, 4, device="cuda", requires_grad=True)
    for _ in range(3):
        map(raw)
    with pytest.warns(RuntimeWarning, match="Uncapturable runs without a CUDA graph"):
        map(raw)
    map(raw).sum().backward()
    assert (raw.grad == 2).all()
    torch.randn(4, device="cuda")
    other = MAPS["householder"](16).cuda()
    numbers = [r.cuda() for r in other.start()]
    for _ in range(5):
        other(*numbers)
    assert other.graphs.captured


def test_captures_come_and_go():
    """Maps made, captured and dropped, again and again: none spoils the capture of the next."""
    for name in [*MAPS] * 3:
        map = MAPS[name](16).cuda()
        numbers = [r.cuda().requires_grad_() for r in map.start()]
        for _ in range(5):
            W = map(*numbers)
            W.abs().sum().backward()
        assert map.graphs.captured, name


def test_distorted_images_equal_the_cpus():
    images = torch.rand(5, 28, 28, generator=torch.Generator().manual_seed(1))
    numbers = torch.tensor([0, 7, 64, 65_544, 3_519_999])
    seen = [distorted(images.to(device), numbers.to(device), 0.2, 0.1).cpu() for device in ("cpu", "cuda")]
    torch.testing.assert_close(seen[1], seen[0], **CLOSE)
