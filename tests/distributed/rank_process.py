"""Ranks of the example's training job as real processes, forked from one that has imported torch already.

An import of torch costs seconds of processor time, and these tests start dozens of ranks.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    [
        "torch",
        "torch._dynamo",
        "torch._inductor.config",
        "torch.nn.parallel",
        "torch.distributed.fsdp",
        "torch.distributed.checkpoint.state_dict",
    ]
)


def run(log: str, folder: str, argv: list[str], env: dict[str, str]) -> None:
    """Be one rank: standard output and error go to `log`."""
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(out, 1)
    os.dup2(out, 2)
    os.environ.update(env)
    os.chdir(folder)
    sys.path[:0] = [str(REPOSITORY / "examples/gpt"), str(REPOSITORY)]
    import train

    sys.exit(train.main(argv))


def start(log: Path, folder: Path, argv: list[str], env: dict[str, str]) -> multiprocessing.process.BaseProcess:
    process = CONTEXT.Process(target=run, args=(str(log), str(folder), argv, env), daemon=True)
    process.start()
    return process
