"""A trainer without torch: counts steps, commits a checkpoint every few, and fails as it is told.

    toy_trainer.py --steps N [--every K] [--pause S] [--crash STEP[:CODE]] [--once FILE] [--hang STEP [--print]]
                   [--slow STEP:S]... [--save-on-usr1]

Ranks go step by step together. Only rank 0 commits. Faults happen on the last rank; with --once, only while FILE
does not exist.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
import uuid
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from hyperpod_kit.checkpoint.repository import commit, selection
from hyperpod_kit.checkpoint.repository.format import digest, layout
from hyperpod_kit.checkpoint.repository.format.manifest import FileRecord, Manifest, now
from hyperpod_kit.checkpoint.repository.read import verify
from hyperpod_kit.checkpoint.repository.records import identity
from hyperpod_kit.checkpoint.repository.store.open import open_store
from hyperpod_kit.errors import CheckpointError, NoValidCheckpoint
from hyperpod_kit.slurm import verdict
from hyperpod_kit.slurm.environment import step_launch_id_with_srun_port
from hyperpod_kit.slurm.progress import ProgressWriter
from hyperpod_kit.slurm.verdict import RestoreVerdict
from tests.support.damage import flip


def commit_checkpoint(root: str, epoch: int, seq: int, step: int) -> str:
    """A small checkpoint in the real format; returns the attempt's name."""
    name = str(layout.CheckpointId(seq, step, epoch, uuid.uuid4().hex[:6]))
    algorithm = digest.algorithm("blake2b")
    data = f"weights of step {step}".encode() * 50
    leaves = algorithm.leaf(data)
    size = len(data) + len(leaves)
    identity.write_run_file_unless_valid(open_store(root), identity.RunIdentity("toy", "toy"))
    open_store(root).create(f"{name}/{layout.shard_file(0)}", data + leaves)
    extra = json.dumps({"step": step}).encode()
    commit.commit(
        root,
        name,
        Manifest(
            run="toy",
            run_id="toy",
            epoch=epoch,
            seq=seq,
            step=step,
            world=1,
            plan="toy",
            digest="blake2b",
            chunk=digest.CHUNK,
            total_bytes=size,
            tensors=1,
            time=now(),
            shards=(FileRecord(layout.shard_file(0), size, digest.root_digest(algorithm, leaves, size), 0),),
            extra=FileRecord(layout.EXTRA_FILE, len(extra), digest.small_object_digest(extra)),
        ),
        extra,
    )
    return name


def restore(root: str, told: str) -> RestoreVerdict:
    """What `Manager.restore` would take of the root: every byte proved. Raises CheckpointError."""
    rejected = []
    for entry in selection.iter_committed_not_excluded_newest_first(
        root, start_at=None if told == "none" else told, also_saved_by_job_attempt=os.environ["HPK_ATTEMPT"]
    ):
        try:
            verify.verify_checkpoint(root, entry.checkpoint_id)
        except CheckpointError as err:
            rejected.append((entry.checkpoint_id, err.message))
        else:
            name = entry.name
            return RestoreVerdict(entry.checkpoint_id, name.step, (name.epoch, name.seq), "storage", tuple(rejected))
    if rejected:
        raise NoValidCheckpoint(root, rejected)
    return RestoreVerdict(verdict.NONE)


class Together:
    """Ranks in lockstep: nobody begins a step before all have ended the one before."""

    def __init__(self, rank: int, ranks: int) -> None:
        place = Path(os.environ["HPK_STATE"], "toy")
        place.mkdir(exist_ok=True)
        # Of this very launch: from the files of the one before, a rank would take another that has not begun for ahead.
        launched = f"{os.environ['HPK_ATTEMPT']}-{step_launch_id_with_srun_port(os.environ)}"
        self._files = [place / f"{launched}-{number}" for number in range(ranks)]
        self._rank = rank

    def ended(self, step: int) -> None:
        self._files[self._rank].write_text(str(step))

    def wait(self, step: int, unless: list[int]) -> None:
        for file in self._files:
            while not unless:
                try:
                    if int(file.read_text()) >= step:
                        break
                except (FileNotFoundError, ValueError):
                    pass
                time.sleep(0.005)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--every", type=int, default=5)
    parser.add_argument("--pause", type=float, default=0.05)
    parser.add_argument("--crash")
    parser.add_argument("--hang", type=int)
    parser.add_argument("--print", action="store_true", help="a rank that hangs goes on printing")
    parser.add_argument("--slow", action="append", default=[], help="a step that takes longer, STEP:SECONDS")
    parser.add_argument("--once")
    parser.add_argument("--spoil", action="store_true", help="damage every checkpoint once it is committed")
    parser.add_argument("--spoil-at", type=int, help="only that of this step")
    parser.add_argument("--save-on-usr1", action="store_true")
    args = parser.parse_args()
    rank, ranks = int(os.environ.get("SLURM_PROCID", 0)), int(os.environ.get("SLURM_NTASKS", 1))
    root = os.environ["HPK_CHECKPOINT_ROOT"]
    try:
        restored = restore(root, os.environ["HPK_RESUME_FROM"])
    except CheckpointError as err:
        if rank == 0:
            reasons = err.reasons if isinstance(err, NoValidCheckpoint) else ()
            verdict.write_verdict_if_under_job_run(
                os.environ, RestoreVerdict("", rejected=reasons, error=type(err).__name__, why=err.message)
            )
        # The first rank that fails takes the others with it, so all wait until rank 0 has said why.
        restored_file = Path(
            verdict.verdict_directory(os.environ["HPK_STATE"], os.environ["HPK_ATTEMPT"]), "restored.json"
        )
        end = time.monotonic() + 20.0
        while time.monotonic() < end and not (restored_file.exists() and restored_file.read_bytes().endswith(b"}")):
            time.sleep(0.02)
        print(err, file=sys.stderr)
        return 1
    if rank == 0:
        verdict.write_verdict_if_under_job_run(os.environ, restored)
    epoch, seq = (restored.order[0] + 1, restored.order[1]) if restored.order else (1, 0)
    first = restored.step
    wanted = []
    if args.save_on_usr1:
        signal.signal(signal.SIGUSR1, lambda *_: wanted.append(1))
    faulty = rank == ranks - 1 and not (args.once and os.path.exists(args.once))
    print(json.dumps({"rank": rank, "from": restored.source, "step": first}), flush=True)
    together = Together(rank, ranks)
    told = ProgressWriter()
    told.report_first_step(first + 1)
    slow = {int(text.partition(":")[0]): float(text.partition(":")[2]) for text in args.slow}
    together.ended(first)
    for step in range(first + 1, args.steps + 1):
        together.wait(step - 1, wanted)
        end = time.monotonic() + slow.get(step, args.pause)
        while time.monotonic() < end:
            time.sleep(0.01)
        if faulty and args.crash and step == int(args.crash.partition(":")[0]):
            if args.once:
                open(args.once, "w").close()
            code = args.crash.partition(":")[2] or "1"
            if code == "KILL":
                os.kill(os.getpid(), signal.SIGKILL)
            return int(code)
        if faulty and args.hang == step:
            if args.once:
                open(args.once, "w").close()
            while args.print:
                print("still waiting", flush=True)
                time.sleep(1.0)
            signal.pause()
        if rank == 0 and (step % args.every == 0 or wanted):
            seq += 1
            name = commit_checkpoint(root, epoch, seq, step)
            if args.spoil or step == args.spoil_at:
                flip(Path(root, name, layout.shard_file(0)), 3)
        if wanted:
            print(json.dumps({"rank": rank, "saved": step}), flush=True)
            return 75
        together.ended(step)
        told.report_completed_step(step)
    print(json.dumps({"rank": rank, "finished": args.steps}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
