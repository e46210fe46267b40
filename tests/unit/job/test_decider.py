"""`job run` as a whole, with real ranks."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from hyperpod_kit.checkpoint.repository import layout
from hyperpod_kit.errors import GaveUp, JobError
from hyperpod_kit.job import allocation, exits, ledger, status, timeline
from hyperpod_kit.job.allocation import Allocation
from tests.unit.job.conftest import Job
from tests.unit.job.toy_trainer import commit_checkpoint


def steps_of(job: Job) -> list[int]:
    return [event["step"] for event in job.said("attempt")]


def test_a_run_without_trouble(job: Job) -> None:
    assert job.run("--steps", "12") == 0
    [attempt] = job.said("attempt")
    assert (attempt["attempt"], attempt["from"], attempt["step"], attempt["rejected"]) == ("7.0.0", "none", 0, [])
    assert [event["class"] for event in job.said("ended")] == ["done"]
    assert all("message" in event for event in job.events)
    [srun] = job.sruns
    assert srun[0] == "--kill-on-bad-exit=1" and "--overlap" not in srun and "--auto-resume=1" not in srun
    records = sorted((job.root / ".hpk" / "exits" / "7.0.0").iterdir())
    assert [json.loads(record.read_text())["code"] for record in records] == [0, 0]


def test_a_crash_is_retried_from_the_newest_checkpoint(job: Job) -> None:
    once = job.base / "once"
    assert job.run("--steps", "12", "--crash", "8:3", "--once", str(once)) == 0
    assert steps_of(job) == [0, 5]
    first, last = job.said("ended")
    assert first["class"] == "crash" and first["first"] == {"rank": 1, "node": "n2", "code": 3, "signal": None}
    assert last["class"] == "done"
    assert "--overlap" in job.sruns[1]
    assert "scontrol requeue 7" not in job.runner.calls
    crashed, _ = timeline.attempts(str(job.root))
    # Rank 1 ended in step 8, which rank 0 may have completed.
    assert crashed.step == 0 and crashed.reached in (7, 8) and crashed.lost == crashed.reached - 5


def test_a_killed_rank_is_named_with_its_signal(job: Job) -> None:
    assert job.run("--steps", "7", "--crash", "6:KILL", "--once", str(job.base / "once")) == 0
    assert job.said("ended")[0]["first"]["signal"] == signal.SIGKILL
    assert "killed by signal 9" in job.said("ended")[0]["message"]


def test_failures_of_another_job_of_the_same_number_are_not_ours(job: Job) -> None:
    """Numbers start again when Slurm's controller has lost its state: the root may know a job 7 from before."""
    state = job.root / ".hpk"
    state.mkdir(parents=True)
    other = {"t": 1, "job": "7", "life": "0ld0ne", "restart": 0}
    rows = [
        {**other, "event": event, "attempt": f"7-0ld0ne.0.{number}", "from": "none", "class": "crash"}
        for number in range(9)
        for event in ("attempt", "ended")
    ]
    (state / "attempts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    job.environment = {**job.environment, "SLURM_TASK_PID": str(os.getpid())}
    assert job.run("--steps", "7") == 0
    [attempt] = job.said("attempt")
    assert attempt["attempt"] not in {row["attempt"] for row in rows} and attempt["attempt"].startswith("7-")
    assert len(list((state / "exits" / attempt["attempt"]).iterdir())) == 2


def test_no_progress_ends_in_giving_up(job: Job) -> None:
    with pytest.raises(GaveUp) as caught:
        job.run("--steps", "9", "--crash", "7", policy={"max_restarts": 2})
    assert caught.value.exit_code == 86
    # once from the start, which brought a checkpoint; then 1 + 2 times from that checkpoint: there is none before it
    assert steps_of(job) == [0, 5, 5, 5]
    assert job.said("gave_up")[0]["why"].startswith("3 failures without a newer valid checkpoint")


def test_a_poison_checkpoint_is_stepped_back_from_once(job: Job) -> None:
    job.root.mkdir()
    for seq, step in ((1, 10), (2, 20), (3, 30)):
        commit_checkpoint(str(job.root), 1, seq, step)
    told = job.base / "told"
    command = [
        "/bin/sh",
        "-c",
        f'[ "$SLURM_PROCID" = 1 ] || exec sleep 60; echo "${{HPK_RESUME_MEMORY:-unset}}" >> {told}; exit 9',
    ]
    with pytest.raises(GaveUp) as caught:
        job.run(command=command, policy={"max_restarts": 50})
    assert steps_of(job) == [30, 30, 20, 20]
    [first, _, back, _] = job.said("attempt")
    assert first["rejected"] == [] and back["rejected"][0]["why"] == "rank 1 exited 9, twice after loading it"
    assert "the one before it, ends in the same way" in caught.value.message
    assert told.read_text().split() == ["unset", "unset", "0", "0"], "memory may hold what was stepped back from"


def test_stepping_back_from_poison_can_be_the_cure(job: Job) -> None:
    job.root.mkdir()
    for seq, step in ((1, 10), (2, 20)):
        commit_checkpoint(str(job.root), 1, seq, step)
    trainer = str(Path(__file__).with_name("toy_trainer.py"))
    command = [
        "/bin/sh",
        "-c",
        'if [ "$HPK_RESUME_STEP" = 20 ]; then [ "$SLURM_PROCID" = 0 ] && exec sleep 60; exit 7; fi; '
        f"exec {sys.executable} {trainer} --steps 30 --pause 0.01",
    ]
    assert job.run(command=command) == 0
    assert steps_of(job) == [20, 20, 10]


def test_the_budget_survives_a_requeue_and_a_release_renews_it(job: Job) -> None:
    once = job.base / "once"
    with pytest.raises(GaveUp):
        job.run("--steps", "9", "--crash", "3", policy={"max_restarts": 0})
    with pytest.raises(GaveUp):
        job.run("--steps", "9", "--crash", "3", restart=1, policy={"max_restarts": 1})
    assert steps_of(job) == [0, 0, 0]
    once.touch()
    assert job.run("--steps", "9", "--crash", "3", "--once", str(once), restart=2) == 0


UNFINISHED = {
    "t": 1,
    "job": "7",
    "restart": 0,
    "event": "attempt",
    "attempt": "7.0.0",
    "from": "none",
    "step": 0,
    "nodes": ["n3", "n4"],
}


@pytest.mark.parametrize(
    ("nodes", "kind", "lost"),
    [
        ("", "unknown", ()),
        ("NodeName=n3 State=IDLE BootTime=1970-01-03T00:00:00\nNodeName=n4 State=IDLE", "node_lost", ("n3",)),
        ("NodeName=n3 State=DOWN*\nNodeName=n4 State=IDLE", "node_lost", ("n3",)),
        ("NodeName=n3 State=IDLE\nNodeName=n4 State=IDLE", "unknown", ()),
    ],
)
def test_an_attempt_without_an_end_is_a_lost_node_where_a_node_was_lost(
    job: Job, nodes: str, kind: str, lost: tuple[str, ...]
) -> None:
    (job.root / ".hpk").mkdir(parents=True)
    (job.root / ".hpk" / "attempts.jsonl").write_text(json.dumps(UNFINISHED) + '\n{"t": 2, "job": "7", "torn')
    exits.write(str(job.root / ".hpk"), "7.0.0", exits.Exit(1, "n2", "", None, 15, 1.0, 2.0, step=12))
    job.runner.answers["scontrol -o show node n[3-4]"] = nodes or (1, "Unable to contact slurm controller")
    assert job.run("--steps", "3", restart=1) == 0
    before, done = timeline.attempts(str(job.root))
    assert (before.name, before.kind, before.nodes_lost, before.reached) == ("7.0.0", kind, lost, 12)
    assert (done.name, done.kind) == ("7.1.0", "done")


def test_the_corrupt_newest_is_passed_over_with_its_reason(job: Job) -> None:
    assert job.run("--steps", "10") == 0
    newest = sorted(job.root.glob("seq-*"))[-1]
    flip(newest / layout.shard_file(0))
    assert job.run("--steps", "12") == 0
    last = job.said("attempt")[-1]
    assert last["step"] == 5
    assert last["rejected"][0]["attempt"] == newest.name and "shard-00000" in last["rejected"][0]["why"]


def test_nothing_valid_is_never_a_start_from_scratch(job: Job) -> None:
    assert job.run("--steps", "10") == 0
    for shard in job.root.glob("seq-*/shard-*"):
        flip(shard)
    before = len(job.sruns)
    job.environment["SLURM_JOB_ID"] = "8"
    job.runner.answers["squeue job 7"] = "JobId=7 JobState=COMPLETED"
    with pytest.raises(GaveUp, match="NoValidCheckpoint"):
        job.run("--steps", "12")
    assert len(job.sruns) == before, "no rank was started"
    assert len(job.said("rejected")) == 2
    [gave_up] = job.said("gave_up")
    assert gave_up["error"] == "NoValidCheckpoint" and len(gave_up["rejected"]) == 2
    assert "scontrol requeue 7" not in job.runner.calls
    done, refused = found = timeline.attempts(str(job.root))
    assert (done.kind, done.then) == ("done", "")
    assert (refused.name, refused.kind, len(refused.rejected)) == ("8.0.-", "none", 2)
    assert "gave_up: NoValidCheckpoint" in status.table(found, timeline.totals(found, 0.0)).splitlines()[-2]


def test_off_means_one_try_with_the_code_of_the_rank(job: Job) -> None:
    job.environment["HPK_AUTO_RESUME"] = "0"
    job.root.mkdir()
    commit_checkpoint(str(job.root), 1, 1, 5)
    assert job.run("--steps", "9", "--crash", "7:9") == 9
    assert steps_of(job) == [5]


def test_the_comment_turns_it_on(job: Job) -> None:
    del job.environment["HPK_AUTO_RESUME"]
    job.runner.answers["squeue job 7"] = "JobId=7 JobState=RUNNING NodeList=n[1-2] Comment=hpk:auto-resume=1"
    assert job.run("--steps", "9", "--crash", "7", "--once", str(job.base / "once")) == 0
    assert len(job.sruns) == 2


def test_a_number_above_one_is_the_number_of_restarts(job: Job) -> None:
    job.environment["HPK_AUTO_RESUME"] = "2"
    with pytest.raises(GaveUp, match="max-restarts 2"):
        job.run("--steps", "9", "--crash", "3")
    assert len(job.sruns) == 3


def test_term_stops_and_never_requeues(job: Job) -> None:
    thread = job.later(signal.SIGTERM, lambda: list(job.root.glob("seq-*")))
    assert job.run("--steps", "5000") == 143
    thread.join()
    assert job.said("ended")[0]["class"] == "cancelled"
    assert len(job.sruns) == 1 and "scontrol requeue 7" not in job.runner.calls


def test_usr1_tells_the_step_and_requeues(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hyperpod_kit.job.decider.REQUEUE_WAIT", 0.2)
    thread = job.later(signal.SIGUSR1, lambda: list(job.root.glob("seq-*")))
    # The step's own USR1 goes through Slurm; here nobody delivers it, so the grace runs out.
    assert job.run("--steps", "5000", grace=0.3) == 75
    thread.join()
    assert job.said("ended")[0]["class"] == "preempted"
    assert "scancel --signal=USR1 7" in job.runner.calls and "scontrol requeue 7" in job.runner.calls


def test_a_rank_that_asks_to_run_again_is_requeued(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hyperpod_kit.job.decider.REQUEUE_WAIT", 0.2)
    assert job.run(command=["/bin/sh", "-c", "exit 75"]) == 75
    assert job.said("ended")[0]["class"] == "again"
    assert job.run(command=["/bin/sh", "-c", "exit 75"], restart=1) == 75
    with pytest.raises(GaveUp, match="handed back 2 times"):
        job.run(command=["/bin/sh", "-c", "exit 75"], restart=2)


def test_a_rank_that_gave_up_is_believed(job: Job) -> None:
    with pytest.raises(GaveUp, match="gave up itself"):
        job.run(command=["/bin/sh", "-c", "exit 86"])
    assert len(job.sruns) == 1


def test_a_command_that_is_not_there_says_so(job: Job, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(GaveUp):
        job.run(command=["/no/such/program"], policy={"max_restarts": 0})
    assert "cannot start /no/such/program" in capfd.readouterr().err
    assert job.said("ended")[0]["first"]["code"] == 127


def test_a_lost_node_ends_the_step_and_requeues(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hyperpod_kit.job.decider.REQUEUE_WAIT", 0.2)
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


def test_a_spare_takes_the_place_of_a_node_that_is_down(job: Job) -> None:
    job.environment.update(SLURM_JOB_NODELIST="n[1-3]", SLURM_NTASKS="2")
    job.runner.answers["squeue job 7"] = "JobId=7 JobState=RUNNING NodeList=n[1-3] Comment=none"
    job.runner.answers["scontrol -o show node"] = "\n".join(
        f"NodeName={name} NodeAddr=127.0.0.1 Port=1 State={state}"
        for name, state in (("n1", "ALLOCATED"), ("n2", "DOWN*"), ("n3", "ALLOCATED"))
    )
    assert job.run("--steps", "1", nodes=2, refused_after=60) == 0
    assert "--nodelist=n[1,3]" in job.sruns[0] and "--nodes=2" in job.sruns[0]


def test_a_run_that_slurm_has_ended_is_no_crash(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slurm requeued the job after a node failure: srun fails before our own TERM arrives."""
    flag = job.base / "ended"
    look = allocation.look
    monkeypatch.setattr(
        allocation,
        "look",
        lambda runner, job: Allocation(("n1", "n2"), "PENDING", down=("n2",)) if flag.exists() else look(runner, job),
    )
    assert job.run(command=["/bin/sh", "-c", f"touch {flag}; exit 1"]) == 143
    assert job.said("ended")[0]["class"] == "node_lost" and job.said("ended")[0]["lost"] == ["n2"]
    assert len(job.sruns) == 1 and "scontrol requeue 7" not in job.runner.calls


def test_a_stall_is_ended_and_retried(job: Job) -> None:
    once = job.base / "once"
    assert job.run("--steps", "12", "--hang", "8", "--once", str(once), stall=3.0) == 0
    first, *more, last = [event["class"] for event in job.said("ended")]
    # On a machine that is very busy an attempt may not even get to its first line in that time.
    assert (first, last) == ("stall", "done") and set(more) <= {"stall"}


def test_a_newer_one_that_cannot_be_read_is_waited_for_before_an_older_one_is_taken(job: Job) -> None:
    job.root.mkdir()
    old, new = (commit_checkpoint(str(job.root), 1, seq, step) for seq, step in ((1, 5), (2, 10)))
    stuck = [True]

    def chooser(root: str, passed_over: object) -> object:
        from hyperpod_kit.checkpoint.repository.selection import Found

        if stuck:
            stuck.pop()
            return Found(old, 1, 1, 5, ((new, "cannot be read: Input/output error"),), (new,))
        return Found(new, 1, 2, 10, ())

    job.chooser = chooser
    assert job.run("--steps", "12") == 0
    assert steps_of(job) == [10]
    assert f"{new} cannot be read" in job.said("storage")[0]["message"]
    stuck.append(True)
    assert job.run("--steps", "12", storage_wait=0.0) == 0
    assert steps_of(job)[-1] == 5


def test_storage_that_does_not_answer_is_waited_for(job: Job) -> None:
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


def test_a_controller_that_does_not_answer_is_waited_for_and_costs_no_restart(job: Job) -> None:
    once, question = job.base / "once", "squeue job 7"
    answer = job.runner.answers[question]
    program = f"test -e {once} && exit 0; touch {once}; exit 3"
    back = threading.Timer(4.0, job.runner.answers.__setitem__, (question, answer))

    def silence() -> None:
        while not once.exists():
            threading.Event().wait(0.01)
        job.runner.answers[question] = (1, "slurm_load_jobs error: Unable to contact slurm controller")
        back.start()

    thread = threading.Thread(target=silence)
    thread.start()
    assert job.run(command=["/bin/sh", "-c", program], policy={"backoff": 2.0}) == 0
    thread.join()
    assert [event["class"] for event in job.said("ended")] == ["crash", "done"]
    assert job.said("controller"), "it was waited for"


def test_a_controller_that_stays_away_is_not_waited_for_without_end(job: Job) -> None:
    job.runner.answers["squeue job 7"] = (1, "Unable to contact slurm controller")
    assert job.run("--steps", "2", controller_wait=0.0) == 0


def test_a_job_that_slurm_has_forgotten_is_not_started_again(job: Job) -> None:
    job.runner.answers["squeue job 7"] = (1, "slurm_load_jobs error: Invalid job id specified")
    assert job.run("--steps", "2") == 143
    assert job.said("attempt") == [] and "no longer knows the job" in job.said("stopped")[0]["message"]


def test_a_requeue_waits_for_the_controller(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hyperpod_kit.job.decider.REQUEUE_WAIT", 0.2)
    question, gone = "squeue job 7", (1, "Unable to contact slurm controller")
    before = dict(job.runner.answers)

    def down_while_it_runs() -> None:
        while not (job.base / "ran").exists():
            threading.Event().wait(0.01)
        job.runner.answers.update({question: gone, "scontrol requeue 7": gone})
        while "scontrol requeue 7" not in job.runner.calls:
            threading.Event().wait(0.01)
        job.runner.answers.update(before)

    thread = threading.Thread(target=down_while_it_runs)
    thread.start()
    program = f"touch {job.base}/ran; sleep 0.5; exit 75"
    assert job.run(command=["/bin/sh", "-c", program]) == 75
    thread.join()
    assert job.runner.calls.count("scontrol requeue 7") >= 2 and job.said("requeue_failed") == []


def test_usr1_while_storage_does_not_answer_puts_the_job_back(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hyperpod_kit.job.decider.REQUEUE_WAIT", 0.2)
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
    with pytest.raises(JobError, match="is not there") as caught:
        job.run("--steps", "2")
    assert caught.value.exit_code == 1
    with pytest.raises(GaveUp, match="is not there"):
        job.run("--steps", "2", restart=1, storage_wait=0)


def test_total_of_requeues_is_bounded(job: Job) -> None:
    with pytest.raises(GaveUp, match="requeued 3 times"):
        job.run("--steps", "2", restart=3, policy={"max_requeues": 2})


def test_hyperpod_is_asked_to_retry_the_step(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hyperpod_kit.job.step.on_hyperpod", lambda runner: True)
    assert job.run("--steps", "2") == 0
    assert "--auto-resume=1" in job.sruns[0]


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[3] ^= 1
    path.write_bytes(data)


def array_task(job: Job, number: str, array: str, task: str) -> None:
    """The job becomes a task of an array whose siblings have other fates."""
    job.environment.update(SLURM_JOB_ID=number, SLURM_ARRAY_JOB_ID=array, SLURM_ARRAY_TASK_ID=task)
    mine = f"JobId={number} ArrayJobId={array} ArrayTaskId={task} JobState=RUNNING NodeList=n[1-2] Comment=none"
    sibling = f"JobId=99 ArrayJobId={array} ArrayTaskId=0 JobState=COMPLETING NodeList=n9"
    job.runner.answers.update(
        {
            f"squeue job {array}_{task}": mine,
            f"squeue job {number}": mine,
            f"squeue job {array}": f"{mine}\n{sibling}",
            f"scontrol requeue {array}_": "",
            "squeue --steps": f"{array}_0.0 hpk-{array}_0.0.0\n",
        }
    )


def test_the_last_task_of_an_array_acts_for_itself_alone(job: Job) -> None:
    array_task(job, "7", "7", "3")
    assert job.run("--steps", "12", "--crash", "8:3", "--once", str(job.base / "once")) == 0
    assert [event["attempt"].rpartition("-")[0] or event["attempt"] for event in job.said("attempt")] == [
        "7_3.0.0",
        "7_3.0.1",
    ]
    about = [call for call in job.runner.calls if call.startswith(("squeue job", "squeue", "scancel"))]
    assert any("squeue --steps --noheader -j 7_3 " in call for call in about)
    assert all("7_3" in call for call in about), "nothing is asked of the array, and no sibling's step is ended"
    assert {row["job"] for row in ledger.read(str(job.root / ".hpk" / "attempts.jsonl"))} == {"7_3"}


def test_what_is_inherited_from_an_array_does_not_count(job: Job) -> None:
    """sbatch inside of an array's task passes SLURM_ARRAY_TASK_ID on to a job that is none."""
    job.environment.update(SLURM_ARRAY_JOB_ID="3", SLURM_ARRAY_TASK_ID="5")
    assert job.run("--steps", "3") == 0
    assert job.said("start")[0]["job"] == "7" and not any("3_5" in call for call in job.runner.calls)


def het(job: Job) -> None:
    job.environment.update(
        SLURM_HET_SIZE="2",
        SLURM_JOB_ID_HET_GROUP_0="7",
        SLURM_JOB_ID_HET_GROUP_1="8",
        SLURM_JOB_NODELIST_HET_GROUP_0="n1",
        SLURM_JOB_NODELIST_HET_GROUP_1="n2",
        SLURM_JOB_NODELIST="n1",
    )
    job.runner.answers["squeue job 7"] = (
        "JobId=7 HetJobId=7 HetJobOffset=0 JobState=RUNNING NodeList=n1 Comment=none\n"
        "JobId=8 HetJobId=7 HetJobOffset=1 JobState=RUNNING NodeList=n2 Comment=none"
    )


def test_a_heterogeneous_job_runs_one_step_over_its_components(job: Job) -> None:
    het(job)
    assert job.run("--steps", "12", "--crash", "8:3", "--once", str(job.base / "once")) == 0
    assert [event["nodes"] for event in job.said("attempt")] == [["n1", "n2"]] * 2
    assert all("--het-group=0,1" in words and "--nodelist=n1" not in words for words in job.sruns)
    assert any(call.startswith("squeue --steps --noheader -j 7,8 ") for call in job.runner.calls)


def test_a_component_can_be_asked_for(job: Job) -> None:
    het(job)
    job.environment["SLURM_NTASKS"] = "1"
    assert job.run("--steps", "3", srun_args=("--het-group=1",)) == 0
    assert job.said("attempt")[0]["nodes"] == ["n2"] and job.sruns[0].index("--het-group=1") > 0


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"nodes": 1}, "a heterogeneous job has no spare nodes"),
        ({"srun_args": ("--het-group=0-2",)}, "this job has the components 0 to 1"),
        ({"srun_args": ("--het-group=x",)}, "this job has the components 0 to 1"),
    ],
)
def test_what_a_heterogeneous_job_cannot_have_is_refused_at_once(job: Job, options: dict[str, Any], why: str) -> None:
    het(job)
    with pytest.raises(JobError, match=why):
        job.run("--steps", "3", **options)
    assert not (job.base / "srun.log").exists()


def test_a_run_that_slurm_queues_again_is_not_called_cancelled(job: Job) -> None:
    """The node that failed is in the job's record no more: only the restart is counted."""
    trainer = f"sleep 30 & echo $! > {job.base}/pid; wait"

    def requeued() -> bool:
        if not (job.base / "pid").exists():
            return False
        job.runner.answers["squeue job 7"] = (
            "JobId=7 JobState=COMPLETING Reason=None Restarts=1 NodeList=n1 Comment=none"
        )
        return True

    signalled = job.later(signal.SIGTERM, requeued)
    assert job.run(command=["/bin/sh", "-c", trainer]) == 143
    signalled.join(20)
    assert [event["class"] for event in job.said("ended")] == ["requeued"]
    [attempt] = timeline.attempts(str(job.root))
    assert "back into the queue" in attempt.then and "cancelled" not in json.dumps(job.events)
