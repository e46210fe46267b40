"""Faults drawn at random, one after the other, on one run: it ends with the weights of a run that nobody disturbed.

HPK_FAULT_COUNT faults (100) from seed HPK_FAULT_SEED (1) over 10,000 steps of 40 ms: nearly three hours of steps that
take one second each, which is what a fault meets, at a twenty-fifth of the time. A fault falls into a random step of
the first 6,000 or so; the rest is for a machine on which our own looks take long.

Where a quarter of an hour in one piece is not to be had, HPK_FAULT_KEEP=DIR keeps the run between pieces: after
HPK_FAULT_SECONDS the job is cancelled, its newest checkpoint is compared, and its root put there; the next piece takes
it from there as a new job of the same run, with the next fault. The last one goes to the end and compares.
"""

from __future__ import annotations

import collections
import json
import os
import shutil
import time
from pathlib import Path
from typing import Any, Callable, Dict

import pytest

from hyperpod_kit.checkpoint.repository.format import layout
from tests.faults.job import Job
from tests.faults.random_faults import Fault, drawn, kind
from tests.faults.site import Site, own
from tests.faults.trainer import weights

COUNT = int(os.environ.get("HPK_FAULT_COUNT", "100"))
SEED = int(os.environ.get("HPK_FAULT_SEED", "1"))
KEEP = os.environ.get("HPK_FAULT_KEEP", "")
SECONDS = float(os.environ.get("HPK_FAULT_SECONDS", "inf"))
STEPS = 100 * COUNT
APART = 60
"""Mean number of steps between two faults."""
PAUSE = 0.04
ROOM = 45
"""Steps that a later fault needs at least: the save before it and our own looks take 1.8 s of them."""


def take_up(job: Job) -> Dict[str, Any]:
    """What the piece before has left, with its checkpoint root in place; empty for the first."""
    kept = Path(KEEP, "record.json")
    if not KEEP or not kept.exists():
        return {"seconds": 0.0, "made": 0, "jobs": 0}
    # Not our own notes: this Slurm counts its jobs from 1 again.
    shutil.copytree(Path(KEEP, "root"), job.root, symlinks=True, ignore=shutil.ignore_patterns(".hpk"))
    own(job.root, *job.site.user)
    found: Dict[str, Any] = json.loads(kept.read_text())
    return found


def compare(job: Job) -> None:
    """The newest checkpoint is that of a run that nobody disturbed. Raises AssertionError."""
    newest = job.checkpoints()[-1]
    attempt = layout.parse_checkpoint_id(newest.name)
    assert attempt
    shards = [(newest / layout.shard_file(rank)).read_bytes() for rank in range(2)]
    assert [shard[:32].hex() for shard in shards] == weights(2, attempt.step), newest


def put_away(job: Job, record: Dict[str, Any]) -> None:
    job.site.slurm("scancel", job.id, user=True)
    assert job.finish() == "CANCELLED", job.told()
    compare(job)
    shutil.rmtree(Path(KEEP, "root"), ignore_errors=True)
    shutil.copytree(job.root, Path(KEEP, "root"), symlinks=True)
    Path(KEEP, "record.json").write_text(json.dumps(record))


def make(job: Job, fault: Fault) -> None:
    """At a random step of a launch that has saved; returns when the next one has done a step."""
    job.running()
    # Later faults need a save each, and the run must not end before them.
    step = min(job.progress()[-1]["step"] + fault.after, STEPS - ROOM * (COUNT - fault.number))
    job._wait(f"the step of fault {fault.number}", lambda: job.progress()[-1]["step"] >= step, 60)
    before = (job.attempt(), job.launch())
    reached = job.progress()[-1]["step"]
    print(f"fault {fault.number}: {fault.name} of rank {fault.rank} at step {reached}", flush=True)
    fault.make(job)

    def launched() -> bool:
        return bool(job.launch()) and (job.attempt(), job.launch()) != before

    def unharmed() -> bool:
        # A mount that is back before a rank asks for it costs the job nothing but its log: that descriptor is dead.
        return fault.name == "mount" and saved_step(job) > reached + ROOM

    def end_of_fault() -> str:
        if launched():
            return "launched"
        return "unharmed" if unharmed() else ""

    what = f"a launch after fault {fault.number}, {fault.name} of rank {fault.rank},"
    if job._wait(what, end_of_fault, 180) == "unharmed":
        print(f"fault {fault.number}: the job went on; a new run of its script has a log again", flush=True)
        job.site.slurm("scontrol", "requeue", job.id)
        job._wait(what, launched, 180)


def saved_step(job: Job) -> int:
    """The step of the newest checkpoint; 0 where there is none."""
    attempts = [layout.parse_checkpoint_id(checkpoint.name) for checkpoint in job.checkpoints()]
    return max((attempt.step for attempt in attempts if attempt is not None), default=0)


@pytest.mark.timeout(3600)
def test_faults_at_random(job: Job, site: Site, row: Callable[..., None]) -> None:
    record = take_up(job)
    faults = drawn(kind(site), SEED, COUNT, APART)
    job.submit("--steps", str(STEPS), "--pause", str(PAUSE), "--every", "20", options="--stall 8 --max-requeues 200")
    began = time.time()
    record["jobs"] += 1
    for fault in faults[record["made"] :]:
        if KEEP and time.time() - began > SECONDS:
            break
        make(job, fault)
        record["made"] += 1
    record["seconds"] += time.time() - began
    if record["made"] < COUNT:
        job.running()
        put_away(job, record)
        return
    job.ended_well(STEPS, timeout=600)
    kinds = collections.Counter(fault.name for fault in faults)
    what = ", ".join(f"{number} {name}" for name, number in kinds.most_common())
    row(
        f"{COUNT} faults drawn at random (seed {SEED}) over {STEPS:,} steps",
        f"ends with bit-identical weights; {what}",
        record["seconds"] / COUNT,
        f"mean of a fault and its recovery, {record['jobs']} job{'s' if record['jobs'] > 1 else ''} of one run",
    )
