"""Why Slurm has ended a run, by what `scontrol show job` prints at TERM and afterwards: 22.05.8 and 24.11.5 agree."""

from __future__ import annotations

import pytest

from hyperpod_kit.job.base import allocation
from hyperpod_kit.job.decide.outcome_kind import OutcomeKind
from hyperpod_kit.job.decide.run_end import explain_run_end
from hyperpod_kit.job.records import ledger_row
from hyperpod_kit.slurm.environment import JobEnvironment
from hyperpod_kit.slurm.job_id import JobId
from tests.support.runner import RecordingRunner

NODES = (
    "NodeName=n1 NodeAddr=10.0.0.1 State=IDLE+COMPLETING BootTime=2026-11-22T01:28:54\n"
    "NodeName=n2 NodeAddr=10.0.0.2 State=DOWN BootTime=2026-11-22T01:28:54 Reason=dead [root@2026-11-22T01:53:18]"
)
JOB = JobEnvironment(JobId("2"), 0, ("n1", "n2"), 2)


def look(record: str) -> allocation.Allocation:
    return allocation.query_allocation_else_from_environment(
        RecordingRunner({"squeue job 2": record, "scontrol -o show node": NODES}), JOB
    )


@pytest.mark.parametrize(
    ("what", "record", "kind", "words"),
    [
        (
            "scancel, while the script lives",
            "JobState=COMPLETING Reason=None Restarts=0 ExitCode=0:0 NodeList=n1",
            "cancelled",
            "was cancelled",
        ),
        (
            "scancel, afterwards",
            "JobState=CANCELLED Reason=None Restarts=0 ExitCode=143:0 NodeList=n[1-2]",
            "cancelled",
            "was cancelled",
        ),
        (
            "a node went down",
            "JobState=COMPLETING Reason=None Restarts=1 ExitCode=0:0 NodeList=n1",
            "requeued",
            "back into the queue",
        ),
        (
            "the same, afterwards",
            "JobState=PENDING Reason=BeginTime Restarts=1 ExitCode=0:0 NodeList=",
            "requeued",
            "back into the queue",
        ),
        (
            "the same, --no-requeue",
            "JobState=COMPLETING Reason=NodeDown Restarts=0 ExitCode=0:1 NodeList=n1",
            "node_lost",
            "because of a failed node",
        ),
        (
            "the same, afterwards",
            "JobState=NODE_FAIL Reason=NodeDown Restarts=0 ExitCode=0:1 NodeList=n[1-2]",
            "node_lost",
            "because of a failed node",
        ),
        (
            "requeue, hold",
            "JobState=COMPLETING Reason=job_requeued_in_held_state Restarts=1 NodeList=n[1-2]",
            "requeued",
            "back into the queue",
        ),
        (
            "the time limit",
            "JobState=COMPLETING Reason=TimeLimit Restarts=0 NodeList=n[1-2]",
            "cancelled",
            "at its time limit",
        ),
        (
            "kill -TERM by hand",
            "JobState=RUNNING Reason=None Restarts=0 NodeList=n[1-2]",
            "cancelled",
            "ended by SIGTERM, while the job's state in Slurm is RUNNING",
        ),
    ],
)
def test_why_a_run_ends(what: str, record: str, kind: str, words: str) -> None:
    end = explain_run_end(look(f"JobId=2 {record} BatchHost=n1"), 0, "SIGTERM")
    assert end.kind.value == kind and words in end.explanation, what
    assert end.by_scancel == what.startswith("scancel"), what


def test_a_run_that_has_been_requeued_before_can_still_be_cancelled() -> None:
    seen = look("JobId=2 JobState=COMPLETING Reason=None Restarts=1 NodeList=n1")
    assert explain_run_end(seen, 1).kind is OutcomeKind.CANCELLED


def test_what_cannot_be_known_is_unknown() -> None:
    away = RecordingRunner({"s": (1, "slurm_load_jobs error: Unable to contact slurm controller")})
    assert explain_run_end(allocation.query_allocation_else_from_environment(away, JOB), 0).kind is OutcomeKind.UNKNOWN
    forgot = RecordingRunner({"s": (1, "slurm_load_jobs error: Invalid job id specified")})
    end = explain_run_end(allocation.query_allocation_else_from_environment(forgot, JOB), 0)
    assert end.kind is OutcomeKind.UNKNOWN and "slurmctld has lost its state" in end.explanation


def test_a_node_that_slurm_has_taken_from_the_job_is_still_seen() -> None:
    """Its record lists the nodes that are left: the one that failed is not among them."""
    seen = look("JobId=2 JobState=COMPLETING Reason=None Restarts=1 NodeList=n1")
    assert (seen.nodes, seen.down, seen.before) == (("n1",), (), ("n2",))
    assert seen.starts["n2"].booted > 0


@pytest.mark.parametrize("ahead", [-3600, 0, 3600])
def test_a_node_that_was_started_anew_is_lost_whatever_the_batch_hosts_clock_says(ahead: int) -> None:
    """Of an attempt without an end: what the ledger noted of its nodes is compared, not two machines' clocks."""
    first = "NodeName=n1 NodeAddr=a State=IDLE BootTime=2026-11-22T01:28:54 SlurmdStartTime=2026-11-22T01:29:20"
    again = "NodeName=n1 NodeAddr=a State=IDLE BootTime=2026-11-22T03:10:00 SlurmdStartTime=2026-11-22T03:10:20"
    seen = allocation.query_allocation_else_from_environment(
        RecordingRunner({"squeue job 2": "", "scontrol -o show node": first}), JOB
    )
    starts = allocation.node_starts_for_ledger(seen, ["n1", "n2"])
    assert starts[1] == [0, 0] and ledger_row.problem({"event": "attempt", "starts": starts}) == ""
    when = starts[0][0] + 1800.0 + ahead
    for shown, lost in ((first, ()), (again, ("n1",))):
        runner = RecordingRunner({"scontrol -o show node": shown})
        assert allocation.lost_since(runner, ["n1", "n2"], starts, when) == lost
    older_row = allocation.lost_since(RecordingRunner({"scontrol -o show node": again}), ["n1"], None, 0.0)
    assert older_row == ("n1",)
