"""`job prove`: says how far a checkpoint of another framework is proven; what is not proven yet is read now.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import argparse
import functools
import os
import signal
import time
from typing import Mapping

from hyperpod_kit.command_line.documents import document
from hyperpod_kit.errors import CheckpointError, NoSuchCheckpoint, Unreachable
from hyperpod_kit.job.foreign import newest, proving
from hyperpod_kit.job.foreign.candidate import ForeignCandidate
from hyperpod_kit.job.foreign.proven import ProvenFiles
from hyperpod_kit.job.resume import checkpoint_choice, proving_part, proving_watch
from hyperpod_kit.job.step.options import RunOptions
from hyperpod_kit.untrusted import terminal
from hyperpod_kit.untrusted.text import counted


def main(args: argparse.Namespace, env: Mapping[str, str]) -> int:
    """Run the command that was parsed and return its exit code. Raises HyperpodKitError."""
    root = os.path.abspath(args.root)
    proven = ProvenFiles(root, RunOptions(root, ()).state)
    try:
        if args.watch:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for `job run`, which ends this process
            proving_watch.watch(root, proven)
        elif args.part:
            index, tasks = int(env["SLURM_PROCID"]), int(env["SLURM_NTASKS"])
            proving_part.prove_share_of_files(
                root, proven, args.checkpoint, index, tasks, functools.partial(print, flush=True)
            )
        else:
            _prove(root, args.checkpoint, proven, as_json=args.json)
    except OSError as err:
        raise Unreachable(f"cannot read {root}: {err}") from err
    return 0


def _prove(root: str, name: str, proven: ProvenFiles, *, as_json: bool) -> None:
    candidate = _candidate_of_name(root, name)
    try:
        unproven_files = proving.left_to_prove(root, candidate, proven)
        size, start_time = sum(os.path.getsize(os.path.join(root, file)) for file in unproven_files), time.monotonic()
        proof = proving.read_unproven_files_and_weakest_proof(root, candidate, proven)
    except FileNotFoundError as err:
        raise CheckpointError(f"{candidate.name}: {err.filename or err} is missing") from err
    except CheckpointError as err:
        raise CheckpointError(f"{candidate.name}: {err.message}", hint=err.hint) from err
    seconds = time.monotonic() - start_time
    if as_json:
        terminal.print_json(
            document(
                "job prove",
                {
                    "checkpoint": candidate.name,
                    "kind": candidate.kind,
                    "step": candidate.step,
                    "proof": proof,
                    "files_read": len(unproven_files),
                    "bytes_read": size,
                    "seconds": round(seconds, 3),
                },
            )
        )
        return
    reading = "no file needed to be read"
    if unproven_files:
        reading = f"{counted(len(unproven_files), 'file')}, {size / 1e9:.2f} GB, read in {seconds:.1f} s"
    proof_text = checkpoint_choice.PROVEN[proof]
    terminal.print_stdout(f"{candidate.name} ({candidate.kind}, step {candidate.step}): {proof_text}; {reading}")


def _candidate_of_name(root: str, name: str) -> ForeignCandidate:
    """Return another framework's checkpoint with this name, the newest for "". Raises NoSuchCheckpoint, OSError."""
    foreign_candidates = newest.candidates(root)
    for candidate in foreign_candidates:
        if name in ("", candidate.name):
            return candidate
    message = f"{root} has no checkpoint of another framework"
    if name:
        message += f" that is called {name}"
    hint = f"for a checkpoint of hyperpod-kit: hyperpod-kit checkpoint verify {root}"
    if foreign_candidates:
        hint = f"it has {foreign_candidates[0].name}"
    raise NoSuchCheckpoint(message, hint=hint)
