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
from hyperpod_kit.job import checkpoint_choice, proving_part, proving_watch
from hyperpod_kit.job.foreign import newest, proving
from hyperpod_kit.job.foreign.proven import ProvenFiles
from hyperpod_kit.job.options import RunOptions
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
    found = newest.candidates(root)
    candidate = next((one for one in found if name in ("", one.name)), None)
    if candidate is None:
        raise NoSuchCheckpoint(
            f"{root} has no checkpoint of another framework" + (f" that is called {name}" if name else ""),
            hint=f"it has {found[0].name}" if found else f"of our own: hyperpod-kit checkpoint verify {root}",
        )
    try:
        left = proving.left_to_prove(root, candidate, proven)
        size, began = sum(os.path.getsize(os.path.join(root, file)) for file in left), time.monotonic()
        proof = proving.read_unproven_files_and_weakest_proof(root, candidate, proven)
    except FileNotFoundError as err:
        raise CheckpointError(f"{candidate.name}: {err.filename or err} is missing") from err
    except CheckpointError as err:
        raise CheckpointError(f"{candidate.name}: {err.message}", hint=err.hint) from err
    seconds = time.monotonic() - began
    if as_json:
        terminal.print_json(
            {
                "checkpoint": candidate.name,
                "kind": candidate.kind,
                "step": candidate.step,
                "proof": proof,
                "files_read": len(left),
                "bytes_read": size,
                "seconds": round(seconds, 3),
            }
        )
        return
    read = f"{len(left)} files, {size / 1e9:.2f} GB, read in {seconds:.1f} s" if left else "no file had to be read"
    said = checkpoint_choice.PROVEN[proof]
    terminal.print_stdout(f"{candidate.name} ({candidate.kind}, step {candidate.step}): {said}; {read}")
