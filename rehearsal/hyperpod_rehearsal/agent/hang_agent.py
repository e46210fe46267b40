"""HyperPod's hung job detection, on a compute node: a job whose output stands still is reported, or cancelled.

Public (AWS's page "Hung job detection"): an agent on each node; off unless the job has HYPERPOD_HANG_RULES in its
environment, the path of a JSON file with `"enabled": true`; an event is written, and the job can be cancelled. The
names of the other rules are not in what is public here: `action` (`notify` or `cancel`) and `timeout_seconds` are
assumed, and that root cancels it with scancel, without a word in the job's record.

Standard library only, Python 3.8: this file runs in a node.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import time
from dataclasses import dataclass
from typing import Dict, List, Optional, Sequence

from hyperpod_rehearsal.agent.main import is_already_created

VARIABLE = b"HYPERPOD_HANG_RULES"
SLURM_BIN = "/opt/slurm/bin"
INTERVAL = 1.0
TIMEOUT = 1800.0
"""Seconds without output after which a job counts as hung, where its rules do not say; assumed."""


@dataclass
class WatchedJob:
    """A job of this node with hang rules. `size`: of its output; `since`: when it last grew, monotonic."""

    rules: str
    output: str
    size: int
    since: float
    reported: bool = False


def rules_by_job(proc: str = "/proc") -> Dict[str, str]:
    """Job id -> path of its rules file, from the environments of this node's processes."""
    found: Dict[str, str] = {}
    for entry in os.listdir(proc):
        if not entry.isdigit():
            continue
        try:
            with open(f"{proc}/{entry}/environ", "rb") as file:
                environment = dict(line.split(b"=", 1) for line in file.read().split(b"\0") if line.count(b"="))
        except OSError:
            continue
        if VARIABLE in environment and b"SLURM_JOB_ID" in environment:
            found[environment[b"SLURM_JOB_ID"].decode()] = environment[VARIABLE].decode()
    return found


def job_output(job: str, node: str) -> Optional[str]:
    """The file of a job's output, None where this node is not its batch host or Slurm does not say."""
    done = subprocess.run(
        [f"{SLURM_BIN}/scontrol", "-o", "show", "job", job],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        universal_newlines=True,
        timeout=30,
    )
    fields = dict(re.findall(r"(\S+?)=(\S*)", done.stdout))
    if fields.get("BatchHost") != node or fields.get("JobState") != "RUNNING":
        return None
    return fields.get("StdOut")


def cancel(job: str) -> None:
    """Cancel a job as root."""
    subprocess.run([f"{SLURM_BIN}/scancel", job], timeout=30, check=True)


class HangAgent:
    """Looks once a second at the jobs of `node`."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._jobs: Dict[str, WatchedJob] = {}

    def look(self, now: float) -> List[str]:
        """Cancel what is due; an event for each job that counts as hung, as one line of JSON."""
        present = rules_by_job()
        self._jobs = {job: watched for job, watched in self._jobs.items() if job in present}
        events: List[str] = []
        for job, rules in present.items():
            watched = self._jobs.get(job)
            if watched is None:
                output = job_output(job, self._node)
                if output:
                    self._jobs[job] = WatchedJob(rules, output, _size(output), now)
                continue
            size = _size(watched.output)
            if size != watched.size:
                watched.size, watched.since, watched.reported = size, now, False
                continue
            event = self._event_if_hung(job, watched, now - watched.since)
            if event:
                events.append(event)
        return events

    @staticmethod
    def _event_if_hung(job: str, watched: WatchedJob, silent: float) -> str:
        with open(watched.rules) as file:
            rules = json.load(file)
        if watched.reported or not rules.get("enabled") or silent < rules.get("timeout_seconds", TIMEOUT):
            return ""
        watched.reported = True
        action = rules.get("action", "notify")
        if action == "cancel":
            cancel(job)
        return json.dumps({"event": "HungJobDetected", "JobId": job, "SilentSeconds": round(silent), "Action": action})


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return -1


def main(argv: Sequence[str]) -> int:
    """Look for ever."""
    agent = HangAgent(socket.gethostname().split(".")[0])
    while True:
        time.sleep(INTERVAL)
        try:
            if is_already_created():
                for event in agent.look(time.monotonic()):
                    print(f"{time.strftime('%Y-%m-%dT%H:%M:%S')} {event}", flush=True)
        except (OSError, ValueError, subprocess.SubprocessError) as err:
            print(f"{time.strftime('%Y-%m-%dT%H:%M:%S')} {err!r}", flush=True)
