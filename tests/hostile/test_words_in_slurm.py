"""What one user writes into Slurm (a comment, a name, a path, an array) must not become a field of another's job.

The queue is a real one, on loopback; root does what the sweep's unit does.
"""

from __future__ import annotations

import json
import os
from typing import Any, Dict, Iterator, List, Tuple

import pytest

from hyperpod_kit import audit
from hyperpod_kit.errors import RunError, RunIsOwned
from hyperpod_kit.job import cli
from hyperpod_kit.job.run import ownership
from hyperpod_kit.run import LocalRunner
from hyperpod_kit.slurm import control, records
from hyperpod_kit.slurm.environment import AWAY_MARK
from hyperpod_kit.slurm.job_id import JobId
from tests.hostile.loopback import ATTACKER, VICTIM, Two, two_users
from tests.support.wait import until

pytestmark = [pytest.mark.rehearsal, pytest.mark.needs("slurm")]

KEYS = [name for name, _ in records.FIELDS]


@pytest.fixture(scope="module")
def two() -> Iterator[Two]:
    with two_users() as found:
        yield found


@pytest.fixture(autouse=True)
def as_root(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SLURM_CONF", "PATH"):
        monkeypatch.setenv(name, two.slurm.environment[name])


def swept(capsys: pytest.CaptureFixture[str]) -> List[Dict[str, Any]]:
    """What root's sweep did."""
    capsys.readouterr()
    assert cli.main(["sweep", "--json"]) == 0
    found: List[Dict[str, Any]] = json.loads(capsys.readouterr().out)["jobs"]
    return found


def forged(job: str, between: str) -> str:
    """A record of that job in which every field that anybody reads is as the attacker wants it."""
    wanted = {
        "JobId": job,
        "ArrayJobId": job,
        "ArrayTaskId": "0",
        "HetJobId": job,
        "HetJobOffset": "0",
        "JobState": "FAILED",
        "Requeue": "1",
        "Restarts": "9",
        "BatchFlag": "1",
        "BatchHost": "n9",
        "NodeList": "n[1-4294967295]",
        "UserId": "0",
        "GroupId": "0",
        "Reason": "NodeDown",
        "Comment": "hpk:elsewhere",
    }
    assert set(wanted) == set(KEYS)
    return f"hpk:elsewhere hpk:auto-resume=0{between}" + between.join(f"{key}={wanted[key]}" for key in KEYS)


WAYS: Tuple[Tuple[str, ...], ...] = (
    ("--comment={}",),
    ("--job-name={}",),
    ("--output={}",),
    ("--error={}",),
    ("--input={}",),
    ("--account={}",),
    ("--wckey={}",),
    ("--export=ALL,X={}",),
    ("--comment={}", "--job-name={}", "--account={}"),
    ("--array=0-2", "--comment={}", "--job-name={}"),
    ("--dependency=singleton", "--comment={}", "--job-name={}"),
)


@pytest.mark.parametrize("between", [" ", "\n", "\t", "@", "|"])
def test_a_forged_record_in_any_text_of_a_job_is_no_record(
    two: Two, capsys: pytest.CaptureFixture[str], between: str
) -> None:
    job = two.train()
    attacks = [
        two.submit(ATTACKER, "--hold", *(word.format(forged(job, between)) for word in way), "--wrap", "true")
        for way in WAYS
    ]
    attacks.append(two.submit(ATTACKER, "--hold", f"--comment={forged(job, between)}", "--wrap", "true", ":", "-N1"))
    try:
        assert swept(capsys) == []
        found = records.query_squeue(LocalRunner())
        assert len({record["JobId"] for record in found}) == len(found)
        theirs = {record["JobId"] for record in found if record["UserId"] == str(ATTACKER)}
        assert theirs >= set(attacks) and job not in theirs
        for attack in attacks:
            mine = records.query_squeue(LocalRunner(), attack)
            assert attack in [record["JobId"] for record in mine]
            assert {(record["JobState"], record["UserId"]) for record in mine} == {("PENDING", str(ATTACKER))}
        assert control.query_job_record(LocalRunner(), JobId(job))["JobState"] == "RUNNING"
        assert two.untouched(job)
    finally:
        two.over(job, *attacks)


def test_a_directory_with_a_forged_name_to_work_in(two: Two, capsys: pytest.CaptureFixture[str]) -> None:
    job = two.train()
    place = two.places[ATTACKER] / f"x\nJobId={job} JobState=FAILED Requeue=1 Comment=hpk:elsewhere"
    place.mkdir()
    os.chown(place, ATTACKER, ATTACKER)
    attack = two.submit(ATTACKER, "--hold", f"--chdir={place}", "--comment=hpk:elsewhere", "--wrap", "true")
    try:
        assert swept(capsys) == [] and two.untouched(job)
    finally:
        two.over(job, attack)


@pytest.mark.parametrize("option", ["--partition", "--reservation", "--constraint", "--qos", "--licenses"])
def test_names_that_slurm_itself_checks(two: Two, capsys: pytest.CaptureFixture[str], option: str) -> None:
    """Whatever of it Slurm takes: nothing comes of it."""
    job = two.train()
    said = two.call(
        ATTACKER,
        "sbatch",
        "--parsable",
        "--hold",
        f"{option}={forged(job, ' ')}",
        "--comment=hpk:elsewhere",
        "--wrap",
        "true",
        check=False,
    )
    attacks = [line for line in said.split() if line.isdigit()]
    try:
        assert swept(capsys) == [] and two.untouched(job)
    finally:
        two.over(job, *attacks)


def test_a_mark_moves_its_own_job_only_and_the_journal_says_whose(
    two: Two, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    said: List[Tuple[str, ...]] = []
    monkeypatch.setattr(
        audit,
        "record_root_action_in_journal",
        lambda action, on, why, *, asked_by, owner="": said.append((action, on, asked_by, owner)),
    )
    job = two.train()
    attack = two.submit(
        ATTACKER,
        "-o",
        "/dev/null",
        "--requeue",
        f"--comment=hpk:elsewhere JobId={job}\nJobId={job} JobState=FAILED Requeue=1 Comment=hpk:elsewhere",
        "--wrap",
        "exit 3",
    )
    until(lambda: two.slurm.state(attack) == "FAILED", what="failed job")
    try:
        assert [one["job_id"] for one in swept(capsys)] == [attack]
        assert said == [("requeued", f"job {attack}", "job sweep", f"uid {ATTACKER}")]
        assert two.untouched(job)
        assert AWAY_MARK not in control.query_job_record(LocalRunner(), JobId(attack)).get("Comment", "")
    finally:
        two.over(job, attack)


def test_an_array_of_the_attackers_gives_no_name_to_another_job(two: Two, capsys: pytest.CaptureFixture[str]) -> None:
    """`11` is all of an array to Slurm's commands: a task of it that failed is queued again, and no other task."""
    job = two.train()
    array = two.submit(
        ATTACKER,
        "-o",
        "/dev/null",
        "--requeue",
        "--array=1-2",
        f"--comment=hpk:elsewhere ArrayJobId={job} ArrayTaskId=0 JobId={job}",
        "--wrap",
        "[ $SLURM_ARRAY_TASK_ID = 1 ] && exit 3; sleep 600",
    )
    until(lambda: two.slurm.state(f"{array}_1") == "FAILED", what="failed task")
    try:
        assert [one["job_id"] for one in swept(capsys)] == [f"{array}_1"]
        assert two.untouched(job)
    finally:
        two.over(job, array)


def test_what_a_person_has_set_for_squeue_hides_no_job_that_lives(
    two: Two, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    """A job that cannot be seen would look like one that has ended, and its checkpoint root like nobody's."""
    job = two.train()
    (tmp_path / "owner-000001.json").write_text(json.dumps({"job": job}))
    try:
        for name, value in (
            ("SQUEUE_USERS", "root"),
            ("SQUEUE_PARTITION", "none"),
            ("SQUEUE_STATES", "PENDING"),
            ("SQUEUE_FORMAT", "%i"),
            ("SQUEUE_NAMES", "x"),
            ("SLURM_CLUSTERS", "elsewhere"),
            ("SQUEUE_FORMAT2", "Comment"),
            ("SQUEUE_SORT", "i"),
        ):
            monkeypatch.setenv(name, value)
        with pytest.raises(RunIsOwned, match=f"is used by job {job}, which is RUNNING"):
            ownership.claim(LocalRunner(), str(tmp_path), JobId("999"), lambda seconds: None, limit=0.0)
    finally:
        two.over(job)


def test_a_claim_that_names_no_job_orders_nothing_of_slurm(two: Two) -> None:
    for name in ("-h", "1 --states=all", "1\n2", "1;2", "../1", "1_", "1_2_3", "\u0661", "1,2,3"):
        with pytest.raises(RunError, match="is not a job number"):
            records.query_squeue(LocalRunner(), name)


def test_a_user_cannot_requeue_or_end_anothers_job_in_any_other_way(two: Two) -> None:
    """What Slurm itself refuses, so that the tests above mean something."""
    job = two.train()
    try:
        for argv in (
            ("scontrol", "requeue", job),
            ("scancel", job),
            ("scontrol", "update", f"jobid={job}", "comment=x"),
        ):
            two.call(ATTACKER, *argv, check=False)
        assert two.untouched(job) and VICTIM != ATTACKER
    finally:
        two.over(job)
