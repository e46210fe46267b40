"""`job run` while something does not answer or is gone: nodes, storage, slurmctld, a run that Slurm has ended."""

from __future__ import annotations

import itertools
import signal
import socket
import threading
from typing import List, Sequence, Tuple

import pytest

from hyperpod_kit.errors import GaveUp, JobError
from hyperpod_kit.job.base import allocation
from hyperpod_kit.job.base.allocation import Allocation
from hyperpod_kit.job.status import attempt_table, timeline
from hyperpod_kit.job.step import step_name
from hyperpod_kit.job.step.hang import StallRule
from hyperpod_kit.job.step.lifeline import Lifelines
from tests.support.wait import scaled, until
from tests.unit.job.conftest import Job
from tests.unit.job.toy_trainer import commit_checkpoint


def test_a_lost_node_ends_the_step_and_requeues(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hyperpod_kit.job.run.supervisor.REQUEUE_WAIT", 0.2)
    with socket.socket() as alive, socket.socket() as dead:
        alive.bind(("127.0.0.1", 0))
        alive.listen()
        dead.bind(("127.0.0.1", 0))
        job.runner.answers["scontrol -o show node"] = "\n".join(
            f"NodeName={name} NodeAddr=127.0.0.1 Port={sock.getsockname()[1]} State=ALLOCATED"
            for name, sock in (("n1", alive), ("n2", dead))
        )
        assert job.run("--steps", "5000") == 75
    [ended] = job.said("ended")
    assert (ended["class"], ended["lost"]) == ("node_lost", ["n2"])
    assert job.said("intervene")[0]["lost"] == ["n2"]
    assert "scontrol requeue 7" in job.runner.calls


def test_a_spare_takes_the_place_of_a_node_that_is_down(job_in_process: Job) -> None:
    job = job_in_process
    job.environment.update(SLURM_JOB_NODELIST="n[1-3]", SLURM_NTASKS="2")
    job.runner.answers["squeue job 7"] = "JobId=7 JobState=RUNNING NodeList=n[1-3] Comment=none"
    job.runner.answers["scontrol -o show node"] = "\n".join(
        f"NodeName={name} NodeAddr=127.0.0.1 Port=1 State={state}"
        for name, state in (("n1", "ALLOCATED"), ("n2", "DOWN*"), ("n3", "ALLOCATED"))
    )
    assert job.run("--steps", "1", nodes=2, refused_after=60) == 0
    assert "--nodelist=n[1,3]" in job.sruns[0] and "--nodes=2" in job.sruns[0]


@pytest.mark.parametrize(
    ("others", "named"),
    [(("DRAIN", "PLAIN"), "n[1,3]"), (("DRAIN", "DRAIN"), "n[1-2]"), (("PLAIN", "DRAIN"), "n[1-2]")],
)
def test_a_cordoned_node_is_used_only_where_there_is_no_other(
    job_in_process: Job, others: Tuple[str, str], named: str
) -> None:
    job = job_in_process
    job.environment.update(SLURM_JOB_NODELIST="n[1-3]", SLURM_NTASKS="2")
    job.runner.answers["squeue job 7"] = "JobId=7 JobState=RUNNING NodeList=n[1-3] Comment=none"
    job.runner.answers["scontrol -o show node"] = "\n".join(
        f"NodeName={name} NodeAddr=127.0.0.1 Port=1 State=ALLOCATED+{word} Reason=HyperPod:AutoPatch"
        for name, word in zip(("n1", "n2", "n3"), ("PLAIN", *others))
    )
    assert job.run("--steps", "1", nodes=2, refused_after=60) == 0
    assert f"--nodelist={named}" in job.sruns[0] and "--nodes=2" in job.sruns[0]


def test_a_run_that_slurm_has_ended_is_no_crash(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slurm requeued the job after a node failure: srun fails before our own TERM arrives."""
    flag = job.base / "ended"
    look = allocation.query_allocation_else_from_environment
    monkeypatch.setattr(
        allocation,
        "query_allocation_else_from_environment",
        lambda runner, job: Allocation(("n1", "n2"), "PENDING", down=("n2",)) if flag.exists() else look(runner, job),
    )
    assert job.run(command=["/bin/sh", "-c", f"touch {flag}; exit 1"]) == 143
    assert job.said("ended")[0]["class"] == "node_lost" and job.said("ended")[0]["lost"] == ["n2"]
    assert len(job.sruns) == 1 and "scontrol requeue 7" not in job.runner.calls


def test_a_stall_is_ended_and_retried(job: Job) -> None:
    once = job.base / "once"
    assert job.run("--steps", "12", "--hang", "8", "--once", str(once), stall=StallRule.parse(f"{scaled(3):g}")) == 0
    first, *more, last = [event["class"] for event in job.said("ended")]
    # On a machine that is very busy an attempt may not even get to its first line in that time.
    assert (first, last) == ("stall", "done") and set(more) <= {"stall"}


def with_lifelines(job: Job) -> Job:
    """A job whose nodes' addresses are known, so that they report to `job run`."""
    job.environment["SLURMD_NODENAME"] = "n1"
    job.runner.answers["scontrol -o show node"] = "\n".join(
        f"NodeName={name} NodeAddr=127.0.0.1 Port=1 State=ALLOCATED" for name in ("n1", "n2")
    )
    return job


def test_a_wait_that_is_over_between_two_looks_at_it_ends_nothing(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is due at one moment is not any more at the next."""
    answers = itertools.cycle((0.1, None))
    monkeypatch.setattr(Lifelines, "seconds_until_due", property(lambda self: next(answers)))
    assert with_lifelines(job).run("--steps", "3", refused_after=600) == 0
    assert [event["class"] for event in job.said("ended")] == ["done"]


def test_a_hang_of_ranks_that_report_steps_is_found_by_them_and_told(job: Job) -> None:
    """They print all the while. One is a step behind: it is named, and the ledger and `job status` know the step."""
    once = job.base / "once"
    words = ["--steps", "12", "--hang", "8", "--print", "--once", str(once)]
    assert with_lifelines(job).run(*words, stall=StallRule.parse(f"auto:10:{scaled(2):g}"), refused_after=600) == 0
    first, last = job.said("ended")
    assert (first["class"], last["class"]) == ("stall", "done") and first["reached"] == 8
    [intervened] = job.said("intervene")
    assert intervened["ranks"] == [[1, "n2", 7, "step"], [0, "n1", 8, "step"]]
    assert "rank 1 on n2 at step 7 in a step" in intervened["message"] and first["hang"] in intervened["message"]
    found = timeline.attempts(str(job.root))
    assert (found[0].kind, found[0].reached, found[0].lost) == ("stall", 8, 3)
    table = attempt_table.table(found, timeline.totals(found, 0.0)).splitlines()
    assert "rank 1 on n2 at step 7 in a step" in table[1]


def test_a_healthy_job_that_prints_nothing_and_is_slow_at_times_is_left_alone(job: Job) -> None:
    words = ["--steps", "12", "--slow", "4:3", "--slow", "9:4", "--pause", "0.5"]
    assert with_lifelines(job).run(*words, stall=StallRule.parse(f"auto:10:{scaled(2):g}"), refused_after=600) == 0
    assert [event["class"] for event in job.said("ended")] == ["done"] and not job.said("intervene")


@pytest.mark.full
def test_a_newer_one_that_cannot_be_read_is_waited_for_before_an_older_one_is_taken(job_in_process: Job) -> None:
    job = job_in_process
    job.root.mkdir()
    old, new = (commit_checkpoint(str(job.root), 1, seq, step) for seq, step in ((1, 5), (2, 10)))
    stuck = [True]

    def chooser(root: str, passed_over: object) -> object:
        from hyperpod_kit.checkpoint.repository.selection import Selection

        if stuck:
            stuck.pop()
            return Selection(old, 1, 1, 5, ((new, "cannot be read: Input/output error"),), (new,))
        return Selection(new, 1, 2, 10, ())

    job.chooser = chooser
    assert job.run("--steps", "12") == 0
    assert job.started_at() == [10]
    assert f"{new} cannot be read" in job.said("storage")[0]["message"]
    stuck.append(True)
    assert job.run("--steps", "12", storage_wait=0.0) == 0
    assert job.started_at()[-1] == 5


def test_storage_that_does_not_answer_is_waited_for(job_in_process: Job) -> None:
    job = job_in_process
    answers = [OSError(5, "Input/output error")]

    def chooser(root: str, passed_over: object) -> object:
        if answers:
            raise answers.pop()
        from hyperpod_kit.checkpoint.repository.selection import newest_valid

        return newest_valid(root)

    job.chooser = chooser
    assert job.run("--steps", "2") == 0
    # Under load the root itself may be slow to answer, and is waited for too.
    assert any("Input/output error" in event["message"] for event in job.said("storage"))


REPLACES_ITS_ROOT = """
[ -e {base}/once ] && exit 0
[ "$SLURM_PROCID" = 0 ] || exec sleep 60
touch {base}/once
mv {root} {root}.away
mkdir -p {root}/.hpk/exits
exit 3
"""
"""What a cleaner does, or a rename, and then a rank that makes the directories which it writes into."""


def test_a_directory_in_the_place_of_the_root_is_not_trained_in_from_scratch(job: Job) -> None:
    job.root.mkdir()
    commit_checkpoint(str(job.root), 1, 1, 10)
    away = job.root.with_name("root.away")

    def bring_back() -> None:
        until(lambda: job.has_reported("storage"), what="a word of the other directory")
        job.root.rename(job.base / "other")
        away.rename(job.root)

    thread = threading.Thread(target=bring_back)
    thread.start()
    program = REPLACES_ITS_ROOT.format(base=job.base, root=job.root)
    assert job.run(command=["/bin/sh", "-c", program], storage_wait=60.0) == 0
    thread.join()
    assert job.started_at() == [10, 10]
    assert "is not the directory with which this job began" in job.said("storage")[0]["message"]


def test_a_root_that_stays_replaced_holds_the_job(job: Job) -> None:
    job.root.mkdir()
    commit_checkpoint(str(job.root), 1, 1, 10)
    program = REPLACES_ITS_ROOT.format(base=job.base, root=job.root)
    with pytest.raises(GaveUp, match="training would start from scratch") as caught:
        job.run(command=["/bin/sh", "-c", program], storage_wait=0.2)
    assert "scontrol release 7" in str(caught.value.hint) and job.started_at() == [10]


def test_a_controller_that_does_not_answer_is_waited_for_and_costs_no_restart(job: Job) -> None:
    once, silent, question = job.base / "once", job.base / "silent", "squeue job 7"
    answer = job.runner.answers[question]
    program = f"test -e {once} && exit 0; touch {once}; until test -e {silent}; do sleep 0.05; done; exit 3"

    def silence() -> None:
        until(once.exists, what="the first attempt")
        job.runner.answers[question] = (1, "slurm_load_jobs error: Unable to contact slurm controller")
        silent.touch()
        try:
            until(lambda: job.has_reported("controller"), what="a word of the controller")
        finally:
            job.runner.answers[question] = answer

    thread = threading.Thread(target=silence)
    thread.start()
    assert job.run(command=["/bin/sh", "-c", program]) == 0
    thread.join()
    assert [event["class"] for event in job.said("ended")] == ["crash", "done"]
    assert job.said("controller"), "it was waited for"


def test_a_step_that_slurm_still_has_is_ended_and_waited_for_aloud(job_in_process: Job) -> None:
    job = job_in_process
    # Beside it the steps of another `job run` in this allocation, of one of an older bundle, and of the user.
    others = "7.1 hpk.0ther.7.0.0\n7.2 hpk-7.0.0\n7.3 monitor\n7.batch batch\n"
    held = [f"7.0 {step_name.PROCESS_PREFIX}7.0.0\n{others}"] * 3
    job.runner.answers["squeue --steps"] = lambda argv: held.pop() if held else others
    assert job.run("--steps", "12", "--crash", "8", "--once", str(job.base / "once")) == 0
    assert not held
    assert [said["steps"] for said in job.said("sweep")] == [["7.0"]]
    assert "scancel --signal=KILL 7.0" in job.runner.calls


UNHEARD = "".join(
    f"NodeName={name} NodeAddr=127.0.0.1 Port=1 State=ALLOCATED SlurmdStartTime=None\n" for name in ("n1", "n2")
)


def test_nodes_that_have_not_registered_with_a_new_slurmctld_are_waited_for(job_in_process: Job) -> None:
    """srun would be told that they are busy, say nothing, and ask again a minute later or more."""
    job = job_in_process
    question = "scontrol -o show node"
    job.runner.answers[question] = UNHEARD
    heard = UNHEARD.replace("None", "2026-11-23T01:32:15")

    def register() -> None:
        try:
            until(lambda: job.runner.calls.count(f"{question} n[1-2]") > 2, what="a third question")
        finally:
            job.runner.answers[question] = heard

    thread = threading.Thread(target=register)
    thread.start()
    assert job.run("--steps", "2", refused_after=60) == 0
    thread.join()
    [said] = job.said("controller")
    assert "2 nodes have not registered yet, first n1" in said["message"]
    assert job.runner.calls.count(f"{question} n[1-2]") > 2 and len(job.sruns) == 1


def test_nodes_that_never_register_are_not_waited_for_without_end(
    job_in_process: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = job_in_process
    monkeypatch.setattr("hyperpod_kit.job.resume.patience.REGISTERED_WITHIN", 1.0)
    job.runner.answers["scontrol -o show node"] = UNHEARD
    assert job.run("--steps", "2", refused_after=60) == 0
    assert len(job.said("controller")) == 1


def test_a_controller_that_stays_away_is_not_waited_for_without_end(job_in_process: Job) -> None:
    job = job_in_process
    job.runner.answers["squeue job 7"] = (1, "Unable to contact slurm controller")
    assert job.run("--steps", "2", controller_wait=0.0) == 0


def test_a_job_that_slurm_has_forgotten_is_not_started_again(job: Job) -> None:
    job.runner.answers["squeue job 7"] = (1, "slurm_load_jobs error: Invalid job id specified")
    assert job.run("--steps", "2") == 143
    assert job.said("attempt") == [] and "no record of the job any more" in job.said("stopped")[0]["message"]


def test_a_requeue_waits_for_the_controller(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hyperpod_kit.job.run.supervisor.REQUEUE_WAIT", 0.2)
    question, gone = "squeue job 7", (1, "Unable to contact slurm controller")
    before = dict(job.runner.answers)

    refused: List[str] = []

    def requeue_refused(argv: Sequence[str]) -> Tuple[int, str]:
        refused.append(" ".join(argv))
        return gone

    def unheard(argv: Sequence[str]) -> Tuple[int, str]:
        if refused:
            job.runner.answers.update(before)  # the next question is answered
        return gone

    def down_while_it_runs() -> None:
        while not (job.base / "ran").exists():
            threading.Event().wait(0.01)
        job.runner.answers.update({question: unheard, "scontrol requeue 7": requeue_refused})
        (job.base / "down").touch()

    thread = threading.Thread(target=down_while_it_runs)
    thread.start()
    program = f"touch {job.base}/ran; while [ ! -e {job.base}/down ]; do sleep 0.05; done; exit 75"
    assert job.run(command=["/bin/sh", "-c", program]) == 75
    thread.join()
    assert job.runner.calls.count("scontrol requeue 7") >= 2 and job.said("requeue_failed") == []


def test_a_choice_that_hangs_is_left_at_the_first_signal(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mount that hangs in the kernel answers no signal; who waits for it in a thread of its own does."""
    monkeypatch.setattr("hyperpod_kit.job.run.supervisor.REQUEUE_WAIT", 0.2)
    asked: list[str] = []
    over = threading.Event()

    def chooser(root: str, passed_over: object) -> object:
        asked.append(root)
        over.wait(60)
        raise OSError(5, "Input/output error")

    job.chooser = chooser
    thread = job.later(signal.SIGUSR1, lambda: asked)
    assert job.run("--steps", "2") == 75
    assert len(asked) == 1 and not over.is_set()
    over.set()
    thread.join()
    assert "scontrol requeue 7" in job.runner.calls and job.said("attempt") == []


def test_usr1_while_storage_does_not_answer_puts_the_job_back(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hyperpod_kit.job.run.supervisor.REQUEUE_WAIT", 0.2)
    asked: list[str] = []

    def chooser(root: str, passed_over: object) -> object:
        asked.append(root)
        raise OSError(5, "Input/output error")

    job.chooser = chooser
    thread = job.later(signal.SIGUSR1, lambda: asked)
    assert job.run("--steps", "2") == 75
    thread.join()
    assert "scontrol requeue 7" in job.runner.calls and job.said("attempt") == []


def test_a_missing_mount_is_not_a_fresh_root(job: Job) -> None:
    job.root = job.base / "not-mounted" / "trainer" / "run"
    with pytest.raises(JobError, match="does not exist") as caught:
        job.run("--steps", "2")
    assert caught.value.exit_code == 1
    with pytest.raises(GaveUp, match="does not exist"):
        job.run("--steps", "2", restart=1, storage_wait=0)


def test_total_of_requeues_is_bounded(job_in_process: Job) -> None:
    job = job_in_process
    with pytest.raises(GaveUp, match="requeued 3 times"):
        job.run("--steps", "2", restart=3, policy={"max_requeues": 2})


def test_hyperpod_is_asked_to_retry_the_step(job_in_process: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    job = job_in_process
    monkeypatch.setattr("hyperpod_kit.job.step.srun_step.is_hyperpod_step_retry_available", lambda runner: True)
    assert job.run("--steps", "2") == 0
    assert "--auto-resume=1" in job.sruns[0]
