"""One rank of a bench run, in a process of its own: do one phase, leave its result in a file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from hyperpod_kit.storage.bench.replay.rank import run_and_write_result
from hyperpod_lab.checkpoint_bench.timed_assignment import TimedAssignment


def run_phase_and_exit(assignment: TimedAssignment) -> None:
    """Run the phase of one rank, leave its result in a file, and end the process; an error is in the result."""
    code = run_and_write_result(assignment, _run_phase)
    if assignment.phase in ("leave", "hot"):
        from hyperpod_lab.checkpoint_bench import restoring

        restoring.kill_self()
    os._exit(code)


def _run_phase(assignment: TimedAssignment) -> dict[str, Any]:
    import torch

    from hyperpod_kit.storage.bench.replay.peers import Peers
    from hyperpod_lab.checkpoint_bench import restoring, saving, training
    from hyperpod_lab.checkpoint_bench.machine import QuietWait
    from hyperpod_lab.checkpoint_bench.trained_workload import TrainedWorkload

    torch.set_num_threads(assignment.threads)
    directory = Path(assignment.directory)
    patience = QuietWait(assignment.patience)
    peers = Peers(assignment.rank, assignment.world, assignment.rendezvous_path)
    seed = 1
    if assignment.phase == "leave":
        seed = 2
    zeros = assignment.phase in ("cold", "hot")
    work = TrainedWorkload(assignment.size, assignment.mode, peers, seed=seed, zeros=zeros)
    root = directory / "root"
    if assignment.phase == "save":
        figures = saving.Saving(peers, work, directory, assignment, patience).take_all_samples()
    elif assignment.phase == "train":
        figures = training.measure_overlapped_and_blocking_training(peers, work, directory, assignment)
    elif assignment.phase == "leave":
        figures = restoring.save_and_leave_in_memory(work, root)
    elif assignment.phase == "cold":
        figures = restoring.measure_restore(peers, work, root, "storage", assignment.threads, patience)
    else:
        figures = restoring.measure_restore(peers, work, root, "memory", assignment.threads, patience)
    if assignment.phase == "save":
        figures["digest"] = work.digest()
    peers.barrier()
    figures["patience"] = patience.remaining
    return figures
