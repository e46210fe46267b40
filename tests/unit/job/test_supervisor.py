"""`job run` as a whole, with real ranks."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import pytest

from hyperpod_kit.checkpoint.repository.format import layout
from hyperpod_kit.checkpoint.repository.store import posix
from hyperpod_kit.errors import GaveUp, JobError
from hyperpod_kit.job.base import exits
from hyperpod_kit.job.status import attempt_table, timeline
from hyperpod_kit.job.step import step_name
from tests.support.damage import flip
from tests.unit.job.conftest import Job
from tests.unit.job.toy_trainer import commit_checkpoint


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
    assert job.started_at() == [0, 5]
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


def test_failures_of_another_job_of_the_same_number_are_not_ours(job_in_process: Job) -> None:
    """Numbers start again when Slurm's controller has lost its state: the root may know a job 7 from before."""
    job = job_in_process
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


def test_no_progress_ends_in_giving_up(job_in_process: Job) -> None:
    job = job_in_process
    with pytest.raises(GaveUp) as caught:
        job.run("--steps", "9", "--crash", "7", policy={"max_restarts": 2})
    assert caught.value.exit_code == 86
    # once from the start, which brought a checkpoint; then 1 + 2 times from that checkpoint: there is none before it
    assert job.started_at() == [0, 5, 5, 5]
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
    assert job.started_at() == [30, 30, 20, 20]
    [first, _, back, _] = job.said("attempt")
    assert first["rejected"] == [] and back["rejected"][0]["why"] == "rank 1 exited 9, twice after loading it"
    assert "the checkpoint before it, fails in the same way" in caught.value.message
    assert told.read_text().split() == ["unset", "unset", "0", "0"], "memory may hold what was stepped back from"


@pytest.mark.full
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
    assert job.started_at() == [20, 20, 10]


def test_the_budget_survives_a_requeue_and_a_release_renews_it(job_in_process: Job) -> None:
    job = job_in_process
    once = job.base / "once"
    with pytest.raises(GaveUp):
        job.run("--steps", "9", "--crash", "3", policy={"max_restarts": 0})
    with pytest.raises(GaveUp):
        job.run("--steps", "9", "--crash", "3", restart=1, policy={"max_restarts": 1})
    assert job.started_at() == [0, 0, 0]
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
    job_in_process: Job, nodes: str, kind: str, lost: tuple[str, ...]
) -> None:
    job = job_in_process
    (job.root / ".hpk").mkdir(parents=True)
    (job.root / ".hpk" / "attempts.jsonl").write_text(json.dumps(UNFINISHED) + '\n{"t": 2, "job": "7", "torn')
    exits.write(str(job.root / ".hpk"), "7.0.0", exits.Exit(1, "n2", "", None, 15, 1.0, 2.0, step=12))
    job.runner.answers["scontrol -o show node n[3-4]"] = nodes or (1, "Unable to contact slurm controller")
    assert job.run("--steps", "3", restart=1) == 0
    before, done = timeline.attempts(str(job.root))
    assert (before.name, before.kind, before.nodes_lost, before.reached) == ("7.0.0", kind, lost, 12)
    assert (done.name, done.kind) == ("7.1.0", "done")


def test_the_corrupt_newest_is_passed_over_with_its_reason(job_in_process: Job) -> None:
    job = job_in_process
    assert job.run("--steps", "10") == 0
    newest = sorted(job.root.glob("seq-*"))[-1]
    flip(newest / layout.shard_file(0), 3)
    assert job.run("--steps", "12") == 0
    # Its files are all there, so it is what the ranks are told of; they prove its bytes, and go back.
    assert job.said("attempt")[-1]["from"] == newest.name
    last = job.said("restored")[-1]
    assert (last["step"], last["tier"]) == (5, "storage")
    assert last["rejected"][0]["attempt"] == newest.name and "shard-00000" in last["rejected"][0]["why"]
    [*_, attempt] = timeline.attempts(str(job.root))
    assert (attempt.step, attempt.tier, attempt.rejected[0]["attempt"]) == (5, "storage", newest.name)


def test_whoever_wants_it_has_every_byte_read_before_a_rank_is_started(job_in_process: Job) -> None:
    job = job_in_process
    assert job.run("--steps", "10") == 0
    newest = sorted(job.root.glob("seq-*"))[-1]
    flip(newest / layout.shard_file(0), 3)
    assert job.run("--steps", "12", prove_bytes=True) == 0
    last = job.said("attempt")[-1]
    assert last["step"] == 5
    assert last["rejected"][0]["attempt"] == newest.name and "shard-00000" in last["rejected"][0]["why"]


def test_the_decision_reads_no_data(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """The batch host would read for minutes what the ranks read again, on all nodes at once."""
    assert job.run("--steps", "10") == 0

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the batch host opened a shard")

    monkeypatch.setattr(posix.PosixStore, "open_read", refuse)
    assert job.run("--steps", "12") == 0 and job.said("restored")[-1]["step"] == 10


def test_a_missing_file_is_seen_without_reading_one(job_in_process: Job) -> None:
    job = job_in_process
    assert job.run("--steps", "10") == 0
    newest = sorted(job.root.glob("seq-*"))[-1]
    (newest / layout.shard_file(0)).unlink()
    assert job.run("--steps", "12") == 0
    last = job.said("attempt")[-1]
    assert last["step"] == 5 and last["rejected"] == [
        {"attempt": newest.name, "why": "shard-00000.safetensors is missing"}
    ]


def test_a_new_checkpoint_that_is_damaged_renews_no_budget(
    job_in_process: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each attempt commits one that nobody can read, and fails: only what was restored counts as progress."""
    job = job_in_process
    assert job.run("--steps", "5") == 0
    with pytest.raises(GaveUp, match="failures without a newer valid checkpoint"):
        job.run("--steps", "20", "--crash", "12", "--spoil", policy={"max_restarts": 2})
    assert {event["step"] for event in job.said("restored")[1:]} == {5}
    assert len(job.said("restored")) <= 6


def test_nothing_valid_is_never_a_start_from_scratch(job_in_process: Job) -> None:
    job = job_in_process
    assert job.run("--steps", "10") == 0
    for shard in job.root.glob("seq-*/shard-*"):
        flip(shard, 3)
    before = len(job.sruns)
    job.environment["SLURM_JOB_ID"] = "8"
    job.runner.answers["squeue job 8"] = str(job.runner.answers["squeue job 7"]).replace("JobId=7", "JobId=8")
    job.runner.answers["squeue job 7"] = "JobId=7 JobState=COMPLETED"
    with pytest.raises(GaveUp, match="NoValidCheckpoint"):
        job.run("--steps", "12")
    assert len(job.sruns) == before + 1, "the ranks are asked once, and not again"
    assert len(job.said("rejected")) == 2
    [gave_up] = job.said("gave_up")
    assert gave_up["error"] == "NoValidCheckpoint" and len(gave_up["rejected"]) == 2
    assert "scontrol requeue 7" not in job.runner.calls
    done, refused = found = timeline.attempts(str(job.root))
    assert (done.kind, done.then) == ("done", "")
    assert (refused.name, refused.kind, refused.code) == ("8.0.0", "crash", 1)
    assert "gave_up: NoValidCheckpoint" in attempt_table.table(found, timeline.totals(found, 0.0)).splitlines()[-2]


def test_going_back_on_purpose_stays_so_after_every_kind_of_restart(job_in_process: Job) -> None:
    job = job_in_process
    assert job.run("--steps", "20") == 0
    _, ten, *later = (path.name for path in sorted(job.root.glob("seq-*")))
    job.environment["SLURM_JOB_ID"] = "8"
    job.runner.answers["squeue job 8"] = str(job.runner.answers["squeue job 7"]).replace("JobId=7", "JobId=8")
    job.runner.answers["squeue job 7"] = "JobId=7 JobState=COMPLETED"
    once = job.base / "once"
    # It fails before it has saved anything: the retry goes back to the same, and not to what was left.
    assert job.run("--steps", "17", "--crash", "12", "--once", str(once), rewind_to=ten) == 0
    assert [event["from"] for event in job.said("restored")] == ["none", ten, ten]
    assert [event["now"] for event in job.said("rewound")] == [True]
    # Slurm runs the same script again, --from and all.
    assert job.run("--steps", "22", restart=1, rewind_to=ten) == 0
    assert [event["now"] for event in job.said("rewound")] == [True, False]
    assert job.said("restored")[-1]["step"] == 15 and job.said("restored")[-1]["order"][0] > 1
    assert all((job.root / name).is_dir() for name in later), "what was left lies where it was"


def test_a_step_back_gives_new_budgets(job_in_process: Job) -> None:
    job = job_in_process
    assert job.run("--steps", "20") == 0
    _, ten, *_ = (path.name for path in sorted(job.root.glob("seq-*")))
    with pytest.raises(GaveUp, match="1 failure without a newer valid checkpoint"):
        job.run("--steps", "30", "--crash", "21", policy={"max_restarts": 0})
    assert job.run("--steps", "20", rewind_to=ten, policy={"max_restarts": 0}) == 0


def test_nobody_goes_back_to_what_is_not_there(job_in_process: Job) -> None:
    job = job_in_process
    assert job.run("--steps", "5") == 0
    with pytest.raises(JobError, match="cannot go back to seq-000009") as caught:
        job.run("--steps", "5", rewind_to="seq-000009.step-0000000009.e1-abcd")
    assert "checkpoint ls" in str(caught.value.hint)


def test_off_means_one_try_with_the_code_of_the_rank(job_in_process: Job) -> None:
    job = job_in_process
    job.environment["HPK_AUTO_RESUME"] = "0"
    job.root.mkdir()
    commit_checkpoint(str(job.root), 1, 1, 5)
    assert job.run("--steps", "9", "--crash", "7:9") == 9
    assert job.started_at() == [5]


def test_the_comment_turns_it_on(job_in_process: Job) -> None:
    job = job_in_process
    del job.environment["HPK_AUTO_RESUME"]
    job.runner.answers["squeue job 7"] = "JobId=7 JobState=RUNNING NodeList=n[1-2] Comment=hpk:auto-resume=1"
    assert job.run("--steps", "9", "--crash", "7", "--once", str(job.base / "once")) == 0
    assert len(job.sruns) == 2


def test_a_number_above_one_is_the_number_of_restarts(job_in_process: Job) -> None:
    job = job_in_process
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


@pytest.mark.parametrize(
    ("comment", "updates"),
    [
        ("none", ["scontrol update jobid=7 comment=none hpk:requeue-after-cancel=0"]),
        ("(null)", ["scontrol update jobid=7 comment=hpk:requeue-after-cancel=0"]),
        ("hpk:auto-resume=1 hpk:requeue-after-cancel=0", []),
    ],
)
def test_whose_cancel_is_not_the_end_is_said_while_the_job_runs(
    job_in_process: Job, comment: str, updates: list[str]
) -> None:
    job = job_in_process
    job.runner.answers["squeue job 7"] = f"JobId=7 JobState=RUNNING NodeList=n[1-2] Comment={comment}"
    job.runner.answers["scontrol update"] = ""
    assert job.run("--steps", "1", requeue_after_cancel=0) == 0
    assert [call for call in job.runner.calls if call.startswith("scontrol update")] == updates


def test_a_job_that_cannot_be_marked_says_that_a_cancel_is_its_end(job_in_process: Job) -> None:
    assert job_in_process.run("--steps", "1", requeue_after_cancel=0) == 0
    assert (
        "the job will not be requeued if it is cancelled" in job_in_process.said("requeue_after_cancel")[0]["message"]
    )


def test_usr1_tells_the_step_and_requeues(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hyperpod_kit.job.run.supervisor.REQUEUE_WAIT", 0.2)
    thread = job.later(signal.SIGUSR1, lambda: list(job.root.glob("seq-*")))
    # Of another `job run`, of the user's own, and ours.
    steps = f"7.0 hpk.0ther.7.0.0\n7.1 monitor\n7.2 {step_name.PROCESS_PREFIX}7.0.0\n7.3 hpk-7.0.0\n7.batch batch\n"
    job.runner.answers["squeue --steps"] = steps
    # The step's own USR1 goes through Slurm; here nobody delivers it, so the grace runs out.
    assert job.run("--steps", "5000", grace=0.3) == 75
    thread.join()
    assert job.said("ended")[0]["class"] == "preempted"
    assert "scancel --signal=USR1 7.2" in job.runner.calls and "scontrol requeue 7" in job.runner.calls


def test_a_rank_that_asks_to_run_again_is_requeued(job_in_process: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    job = job_in_process
    monkeypatch.setattr("hyperpod_kit.job.run.supervisor.REQUEUE_WAIT", 0.2)
    assert job.run(command=["/bin/sh", "-c", "exit 75"]) == 75
    assert job.said("ended")[0]["class"] == "again"
    assert job.run(command=["/bin/sh", "-c", "exit 75"], restart=1) == 75
    with pytest.raises(GaveUp, match="requested another run 2 times"):
        job.run(command=["/bin/sh", "-c", "exit 75"], restart=2)


def test_a_rank_that_gave_up_is_believed(job_in_process: Job) -> None:
    job = job_in_process
    with pytest.raises(GaveUp, match="gave up itself"):
        job.run(command=["/bin/sh", "-c", "exit 86"])
    assert len(job.sruns) == 1


def test_a_command_that_is_not_there_says_so(job: Job, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(GaveUp):
        job.run(command=["/no/such/program"], policy={"max_restarts": 0})
    assert "cannot start /no/such/program" in capfd.readouterr().err
    assert job.said("ended")[0]["first"]["code"] == 127


def test_a_step_that_never_began_is_not_done_whatever_srun_says(job: Job) -> None:
    """A required plugin of slurmstepd fails before the tasks: srun of 22.05 says so, and exits 0."""
    with pytest.raises(GaveUp):
        job.run(srun="/bin/true", policy={"max_restarts": 0})
    assert [one["class"] for one in job.said("ended")] == ["launch_failed"] and job.said("unstarted")
