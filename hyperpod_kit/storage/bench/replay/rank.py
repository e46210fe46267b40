"""One rank, in a process of its own: do one phase, leave its result in a file."""

from __future__ import annotations

import json
import os
import sys
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hyperpod_kit.storage.bench.replay.assignment import AnyAssignment, Assignment
from hyperpod_kit.system import atomic_file
from hyperpod_kit.untrusted import by_descriptor


def replay_and_exit(assignment: Assignment) -> None:
    """Replay a checkpoint. Never raises: an error is in the result."""
    os._exit(run_and_write_result(assignment, _replay))


def run_and_write_result(assignment: AnyAssignment, work: Callable[[AnyAssignment], dict[str, Any]]) -> int:
    """Run an assignment, leave its result in a file and return the exit code.

    Never raises: an error is in the result.
    """
    out = by_descriptor.open_own_or_root_file(assignment.log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(out, 1)
    os.dup2(out, 2)
    warnings.simplefilter("ignore")
    try:
        result = work(assignment)
    except BaseException as err:
        traceback.print_exc()
        result = {"error": f"{type(err).__name__}: {err}"}
    sys.stderr.flush()
    atomic_file.write_atomically(assignment.result_path, json.dumps(result).encode())
    return int("error" in result)


def _replay(assignment: Assignment) -> dict[str, Any]:
    import torch

    from hyperpod_kit.storage.bench.replay.peers import Peers
    from hyperpod_kit.storage.bench.replay.replaying import Replaying
    from hyperpod_kit.storage.bench.replay.workload import Workload

    torch.set_num_threads(assignment.threads)
    peers = Peers(assignment.rank, assignment.world, assignment.rendezvous_path)
    work = Workload(assignment.size, assignment.mode, peers)
    writer = assignment.phase.partition("-")[2]
    result = Replaying(peers, work, Path(assignment.directory)).time_saves(writer, assignment.repeat)
    peers.barrier()
    return result
