"""What both rivals are asked: a state whose every byte follows from its step, and what a load made of it."""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any, Callable

import torch

SIZES = {f"w{n}": 3000 + 700 * n for n in range(8)}
RIGHT, WRONG, RAISED, SCRATCH = range(4)
OUTCOME_LABELS = ("the saved bytes", "changed or mixed bytes, no error", "an error", "nothing, no error: from scratch")


def state_of_step(step: int) -> dict[str, torch.Tensor]:
    """The tensors of that step."""
    return {
        name: torch.frombuffer(bytearray(random.Random(f"{step}/{name}").randbytes(4 * size)), dtype=torch.float32)
        for name, size in SIZES.items()
    }


def is_state_of_step(loaded: dict[str, torch.Tensor], step: int) -> bool:
    return all(
        torch.equal(loaded[name].view(torch.uint8), tensor.view(torch.uint8))
        for name, tensor in state_of_step(step).items()
    )


def run_in_child(work: Callable[[], int], seconds: int = 30) -> int:
    """Run `work` in a forked process; returns its result, RAISED for an exception, a crash or a timeout."""
    pid = os.fork()
    if pid == 0:
        try:
            signal.alarm(seconds)
            silence = os.open(os.devnull, os.O_WRONLY)
            os.dup2(silence, 1)
            os.dup2(silence, 2)
            os._exit(work())
        except BaseException:
            os._exit(RAISED)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if 0 <= code < len(OUTCOME_LABELS):
        return code
    return RAISED


def flip_bits_in_file(path: Path, at: int, mask: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= mask
    path.write_bytes(data)


def count_flip_outcomes(files: list[Path], count: int, dice: random.Random, load: Callable[[], int]) -> Counter[str]:
    """Change one byte at a time, each file as often as the others."""
    out: Counter[str] = Counter()
    for number in range(count):
        path = files[number % len(files)]
        at, mask = dice.randrange(path.stat().st_size), dice.randrange(1, 256)
        flip_bits_in_file(path, at, mask)
        out[OUTCOME_LABELS[run_in_child(load)]] += 1
        flip_bits_in_file(path, at, mask)
    return out


def run_and_kill_after(seconds: float, work: Callable[[], Any]) -> bool:
    """Run `work` in a forked process and SIGKILL it after `seconds`; returns whether it was still running."""
    pid = os.fork()
    if pid == 0:
        silence = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silence, 1)
        os.dup2(silence, 2)
        try:
            work()
        finally:
            os._exit(0)
    time.sleep(seconds)
    os.kill(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL


def limit_file_size(size: int) -> None:
    """From now on this process's writes beyond `size` bytes of a file fail (EFBIG), as on a full disk."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


def print_report(name: str, version: str, seed: int, results: dict[str, Counter[str]]) -> None:
    print(
        json.dumps(
            {
                "system": name,
                "version": version,
                "seed": seed,
                "results": {what: dict(counts) for what, counts in results.items()},
            },
            indent=1,
        )
    )
