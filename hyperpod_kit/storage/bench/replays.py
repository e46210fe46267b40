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
from hyperpod_kit.extras import requirements_install_command
from hyperpod_kit.storage.bench.scratch import Scratch
from hyperpod_kit.storage.plan.calibration import Sample
from hyperpod_kit.untrusted.text import counted

PROGRAM = "hyperpod_kit.storage.bench.replay"
SAVES = 3
"""Of each writer: the first is not counted."""

TIMEOUT = 540.0
_END_SECONDS = 30.0


class ReplayFailed(HyperpodKitError):
    """A writer could not save there, or torch is not installed."""


class ReplayRequest(NamedTuple):
    """A replay to run.

    `size`: bytes of one checkpoint of all ranks; `ranks`: processes on this machine; `writers`: by name.
    """

    size: int
    ranks: int
    writers: tuple[str, ...]


def replay(scratch: Scratch, request: ReplayRequest, writer: str, kind: str) -> list[Sample]:
    """Run the replay and return the timed saves. Raises ReplayFailed, BudgetSpent."""
    # Our engine holds two checkpoints while a third is written.
    scratch.reserve_bytes_within_budget_and_room(SAVES * request.size, f"a checkpoint by {writer}")
    directory = scratch.make_directory(f"replay-{writer}")
    try:
        report = _run_replay(directory, request, writer)
    finally:
        scratch.remove(directory)
    stalls = [None] * len(report["seconds"])
    if writer == "hyperpod-kit":
        stalls = report["stall"]
    ranks = writers = int(report["ranks"])
    if writer == "torch-save":
        writers = 1  # rank 0 alone
    return [
        Sample(kind, writer, writers, 1, float(report["size"]), float(seconds), counted(ranks, "rank"), stall)
        for seconds, stall in zip(report["seconds"], stalls)
    ]


def _run_replay(directory: Path, request: ReplayRequest, writer: str) -> dict[str, Any]:
    argv = [sys.executable, "-m", PROGRAM, "--dir", str(directory), "--writer", writer]
    argv += ["--ranks", str(request.ranks), "--bytes", str(request.size), "--repeat", str(SAVES - 1)]
    # A session of its own: Ctrl-C reaches it through us, once, and it can clean up.
    child = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        output, error_output = child.communicate(timeout=TIMEOUT)
    except subprocess.TimeoutExpired:
        raise ReplayFailed(f"{writer}: no end after {TIMEOUT:.0f} s") from None
    finally:
        _terminate_replay(child)
    try:
        body: dict[str, Any] = json.loads(output.strip().splitlines()[-1])
    except (ValueError, IndexError):
        last = (error_output.strip().splitlines() or ["no word"])[-1]
        hint = None
        if "torch" in last:
            hint = f"{requirements_install_command('torch')}; or --no-replay"
        raise ReplayFailed(f"{writer}: exit code {child.returncode}: {last}", hint=hint) from None
    if "error" in body:
        raise ReplayFailed(f"{writer}: {body['error']}")
    return body


def _terminate_replay(child: subprocess.Popen[str]) -> None:
    """End the replay: by a signal first, so that it ends its ranks and its agent."""
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
