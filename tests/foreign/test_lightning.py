"""A LightningModule around a layer: two processes, a checkpoint, and the model loaded from it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pytorch_lightning", reason="pytorch-lightning is not installed")

SCRIPT = """
import sys
import pytorch_lightning as lightning
import torch
from torch import nn
import evenflow


class Module(lightning.LightningModule):
    def __init__(self, system="sgornn"):
        super().__init__()
        self.save_hyperparameters()
        self.layer = evenflow.create(system, 1, 8, batch_first=True)
        self.read = nn.Linear(8, 1)

    def forward(self, x):
        return self.read(self.layer(x)[0][:, -1])

    def training_step(self, batch, index):
        x, y = batch
        loss = nn.functional.mse_loss(self(x), y)
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), 0.01)


folder = sys.argv[1]
lightning.seed_everything(0, verbose=False)
x = torch.randn(32, 6, 1)
data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, x.sum(1)), batch_size=4)
trainer = lightning.Trainer(
    max_epochs=2, accelerator="cpu", devices=2, strategy="ddp", default_root_dir=folder, logger=False,
    enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False,
)
model = Module()
trainer.fit(model, data)
trainer.save_checkpoint(folder + "/model.ckpt")
if trainer.is_global_zero:
    assert trainer.global_step == 8, trainer.global_step
    again = Module.load_from_checkpoint(folder + "/model.ckpt")
    assert torch.equal(again(x), model(x))
    print("same")
"""


@pytest.mark.slow
def test_two_processes_and_a_checkpoint(tmp_path: Path):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path)], capture_output=True, encoding="utf-8", timeout=300
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "same" in done.stdout
