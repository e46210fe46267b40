"""That what is read of Slurm means the same in each: what they print is from real ones (record.py)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Dict, List

import pytest

from hyperpod_kit.errors import RunError
from hyperpod_kit.job.base import allocation
from hyperpod_kit.job.decide.outcome_kind import OutcomeKind
from hyperpod_kit.job.decide.run_end import explain_run_end
from hyperpod_kit.slurm import control, hyperpod, job_states, records, versions
from hyperpod_kit.slurm.environment import JobEnvironment
from hyperpod_kit.slurm.job_id import JobId
from hyperpod_rehearsal.platform.slurm_control import parse_scontrol_node_line
from tests.support.runner import RecordingRunner

PRINTED: List[Dict[str, Any]] = json.loads((Path(__file__).parent / "printed" / "lives.json").read_text())
VERSIONS = sorted({str(case["slurm"]) for case in PRINTED})

each = pytest.mark.parametrize("version", VERSIONS)


def slurm(version: str, what: str = "") -> RecordingRunner:
    """Answers as that Slurm did, of the job in that state."""
    cases = [case for case in PRINTED if case["slurm"] == version and case.get("what", "") in ("", what)]
    return RecordingRunner({case["asked"]: case["printed"] for case in cases})


def number(version: str, what: str) -> str:
    """Of the job that was in that state."""
    [case] = [case for case in PRINTED if case["slurm"] == version and case.get("what") == what]
    return str(case["asked"]).split()[-1]


def test_there_are_an_old_one_one_of_today_and_the_newest() -> None:
    assert [versions.parse_major_minor_or_zero(version) for version in VERSIONS] == [(22, 5), (24, 11), versions.NEWEST]


@each
@pytest.mark.parametrize(
    ("what", "state", "kind"),
    [
        ("running", "RUNNING", OutcomeKind.CANCELLED),  # a signal has ended our script, not Slurm
        ("node down", "PENDING", OutcomeKind.REQUEUED),
        ("gave up", "SPECIAL_EXIT", OutcomeKind.REQUEUED),
        ("held", "PENDING", OutcomeKind.REQUEUED),
        ("cancelled", "CANCELLED", OutcomeKind.CANCELLED),
    ],
)
def test_a_state_and_why_the_run_ended(version: str, what: str, state: str, kind: OutcomeKind) -> None:
    name = number(version, what)
    runner = slurm(version, what)
    assert control.query_job_record(runner, JobId(name))["JobState"] == state
    seen = allocation.query_allocation_else_from_environment(runner, JobEnvironment(JobId(name), 0, ("n1",), 1))
    assert seen.ended is (what != "running")
    assert explain_run_end(seen, 0, "SIGTERM").kind is kind
    assert control.query_job_record(runner, JobId(name)).get("Reason") == (
        "JobHeldUser" if what in ("held", "gave up") else "None"
    )


@each
def test_nodes_with_a_reason_of_ours_and_one_that_looks_like_another_node(version: str) -> None:
    found = control.query_nodes(slurm(version))
    assert {name: node.state for name, node in found.items()} == {
        "n1": "ALLOCATED",
        "n2": "DOWN",
        "n3": "IDLE+DRAIN",
    }
    assert found["n2"].is_down and found["n2"].reason.startswith(f"{control.MOUNT_REASON}fsx: a b [root@")
    assert found["n3"].is_draining and all(node.port > 40000 and node.booted for node in found.values())
    said = parse_scontrol_node_line(slurm(version).answers["scontrol -o show node"].splitlines()[1])  # type: ignore[union-attr]
    assert (said.state, said.reason, said.registered_at > 0) == ("DOWN", "hyperpod-kit:mount:fsx: a b", True)


@each
def test_the_option_of_our_plugin_is_known_as_ours(version: str) -> None:
    assert control.has_option(slurm(version), "srun", "--auto-resume") is True
    assert hyperpod.has_hyperpod_step_retry(slurm(version)) is False


@each
def test_a_job_that_is_unknown_is_no_failure_to_answer(version: str) -> None:
    arrays = json.loads((Path(__file__).parent / "printed" / "arrays.json").read_text())
    [case] = [case for case in arrays if case["slurm"] == version and case["asked"] == "squeue job 999"]
    with pytest.raises(records.UnknownJob):
        control.query_job_record(RecordingRunner({"squeue job 999": (case["code"], case["printed"])}), JobId("999"))
    with pytest.raises(RunError) as caught:
        control.query_job_record(RecordingRunner({"squeue": (1, "Unable to contact slurm controller")}), JobId("999"))
    assert not control.is_unknown_job(caught.value)


@pytest.mark.parametrize("word", ["RESIZING", "SIGNALING", "STOPPED"])
def test_a_flag_of_a_job_whose_script_goes_on_does_not_end_it(word: str) -> None:
    """RESIZING is what HyperPod's step retry makes of a job, for as long as it takes a node away or adds one."""
    runner = RecordingRunner({"squeue job 2": f"JobState={word} Restarts=0 NodeList=n1", "scontrol": ""})
    assert not allocation.query_allocation_else_from_environment(
        runner, JobEnvironment(JobId("2"), 0, ("n1",), 1)
    ).ended


def test_a_requeue_that_is_expedited_is_a_requeue() -> None:
    seen = allocation.Allocation(("n1",), "EXPEDITING", restarts=0)
    assert seen.ended and explain_run_end(seen, 0).kind is OutcomeKind.REQUEUED
    assert "EXPEDITING" in job_states.COMING_BACK and "EXPEDITING" not in job_states.HAS_NODES


@pytest.mark.parametrize(
    ("text", "version"), [("22.05.8", (22, 5)), ("26.05.5-1", (26, 5)), ("", (0, 0)), ("x", (0, 0))]
)
def test_a_version(text: str, version: versions.Version) -> None:
    assert versions.parse_major_minor_or_zero(text) == version
    assert versions.format_version((22, 5)) == "22.05"


@pytest.mark.parametrize(
    ("text", "step"), [("0", "0"), ("17", "17"), ("-5", ""), ("4294967291", ""), ("", ""), ("1\n", ""), ("batch", "")]
)
def test_a_step_of_srun(text: str, step: str) -> None:
    assert versions.srun_step_number_or_empty(text) == step
