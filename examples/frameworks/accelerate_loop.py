"""A loop of one's own with Accelerate. The lines that end in `# +` are what hyperpod-kit changes.

    torchrun --nproc-per-node 2 examples/frameworks/accelerate_loop.py --output OUTPUT

Kill it at any moment and start it again with the same words: it goes on bit for bit, in the middle of an epoch.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

# from accelerate import Accelerator
from accelerate import DataLoaderConfiguration
from accelerate.utils import set_seed

from hyperpod_kit.checkpoint.adapters.accelerate import CheckpointedAccelerator as Accelerator  # +

WIDTH = 64
EPOCHS = 8


class Rows(torch.utils.data.Dataset[torch.Tensor]):
    """Rows that follow from their number."""

    def __len__(self) -> int:
        return 640

    def __getitem__(self, number: int) -> torch.Tensor:
        return torch.randn(WIDTH, generator=torch.Generator().manual_seed(number))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", required=True)
    parser.add_argument("--save-every", type=int, default=2)
    args = parser.parse_args()

    set_seed(1)
    accelerator = Accelerator(
        cpu=not torch.cuda.is_available(),
        project_dir=args.output,
        gradient_accumulation_steps=2,
        dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True),
    )
    layers = [torch.nn.Linear(WIDTH, WIDTH), torch.nn.BatchNorm1d(WIDTH), torch.nn.Dropout(0.1), torch.nn.GELU()]
    net = torch.nn.Sequential(*layers, torch.nn.Linear(WIDTH, WIDTH))
    adam = torch.optim.AdamW(net.parameters(), lr=1e-3)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(adam, 100)
    loader = torch.utils.data.DataLoader(Rows(), batch_size=32, shuffle=True)
    model, optimizer, loader, schedule = accelerator.prepare(net, adam, loader, cosine)

    # step = load_newest(accelerator, args.output)
    step = accelerator.load_state()  # +
    losses = Path(args.output, f"losses-{accelerator.process_index}.txt")
    for epoch in range(step // len(loader), EPOCHS):
        loader.set_epoch(epoch)
        for batch in accelerator.skip_first_batches(loader, step % len(loader)):
            with accelerator.accumulate(model):
                loss = (model(batch) - batch.roll(1, 1)).square().mean()
                accelerator.backward(loss)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
            step += 1
            with losses.open("a") as log:
                print(step, loss.item().hex(), file=log)
            if step % args.save_every == 0:
                accelerator.save_state(f"step_{step}")
    accelerator.end_training()
    if accelerator.is_main_process:
        torch.save(accelerator.unwrap_model(model).state_dict(), Path(args.output, "weights.pt"))


if __name__ == "__main__":
    main()
