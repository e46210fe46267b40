"""The ledger of samples: what each rank received, written as it is received, for a proof afterwards.

A directory with a file for each rank of each launch. A line says where a step begins, how many samples all ranks
received in it, how many fillers there were, and which samples this rank received. Whoever is killed leaves whole lines.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Sequence
from typing import Any

from hyperpod_kit.data.loading.position import DataStep
from hyperpod_kit.environment import HPK_ATTEMPT
from hyperpod_kit.untrusted import by_descriptor

FORMAT = "hpk-ledger/1"

_LAUNCH_VARIABLES = (HPK_ATTEMPT, "SLURM_JOB_ID", "SLURM_RESTART_COUNT", "SLURM_STEP_ID", "TORCHELASTIC_RUN_ID")


def launch_id_from_environment() -> str | None:
    """Identify this launch, the same on all of its ranks; None where nothing does."""
    values = [
        f"{os.environ[name]}" for name in (*_LAUNCH_VARIABLES, "TORCHELASTIC_RESTART_COUNT") if os.environ.get(name)
    ]
    return "-".join(values) or None


class SampleLog:
    """One rank's part of the ledger in `folder`. `launch`: see `launch_id_from_environment`; `meant`: data and
    order."""

    def __init__(
        self, folder: str | os.PathLike[str], *, rank: int, ranks: int, meant: dict[str, Any], launch: str | None = None
    ) -> None:
        name = launch or launch_id_from_environment()
        if name is None:
            if ranks > 1:
                raise ValueError(
                    "several ranks without a name of their launch: give launch= to the ledger, the same on all ranks"
                )
            name = uuid.uuid4().hex
        by_descriptor.make_directories(folder)
        safe = "".join(character if character.isalnum() or character in "-_." else "_" for character in name)
        self._path = os.path.join(folder, f"{safe}.rank-{rank:05d}.{uuid.uuid4().hex[:8]}.jsonl")
        self._handle: int | None = None
        self._head = {"ledger": FORMAT, "launch": name, "rank": rank, "ranks": ranks, **meant}
        self._segment = 0

    def set_data_and_order_of_next_header(self, data_and_order: dict[str, Any]) -> None:
        """Set the data and order that segment headers state from the next one on."""
        self._head.update(data_and_order)

    def write_segment_header(self, position: int) -> None:
        """Write the header of a new segment: at the start, and wherever the position has jumped."""
        if self._handle is None:
            self._handle = by_descriptor.open_own_or_root_file(
                self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644
            )
        self._write_line({**self._head, "segment": self._segment, "begin": position, "begun_ns": time.time_ns()})
        self._segment += 1

    def log_received_samples(self, step: DataStep, samples: Sequence[int], bad_samples: Sequence[int] = ()) -> None:
        """Append a line with what the trainer receives now. `bad_samples`: those that are bad records and passed
        over."""
        line: dict[str, Any] = {"p": step.begin, "n": step.real, "f": step.fillers, "i": list(samples)}
        if bad_samples:
            line["b"] = list(bad_samples)
        self._write_line(line)

    def _write_line(self, line: dict[str, Any]) -> None:
        assert self._handle is not None
        data = json.dumps(line, separators=(",", ":")).encode() + b"\n"
        if os.write(self._handle, data) != len(data):
            raise OSError(28, "a line of the ledger could not be written completely", self._path)
