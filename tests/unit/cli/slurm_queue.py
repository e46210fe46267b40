"""A Slurm that answers squeue and scontrol as Slurm does, with a queue that a test writes."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence

import pytest

from hyperpod_kit.cli.cluster import jobs_first
from hyperpod_kit.errors import Unreachable
from hyperpod_kit.run import Completed
from hyperpod_kit.slurm.hostlist import expand
from tests.support.slurm_commands import AnsweringRunner


@dataclass
class QueuedJob:
    """One job of the queue."""

    id: str
    nodes: List[str]
    user: str = "alice"
    name: str = "train"
    state: str = "RUNNING"
    requeue: str = "1"
    comment: str = ""
    step: str = ""


@dataclass
class SlurmQueue(AnsweringRunner):
    """What a test writes of a cluster's Slurm.

    `nodes`: name -> reason for which it is drained, "" for none. `captures`: name -> captures in its memory, None for a
    node that does not answer. `before` is called before each look at the queue, `before_count` before each look at the
    captures. `silent`: why no way leads to Slurm, "" when one does. `deaf`: jobs that do not
    save when they are asked.
    """

    nodes: Dict[str, str]
    jobs: List[QueuedJob] = field(default_factory=list)
    captures: Dict[str, Optional[int]] = field(default_factory=dict)
    before_count: Callable[[], object] = lambda: None
    before: Callable[[], object] = lambda: None
    silent: str = ""
    refuses: str = ""
    deaf: Sequence[str] = ()
    orders: List[str] = field(default_factory=list)
    served_since: str = "2026-11-26T10:00:00"
    target: str = "controller"

    def answer(self, argv: List[str], env: Mapping[str, str], input: Optional[str]) -> Completed:
        code, printed = self._answer(argv, env)
        return Completed(tuple(argv), code, "" if code else printed, printed if code else "")

    def _answer(self, argv: List[str], env: Mapping[str, Any]) -> tuple[int, str]:
        if "--steps" in argv:
            return 0, "".join(f"{job.id}.0 {job.step}\n" for job in self.jobs if job.step)
        if argv[0] == "squeue":
            self.before()
            return 0, "".join(self._printed(job, env["SQUEUE_FORMAT2"]) for job in self.jobs)
        if argv[0] == "scancel":
            self.orders.append(f"save {argv[-1]}")
            self.jobs = [job for job in self.jobs if job.id != argv[-1] or job.id in self.deaf]
            return 0, ""
        if argv[1] == "requeue":
            self.orders.append(f"requeue {argv[2]}")
            self.jobs = [job for job in self.jobs if job.id != argv[2]]
            return 0, ""
        if argv[1:3] == ["-o", "show"]:
            known = [name for name in expand(argv[4]) if name in self.nodes]
            return (0, "\n".join(map(self._node, known))) if known else (1, f"Node {argv[4]} not found")
        if self.refuses:
            return 1, self.refuses
        words = dict(word.partition("=")[::2] for word in argv[2:])
        self.orders.append(f"{words['state']} {words['nodename']}")
        for name in expand(words["nodename"]):
            self.nodes[name] = words.get("reason", "")
        return 0, ""

    def _printed(self, job: QueuedJob, wanted: str) -> str:
        values = {
            "JobID": job.id,
            "UserName": job.user,
            "Name": job.name,
            "State": job.state,
            "StartTime": "2026-11-26T22:00:00",
            "NodeList": ",".join(job.nodes),
            "Requeue": job.requeue,
            "BatchFlag": "1",
            "Comment": job.comment,
        }
        parts = [part.partition(":0") for part in wanted.split(",")]
        return "".join(values.get(name, "N/A") + mark for name, _, mark in parts) + "\n"

    def _node(self, name: str) -> str:
        reason = self.nodes[name]
        state = "IDLE+DRAIN" if reason else "IDLE"
        told = f" Reason={reason} [root@2026-11-26T22:00:00]" if reason else ""
        return f"NodeName={name} NodeAddr={name} State={state} SlurmdStartTime={self.served_since}{told}"


def reach(monkeypatch: pytest.MonkeyPatch, queue: SlurmQueue) -> None:
    """Let the commands find that Slurm."""

    @contextlib.contextmanager
    def opened(*_: Any) -> Iterator[SlurmQueue]:
        if queue.silent:
            raise Unreachable(queue.silent)
        yield queue

    def count_unsaved(names: Sequence[str]) -> Dict[str, Optional[int]]:
        queue.before_count()
        return {name: queue.captures.get(name, 0) for name in names}

    monkeypatch.setattr(jobs_first, "open_runner_for_slurm", opened)
    monkeypatch.setattr(jobs_first, "open_unsaved_snapshot_counter", lambda *_: contextlib.nullcontext(count_unsaved))
