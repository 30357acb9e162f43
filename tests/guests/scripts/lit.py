"""A Lightning module and its Trainer with two processes: `python lit.py` starts the second one by itself."""

import sys

import lightning
import torch

lightning.seed_everything(0, verbose=False)


class Line(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)

    def training_step(self, batch, _):
        (inputs,) = batch
        loss = (self.layer(inputs) - inputs.sum(1, keepdim=True)).square().mean()
        self.log("loss", loss, on_step=False, on_epoch=True, sync_dist=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


data = torch.utils.data.TensorDataset(torch.randn(64, 8, generator=torch.Generator().manual_seed(0)))
trainer = lightning.Trainer(
    accelerator="cpu", devices=2, strategy="ddp", max_epochs=3, enable_progress_bar=False, enable_model_summary=False
)
trainer.fit(Line(), torch.utils.data.DataLoader(data, batch_size=8))
loss = trainer.callback_metrics["loss"].item()
# One write: torchrun starts Python with -u, and the two pieces that print() writes would mix with those of other ranks.
sys.stdout.write(f"rank {trainer.global_rank} of {trainer.world_size}: loss {loss:.9f}\n")
sys.stdout.flush()
