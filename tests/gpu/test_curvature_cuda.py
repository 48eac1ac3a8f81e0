"""Gauss-Newton products by fused scans on a GPU, beside those of the loop; `make test-gpu` runs these."""

from __future__ import annotations

import pytest
import torch

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

from evenflow import RNN, SequenceModel  # noqa: E402
from evenflow.optim import GaussNewton, HessianFree  # noqa: E402
from evenflow.scan import reference  # noqa: E402

CLOSE = 1e-4  # of float32 over twenty steps there and back


@pytest.mark.parametrize("lengths", [None, [20, 3, 17, 17, 9]], ids=["full", "ragged"])
@pytest.mark.parametrize(("activation", "hidden"), [("tanh", 50), ("relu", 64), ("abs", 130), ("oplu", 256)])
def test_fused_products_are_the_loops(
    activation: str, hidden: int, lengths: list[int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    layer = RNN(3, hidden, 2, activation=activation, map="exponential")
    model = SequenceModel(layer, 4, readout="every").cuda()
    parameters = list(model.parameters())
    x, y = torch.randn(20, 5, 3, device="cuda"), torch.randn(20, 5, 4, device="cuda")
    ends = None if lengths is None else torch.tensor(lengths, device="cuda")
    v = torch.randn(sum(p.numel() for p in parameters), device="cuda")

    def product() -> torch.Tensor:
        found = GaussNewton(
            model, parameters, lambda: model(x, lengths=ends)[0], lambda o: (o - y).square().mean(), states=True
        )
        return found.product(v, 0.3)

    layer.engine = "reference"
    wanted = product()
    layer.engine = "auto"
    monkeypatch.setattr(reference, "scan", lambda *_: pytest.fail("ran as the loop"))
    assert ((product() - wanted).norm() < CLOSE * wanted.norm()).item()


def test_a_step_descends() -> None:
    torch.manual_seed(0)
    model = SequenceModel(RNN(2, 50), 1).cuda()
    x = torch.randn(30, 100, 2, device="cuda")
    batch = (x, x[:, :, 0].sum(0).unsqueeze(-1))
    optimizer = HessianFree(model, torch.nn.functional.mse_loss, structural=0.03)
    steps = [optimizer.step(batch) for _ in range(5)]
    assert all(done.after < done.before for done in steps)
