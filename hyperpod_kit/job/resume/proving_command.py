"""`job prove`: what is known of a checkpoint of another framework, and what is not known yet read now.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import argparse
import functools
import os
import time
from typing import Mapping

from hyperpod_kit.errors import CheckpointError, NoSuchCheckpoint, Unreachable
from hyperpod_kit.job.foreign import newest, proving
from hyperpod_kit.job.foreign.proven import ProvenFiles
from hyperpod_kit.job.resume import checkpoint_choice, proving_part, proving_watch
from hyperpod_kit.job.step.options import RunOptions
from hyperpod_kit.untrusted import terminal


def main(args: argparse.Namespace, env: Mapping[str, str]) -> int:
    """The command that was parsed; its exit code. Raises HyperpodKitError."""
    root = os.path.abspath(args.root)
    proven = ProvenFiles(root, RunOptions(root, ()).state)
    try:
        if args.watch:
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
    foreign_candidates = newest.candidates(root)
    candidate = next((checkpoint for checkpoint in foreign_candidates if name in ("", checkpoint.name)), None)
    if candidate is None:
        raise NoSuchCheckpoint(
            f"{root} has no checkpoint of another framework" + (f" that is called {name}" if name else ""),
            hint=f"it has {foreign_candidates[0].name}"
            if foreign_candidates
            else f"of our own: hyperpod-kit checkpoint verify {root}",
        )
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
            {
                "checkpoint": candidate.name,
                "kind": candidate.kind,
                "step": candidate.step,
                "proof": proof,
                "files_read": len(unproven_files),
                "bytes_read": size,
                "seconds": round(seconds, 3),
            }
        )
        return
    read = (
        f"{len(unproven_files)} files, {size / 1e9:.2f} GB, read in {seconds:.1f} s"
        if unproven_files
        else "no file had to be read"
    )
    proof_text = checkpoint_choice.PROVEN[proof]
    terminal.print_stdout(f"{candidate.name} ({candidate.kind}, step {candidate.step}): {proof_text}; {read}")
