"""Lightning's Trainer on a small model. The lines that end in `# +` are what hyperpod-kit changes: without them it is
the program that it was.

    python examples/frameworks/lightning_trainer.py --output OUTPUT
    torchrun --nproc-per-node 2 examples/frameworks/lightning_trainer.py --output OUTPUT

Kill it at any moment and start it again with the same words: it goes on bit for bit, in the middle of an epoch.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import lightning
import torch

from hyperpod_kit.checkpoint.adapters.lightning import CheckpointedFit  # +

WIDTH = 64
TURNS = 24


class Rows(torch.utils.data.Dataset[torch.Tensor]):
    """Rows that follow from their number."""

    def __len__(self) -> int:
        return 640

    def __getitem__(self, number: int) -> torch.Tensor:
        return torch.randn(WIDTH, generator=torch.Generator().manual_seed(number))


class Net(lightning.LightningModule):
    def __init__(self, output: str, rate: float = 1e-3) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.net = torch.nn.Sequential(
            torch.nn.Linear(WIDTH, WIDTH), torch.nn.BatchNorm1d(WIDTH), torch.nn.Dropout(0.1), torch.nn.GELU()
        )

    def training_step(self, batch: torch.Tensor, number: int) -> torch.Tensor:
        found = batch
        for _ in range(TURNS):
            found = self.net(found)
        loss = (found - batch.roll(1, 1)).square().mean()
        with Path(self.hparams.output, f"losses-{self.global_rank}.txt").open("a") as log:
            print(self.trainer.global_step + 1, loss.item().hex(), file=log)
        return loss

    def configure_optimizers(self) -> dict[str, Any]:
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.hparams.rate)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", required=True)
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--save-every", type=int, default=2)
    args = parser.parse_args()

    lightning.seed_everything(1)
    trainer = lightning.Trainer(
        accelerator="cpu",
        strategy="ddp",
        devices=int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
        max_steps=args.steps,
        default_root_dir=args.output,
        callbacks=[CheckpointedFit(every=args.save_every)],  # +
        enable_checkpointing=False,
        enable_progress_bar=False,
        logger=False,
    )
    model = Net(args.output)
    trainer.fit(model, torch.utils.data.DataLoader(Rows(), batch_size=32, shuffle=True))
    if trainer.is_global_zero:
        torch.save(model.state_dict(), Path(args.output, "weights.pt"))


if __name__ == "__main__":
    main()
