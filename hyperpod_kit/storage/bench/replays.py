"""The replay of a checkpoint on a mount: started, stopped and read here; it runs where torch is, in processes of its
own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

from hyperpod_kit.errors import HyperpodKitError
from hyperpod_kit.extras import install_command
from hyperpod_kit.storage.bench.scratch import Scratch
from hyperpod_kit.storage.plan.calibration import Sample

PROGRAM = "hyperpod_kit.storage.bench.replay"
SAVES = 3
"""Of each writer: the first is not counted."""

LONGEST = 540.0
_END_SECONDS = 30.0


class ReplayFailed(HyperpodKitError):
    """A writer could not save there, or torch is not installed."""


class ReplayAsked(NamedTuple):
    """`size`: bytes of one checkpoint of all ranks; `ranks`: processes on this machine; `writers`: by name."""

    size: int
    ranks: int
    writers: tuple[str, ...]


def replay(scratch: Scratch, asked: ReplayAsked, writer: str, kind: str) -> list[Sample]:
    """The timed saves. Raises ReplayFailed, BudgetSpent."""
    # Our engine holds two checkpoints while a third is written.
    scratch.take(SAVES * asked.size, f"a checkpoint by {writer}")
    place = scratch.directory(f"replay-{writer}")
    try:
        found = _run(place, asked, writer)
    finally:
        scratch.forget(place)
    stalls = found["stall"] if writer == "hyperpod-kit" else [None] * len(found["seconds"])
    ranks = int(found["ranks"])
    # Rank 0 alone writes what torch.save saves.
    writers = 1 if writer == "torch-save" else ranks
    return [
        Sample(kind, writer, writers, 1, float(found["size"]), float(seconds), f"{ranks} ranks", stall)
        for seconds, stall in zip(found["seconds"], stalls)
    ]


def _run(place: Path, asked: ReplayAsked, writer: str) -> dict[str, Any]:
    words = [sys.executable, "-m", PROGRAM, "--dir", str(place), "--writer", writer]
    words += ["--ranks", str(asked.ranks), "--bytes", str(asked.size), "--repeat", str(SAVES - 1)]
    # A session of its own: Ctrl-C reaches it through us, once, and it can clean up.
    child = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        printed, complaint = child.communicate(timeout=LONGEST)
    except subprocess.TimeoutExpired:
        raise ReplayFailed(f"{writer}: no end after {LONGEST:.0f} s") from None
    finally:
        _end(child)
    try:
        body: dict[str, Any] = json.loads(printed.strip().splitlines()[-1])
    except (ValueError, IndexError):
        last = (complaint.strip().splitlines() or ["no word"])[-1]
        hint = f"{install_command('torch')}; or --no-replay" if "torch" in last else None
        raise ReplayFailed(f"{writer}: exit code {child.returncode}: {last}", hint=hint) from None
    if "error" in body:
        raise ReplayFailed(f"{writer}: {body['error']}")
    return body


def _end(child: subprocess.Popen[str]) -> None:
    """Nothing of the replay runs any more: it is asked first, so that it ends its ranks and its agent."""
    if child.poll() is None:
        child.terminate()
        try:
            child.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
    for stream in (child.stdout, child.stderr):
        if stream is not None:
            stream.close()
