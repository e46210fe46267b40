"""Which job is meant: a plain one, one task of an array, or a heterogeneous job of several components.

The last task of an array has the array's own number: `11` then means all of it to every command of Slurm, and `11_2`
one task. Seen with 22.05 and 24.11: scontrol (show, update, requeue, release), squeue -j and scancel take `11_2` for
pending, running, requeued and ended tasks alike; a task's own number stays the same through a requeue.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Mapping, Tuple

_TASK = re.compile(r"(\d+)_(\d+)")


@dataclass(frozen=True)
class JobId:
    """`raw`: SLURM_JOB_ID, "" where only the name is known. `array`, `task`: of a task of an array.

    `components`: numbers of all parts of a heterogeneous job, its leader's first; `raw` is the leader's.
    """

    raw: str
    array: str = ""
    task: str = ""
    components: Tuple[str, ...] = ()

    @property
    def slurm_id(self) -> str:
        """The id that every command of Slurm takes for this job alone, and that people see: `11`, or `11_2` for a
        task."""
        if self.task:
            return f"{self.array}_{self.task}"
        return self.raw

    @property
    def step_job_ids(self) -> Tuple[str, ...]:
        """Job ids under which its steps run: each component of a heterogeneous job has its own."""
        return self.components or (self.slurm_id,)

    def __str__(self) -> str:
        return self.slurm_id

    def is_other_task_of_same_array(self, other: JobId) -> bool:
        """Return whether both are tasks of one array, and not the same task."""
        return bool(self.task) and self.array == other.array and self.task != other.task

    def matches_record(self, record: Mapping[str, str]) -> bool:
        """Return whether a job's record is of this job (of any component of it)."""
        if self.components:
            return record.get("HetJobId", record.get("JobId")) == self.raw
        if self.raw:
            return record.get("JobId") == self.raw
        return (record.get("ArrayJobId"), record.get("ArrayTaskId")) == (self.array, self.task)

    @classmethod
    def read(cls, env: Mapping[str, str]) -> JobId:
        """Read the job id from the environment of a job. What a job inherited from the one that submitted it does
        not count."""
        raw = env.get("SLURM_JOB_ID", "")
        parts = tuple(env.get(f"SLURM_JOB_ID_HET_GROUP_{offset}", "") for offset in range(het_component_count(env)))
        if len(parts) > 1 and parts[0] == raw and all(parts):
            return cls(raw, components=parts)
        array, task = env.get("SLURM_ARRAY_JOB_ID", ""), env.get("SLURM_ARRAY_TASK_ID", "")
        if array.isdigit() and task.isdigit():
            return cls(raw, array, task)
        return cls(raw)

    @classmethod
    def parse(cls, text: str) -> JobId:
        """Parse what a person types, or what was stored: `11` or `11_2`."""
        match = _TASK.fullmatch(text)
        if match:
            return cls("", match.group(1), match.group(2))
        return cls(text)

    @classmethod
    def from_record(cls, record: Mapping[str, str]) -> JobId:
        """Return the id of the job or array task that a job's record describes."""
        task = record.get("ArrayTaskId", "")
        if task.isdigit() and "ArrayJobId" in record:
            return cls(record.get("JobId", ""), record["ArrayJobId"], task)
        return cls(record.get("JobId", ""))


def het_component_count(env: Mapping[str, str]) -> int:
    """How many components the job of this environment has, 0 for one that is not heterogeneous."""
    text = env.get("SLURM_HET_SIZE", "")
    if text.isdigit():
        return int(text)
    return 0
