"""Train a small GPT on Python sources, on any number of processes, and survive anything.

Killed at any moment and started again, it ends with exactly the weights of a run that nobody disturbed: the position in
the data is committed with the weights, and everything else is in the checkpoint. Told to stop by SIGUSR1 (the time
limit is near), it saves and exits with 75: run me again. What each rank received is in WORK/ledger, for
`hyperpod-kit data verify-ledger`.

    python train.py --data DIR --checkpoint-root DIR --steps 200 --out weights.pt
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import text
import torch
import world
from model import GPT
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from hyperpod_kit.checkpoint import Manager, State
from hyperpod_kit.errors import HyperpodKitError
from hyperpod_kit.slurm.progress import ProgressWriter

AGAIN = 75


def parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="directory with *.py files to train on")
    parser.add_argument("--checkpoint-root", default=os.environ.get("HPK_CHECKPOINT_ROOT"))
    parser.add_argument("--work", help="directory for index and ledger (default: the checkpoint root)")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--save-every", type=int, default=10)
    parser.add_argument("--on-busy", choices=("skip", "wait"), default="skip", help="when no memory slot is free")
    parser.add_argument("--out", type=Path, help="final weights, written by rank 0")
    parser.add_argument("--batch", type=int, default=4, help="per process")
    parser.add_argument("--context", type=int, default=128)
    parser.add_argument("--width", type=int, default=192)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--max-bytes", type=int, default=4 << 20, help="of text, up to the end of a file")
    parser.add_argument("--timeout", type=float, default=120.0, help="seconds until a silent peer is an error")
    parser.add_argument(
        "--hold-at", type=int, metavar="STEP", help="do not begin this step before --hold-until is there"
    )
    parser.add_argument("--hold-until", type=Path, metavar="FILE", help="for a demonstration that must not end early")
    args = parser.parse_args(argv)
    if not args.checkpoint_root:
        parser.error("--checkpoint-root or HPK_CHECKPOINT_ROOT is needed")
    args.work = args.work or args.checkpoint_root
    return args


def say(rank: int, **line: object) -> None:
    """One JSON line on standard output, from rank 0."""
    if rank == 0:
        print(json.dumps(line), flush=True)


def fingerprint(model: torch.nn.Module) -> str:
    """SHA-256 over all weights in the order of their names."""
    found = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        found.update(name.encode())
        found.update(bytes(tensor.contiguous().view(-1).view(torch.uint8).tolist()))
    return found.hexdigest()


def endless(loader: torch.utils.data.DataLoader[torch.Tensor]) -> Iterator[torch.Tensor]:
    """Epoch after epoch, from where the loader is."""
    while True:
        yield from loader


def hold(until: Path) -> None:
    """Return when that file is there. It computes nothing, so the weights are those of a run that was not held."""
    while not until.exists():
        time.sleep(0.2)


class StopRequest:
    """SIGUSR1 has come to some rank. All ranks ask after each step, so that all save the same step."""

    def __init__(self) -> None:
        self._mine = torch.zeros(1)
        signal.signal(signal.SIGUSR1, lambda *_: self._mine.fill_(1.0))

    def came(self, ranks: int) -> bool:
        seen = self._mine.clone()
        if ranks > 1:
            torch.distributed.all_reduce(seen, torch.distributed.ReduceOp.MAX)
        return bool(seen.item())


def train(args: argparse.Namespace) -> int:
    torch.set_num_threads(1)  # the order of a sum must not depend on the machine
    torch.use_deterministic_algorithms(True)
    here = world.join(dict(os.environ), timeout=args.timeout)
    samples = text.index(args.data, f"{args.work}/index", args.max_bytes, here)

    torch.manual_seed(args.seed)
    model = GPT(context=args.context, width=args.width, layers=args.layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.1)
    torch.manual_seed(args.seed * 1000 + here.rank)  # each rank drops other units
    net = DistributedDataParallel(model) if here.size > 1 else model

    manager = Manager(args.checkpoint_root)
    loader = text.loader(
        samples,
        window=args.context + 1,
        batch=args.batch,
        seed=args.seed,
        ledger=f"{args.work}/ledger",
        launch=f"start-{manager.epoch}",
    )
    state = State(model, optimizer, loader=loader, extra={})
    got = manager.restore(state)
    say(here.rank, restored={**asdict(got), "kind": type(got).__name__, "next_step": got.next_step})

    request, warned, last = StopRequest(), False, None
    told = ProgressWriter()  # for `hyperpod-kit job status`; Manager.step would do it by itself
    batches = endless(loader)
    for step in range(got.next_step, args.steps):
        if step == args.hold_at and args.hold_until:
            hold(args.hold_until)
        begin = time.monotonic()
        batch = next(batches)
        inputs, targets = batch[:, :-1], batch[:, 1:]
        optimizer.zero_grad(set_to_none=True)
        loss = functional.cross_entropy(net(inputs).flatten(0, 1), targets.flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        told.report_completed_step(step)
        line: dict[str, object] = {"step": step, "loss": round(loss.item(), 6), "t": round(time.monotonic() - begin, 4)}
        warned = request.came(here.size)
        final = warned or step + 1 == args.steps
        if final or (step + 1) % args.save_every == 0:
            # The last one is waited for; the others may be skipped when storage is slower than training.
            handle = manager.save(step, state, on_busy="wait" if final else args.on_busy)
            line.update(save=handle.state, stall_ms=round(handle.stall_ms, 2), last_save=repr(last))
            last = handle
        say(here.rank, **line)
        if warned:
            break

    drained = manager.close()
    if warned and step + 1 < args.steps:
        say(here.rank, stopped={"step": step, "checkpoints_durable": drained})
        return AGAIN
    if here.rank == 0:
        if args.out:
            torch.save(model.state_dict(), args.out)
        say(0, steps=args.steps, weights_sha256=fingerprint(model), checkpoints_durable=drained)
    return 0


def main(argv: list[str]) -> int:
    try:
        return train(parse(argv))
    except HyperpodKitError as err:
        print(f"error: {err}" + (f"\nhint: {err.hint}" if err.hint else ""), file=sys.stderr, flush=True)
        return err.exit_code
    finally:
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
