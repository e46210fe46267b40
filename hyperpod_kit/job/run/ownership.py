"""Claims of jobs on a checkpoint root, which one job uses at a time: `<root>/.hpk/owner-000003.json`.

The last claim names the job that has the root. Claims are created exclusively and never removed, as epochs are: of two
jobs that start at the same moment one wins. A claim ends with its job, by Slurm's record, so nothing has to be cleaned
up after a crash.
"""

from __future__ import annotations

import json
import os
import re
import time
from typing import Callable, Optional, Tuple

from hyperpod_kit.checkpoint.repository.store import durable
from hyperpod_kit.errors import RunError, RunIsOwned, Unreachable, Untrusted
from hyperpod_kit.job.run import sole_run
from hyperpod_kit.job.step.local_machine import is_local_job
from hyperpod_kit.run import Runner
from hyperpod_kit.slurm import control
from hyperpod_kit.slurm.job_id import JobId
from hyperpod_kit.slurm.job_states import COMING_BACK, COMPLETING
from hyperpod_kit.untrusted import files, parse

ENDED, RUNNING, UNHEARD = "ENDED", "RUNNING", ""

_NAME = re.compile(r"owner-([0-9]{6,})\.json")
_JOB = re.compile(r"[0-9]{1,18}(?:_[0-9]{1,18})?")
_LONGEST = 4096
_WRITING = 10.0
"""Seconds that a claim may be there without its text, where a file system cannot create it whole."""


def claim(
    runner: Runner,
    state: str,
    job: JobId,
    pause: Callable[[float], None],
    *,
    limit: float = 120.0,
    root: str = "",
) -> str:
    """Claim the root for this job, unless the job has it; return the path of the claim.

    Args:
        runner: Runs scontrol.
        state: The directory of the root's records.
        job: This job.
        pause: Waits so many seconds.
        limit: Seconds to wait for the end of a job whose state is COMPLETING or not known.
        root: Given where `state` is not in it.

    Raises:
        RunIsOwned: Another live job has the root.
        Unreachable: Slurm did not answer within `limit` seconds whether that job is alive.
        OSError: The claims cannot be read or written.
    """
    end = time.monotonic() + limit
    root = root or os.path.dirname(state)
    while True:
        number, owner = _number_and_job_of_last_claim(state, pause)
        if owner == job.slurm_id:
            return _claim_path(state, number)
        word = _state_of_owner(runner, state, owner, job.slurm_id)
        if word in COMING_BACK or (word == COMPLETING and time.monotonic() >= end):
            raise _owned(root, job, JobId.parse(str(owner)), word)
        if word in (COMPLETING, UNHEARD):
            if time.monotonic() >= end:
                raise Unreachable(
                    f"{root} was used by job {owner}, and Slurm reports no state of that job",
                    hint=f"scontrol show job {owner}",
                )
            pause(1.0)
            continue
        body = json.dumps({"job": job.slurm_id, "t": round(time.time(), 3)}).encode() + b"\n"
        path = _claim_path(state, number + 1)
        try:
            durable.write_once(path, body)
            return path
        except FileExistsError:
            continue


def live_job_on_root_and_its_state(runner: Runner, state: str, pause: Callable[[float], None]) -> Tuple[str, str]:
    """Return the live job that has the root and Slurm's word for its state; ("", "") when there is none.

    Raises Unreachable when Slurm does not answer whether the job is alive, OSError.
    """
    try:
        _, owner = _number_and_job_of_last_claim(state, pause)
    except FileNotFoundError:
        return "", ""
    word = _state_of_owner(runner, state, owner)
    if word == UNHEARD:
        raise Unreachable(
            f"{os.path.dirname(state)} was used by job {owner}, and Slurm reports no state of that job",
            hint=f"scontrol show job {owner}",
        )
    if word in COMING_BACK or word == COMPLETING:
        return str(owner), word
    return "", ""


def _owned(root: str, job: JobId, owner: JobId, word: str) -> RunIsOwned:
    if job.is_other_task_of_same_array(owner):
        return RunIsOwned(
            f"{root} is used by job {owner}, which is {word}, and job {job} is another task of the same array: each "
            "task needs its own root",
            hint=f"--checkpoint-root {root}-$SLURM_ARRAY_TASK_ID",
        )
    end_it = f"scancel {owner}"
    if is_local_job(owner.slurm_id):
        end_it = "press Ctrl-C in its terminal"
    return RunIsOwned(
        f"{root} is used by job {owner}, which is {word}, and this is job {job}",
        hint=f"give each job its own root, or end that job first: {end_it}",
    )


def _claim_path(state: str, number: int) -> str:
    return os.path.join(state, f"owner-{number:06d}.json")


def _number_and_job_of_last_claim(state: str, pause: Callable[[float], None]) -> Tuple[int, Optional[str]]:
    """Return the number of the last claim and its job, which is None without a claim or in an incomplete one."""
    numbers = [int(match.group(1)) for match in map(_NAME.fullmatch, os.listdir(state)) if match]
    if not numbers:
        return 0, None
    path = _claim_path(state, max(numbers))
    end = time.monotonic() + _WRITING
    while True:
        job = _job_in_claim_or_none(path)
        if job or time.monotonic() >= end:
            return max(numbers), job
        pause(0.2)


def _job_in_claim_or_none(path: str) -> Optional[str]:
    """Return the job that a claim names, None when the claim is incomplete. Raises OSError."""
    try:
        named = str(parse.parse_json_object(files.read_small_regular_file(path, most=_LONGEST)).get("job"))
    except (ValueError, Untrusted):
        return None
    if not _JOB.fullmatch(named) and not is_local_job(named):
        return None
    return named


def _state_of_owner(runner: Runner, state: str, owner: Optional[str], job: str = "") -> str:
    """Return Slurm's word for the state of the owner, also of one that Slurm does not know. Raises OSError."""
    if not owner:
        return ENDED
    if is_local_job(owner):
        # A local job asks with the lock of the root in its hands.
        if is_local_job(job) or not sole_run.is_local_run_alive(state):
            return ENDED
        return RUNNING
    return _job_state_ended_or_unheard(runner, JobId.parse(owner))


def _job_state_ended_or_unheard(runner: Runner, job: JobId) -> str:
    """Return Slurm's word for a job's state; ENDED for a job that it does not know, UNHEARD without an answer."""
    try:
        return control.query_job_record(runner, job).get("JobState", UNHEARD)
    except RunError as err:
        if control.is_unknown_job(err):
            return ENDED
        return UNHEARD
