"""One rank of a bench run, in a process of its own: do one phase, leave its result in a file."""

from __future__ import annotations

import json
import os
import sys
import traceback
import warnings
from pathlib import Path
from typing import Any

from hyperpod_kit.checkpoint.bench.assignment import Assignment
from hyperpod_kit.system import atomic_file
from hyperpod_kit.untrusted import by_descriptor


def run(assignment: Assignment) -> None:
    """Never raises: an error is in the result."""
    out = by_descriptor.open_file(assignment.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(out, 1)
    os.dup2(out, 2)
    warnings.simplefilter("ignore")
    try:
        result = _work(assignment)
    except BaseException as err:
        traceback.print_exc()
        result = {"error": f"{type(err).__name__}: {err}"}
    sys.stderr.flush()
    atomic_file.replace(assignment.result, json.dumps(result).encode())
    if assignment.phase in ("leave", "hot"):
        from hyperpod_kit.checkpoint.bench import restoring

        restoring.die()
    os._exit(0 if "error" not in result else 1)


def _work(assignment: Assignment) -> dict[str, Any]:
    import torch

    from hyperpod_kit.checkpoint.bench import restoring, saving, training
    from hyperpod_kit.checkpoint.bench.machine import QuietWait
    from hyperpod_kit.checkpoint.bench.peers import Peers
    from hyperpod_kit.checkpoint.bench.workload import Workload

    torch.set_num_threads(assignment.threads)
    directory = Path(assignment.directory)
    patience = QuietWait(assignment.patience)
    peers = Peers(assignment.rank, assignment.world, directory / f"{assignment.tag}-meeting")
    work = Workload(
        assignment.size,
        assignment.mode,
        peers,
        seed=1 if assignment.phase != "leave" else 2,
        zeros=assignment.phase in ("cold", "hot"),
    )
    root = directory / "root"
    if assignment.phase == "save":
        result = saving.Saving(peers, work, directory, assignment, patience).run()
    elif assignment.phase == "train":
        result = training.measure(peers, work, directory, assignment)
    elif assignment.phase.startswith("replay-"):
        from hyperpod_kit.checkpoint.bench.replaying import Replaying

        result = Replaying(peers, work, directory).run(assignment.phase.partition("-")[2], assignment.repeat)
    elif assignment.phase == "leave":
        result = restoring.leave_in_memory(work, root)
    else:
        tier = "storage" if assignment.phase == "cold" else "memory"
        result = restoring.restore(peers, work, root, tier, assignment.threads, patience)
    if assignment.phase == "save":
        result["digest"] = work.digest()
    peers.barrier()
    result["patience"] = patience.left
    return result
