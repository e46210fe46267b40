"""Captures of jobs that left a node without an Epilog: real slots, real processes, a real flush."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
from pathlib import Path
from typing import Any, Dict, Iterator, List

import pytest

from hyperpod_kit.checkpoint.agent.flush import flush, flush_users
from hyperpod_kit.checkpoint.agent.shm import shm_paths, shm_slots
from hyperpod_kit.checkpoint.repository import selection
from hyperpod_kit.checkpoint.repository.records import identity
from hyperpod_kit.node.commands import mount_commands
from hyperpod_kit.node.memory.cleanup import save_and_free_ended_jobs_memory
from hyperpod_kit.node.memory.orphaned_snapshots import (
    MOST_JOBS,
    OrphanedSnapshots,
    has_job_left_node,
    jobs_with_stepd,
    list_snapshot_owners,
)
from hyperpod_kit.system import process
from hyperpod_lab.torture import day
from tests.faults import capturer
from tests.support.serving_fuse import silence
from tests.support.wait import until

HERE = "ip-10-1-0-20"
SHOW = "squeue job 5"
DEAD = (2**22 + 1, 1)  # above the kernel's largest pid


def capture(folder: Path, root: Path, *, job: str = "5", owner: Any = DEAD) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    capturer.capture(str(folder), str(root), job=job, owner=tuple(owner))


@pytest.fixture
def left(make_node: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A worker whose /dev/shm holds a capture of job 5."""
    fake = make_node([])
    monkeypatch.setenv("HPK_SHM_DIR", "/nowhere")
    capture(fake.root / "dev/shm", tmp_path / "root")
    yield fake


def files(fake: Any) -> List[str]:
    return sorted(name for name in os.listdir(fake.root / "dev/shm") if name.startswith("hpk-"))


def test_what_a_job_left_is_committed_and_freed_once_slurm_has_it_no_longer_here(left: Any, tmp_path: Path) -> None:
    left.runner.on(SHOW, out="JobId=5 JobName=train JobState=RUNNING Restarts=0 NodeList=ip-10-1-0-[19-20]\n")
    assert save_and_free_ended_jobs_memory(left.node) == [] and len(files(left)) == 2, (
        "between two attempts a job has no process here"
    )
    left.runner.on(SHOW, out="JobId=5 JobName=train JobState=RUNNING Restarts=1 NodeList=ip-10-1-0-[18-19]\n")
    [swept] = save_and_free_ended_jobs_memory(left.node) or []
    assert swept.done and swept.summary.startswith("committed seq-") and files(left) == []
    assert selection.newest_valid(str(tmp_path / "root")).step == 10
    before = len(left.runner.calls)
    assert save_and_free_ended_jobs_memory(left.node) == [] and len(left.runner.calls) == before, (
        "Slurm is not asked about nothing"
    )


def test_a_job_that_slurm_has_forgotten_is_over(left: Any) -> None:
    left.runner.on(SHOW, 1, "slurm_load_jobs error: Invalid job id specified")
    [swept] = save_and_free_ended_jobs_memory(left.node) or []
    assert swept.done and files(left) == []


def test_nothing_is_touched_while_slurm_does_not_answer(left: Any) -> None:
    left.runner.on(SHOW, 1, "slurm_load_jobs error: Unable to contact slurm controller (connect failure)")
    [said] = save_and_free_ended_jobs_memory(left.node) or []
    assert not said.done and "connect failure" in said.summary
    for _ in range(30):
        left.clock.now += 60
        assert save_and_free_ended_jobs_memory(left.node) == [], "said once"
    assert len(files(left)) == 2
    left.runner.on(SHOW, 1, "slurm_load_jobs error: Invalid job id specified")
    [swept] = save_and_free_ended_jobs_memory(left.node) or []
    assert swept.done, "at the first round in which Slurm answers"


@pytest.mark.needs("root", "fuse")
def test_a_round_ends_where_a_root_hangs(
    make_node: Any, serving_mount: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only that job's captures stay; another's are saved in the same round."""
    monkeypatch.setattr("hyperpod_kit.node.memory.cleanup.FLUSH_SECONDS", 3.0)
    fake = make_node([])
    with serving_mount(tmp_path / "mount") as daemon:
        (tmp_path / "mount/root").mkdir()
        capture(fake.root / "dev/shm", tmp_path / "mount/root", job="5")
        capture(fake.root / "dev/shm", tmp_path / "root", job="6")
        for job in ("5", "6"):
            fake.runner.on(f"squeue job {job}", 1, "slurm_load_jobs error: Invalid job id specified")
        silence(daemon)
        stuck = next(swept for swept in save_and_free_ended_jobs_memory(fake.node) or [] if swept.job == "5")
        assert (
            not stuck.done and f"not done after 3 s: {tmp_path / 'mount/root'} has not taken step 10" in stuck.summary
        )
        until(
            lambda: len(files(fake)) == 2 or save_and_free_ended_jobs_memory(fake.node) is None,
            what="the other job's captures saved",
        )
    assert selection.newest_valid(str(tmp_path / "root")).step == 10


def test_what_no_job_left_is_saved_and_freed_once_nobody_comes_for_it_any_more(make_node: Any, tmp_path: Path) -> None:
    """A trainer that somebody started by hand: it may be started again, for a day. A job's captures have their own way
    beside it, and a trainer that lives is left alone however old its captures are."""
    fake = make_node([])
    folder = fake.root / "dev/shm"
    trainer = subprocess.Popen(["sleep", "600"])
    try:
        owner = process.identify_unless_gone_or_zombie(trainer.pid)
        assert owner is not None
        capture(folder, tmp_path / "dead", job="")
        capture(folder, tmp_path / "living", job="", owner=owner)
        day.backdate_run(str(folder))
        assert list_snapshot_owners(str(folder)) == [OrphanedSnapshots(os.getuid(), "", False)], "of unknown age"
        assert save_and_free_ended_jobs_memory(fake.node) == [] and len(files(fake)) == 4
        day.backdate_run(str(folder))
        assert list_snapshot_owners(str(folder)) == [], "the run is old, its capture counts from that look on"
        day.backdate_captures(str(folder))
        capture(folder, tmp_path / "waiting", job="6")
        stepd = fake.root / "proc/4321"
        a_step(stepd, b"slurmstepd: [6.batch]\0")
        [swept] = save_and_free_ended_jobs_memory(fake.node) or []
        assert swept.done and swept.job == "" and swept.summary.startswith("committed seq-")
        assert len(files(fake)) == 4 and not slots_of(folder, tmp_path / "dead")
        assert selection.newest_valid(str(tmp_path / "dead")).step == 10
    finally:
        trainer.kill()
        trainer.wait(timeout=60)


def slots_of(folder: Path, root: Path) -> List[shm_slots.SlotName]:
    whose = identity.read_or_infer_identity(str(root))
    assert whose is not None
    return shm_slots.own_slot_names(str(folder), run=shm_slots.run_hash(whose.run_id))


def test_what_lives_here_is_not_even_asked_about(make_node: Any, tmp_path: Path) -> None:
    fake = make_node([])
    folder = fake.root / "dev/shm"
    trainer = subprocess.Popen(["sleep", "600"])
    try:
        owner = process.identify_unless_gone_or_zombie(trainer.pid)
        assert owner is not None
        capture(folder, tmp_path / "one", job="5", owner=owner)
        capture(folder, tmp_path / "two", job="6")
        # Job 6 is between two attempts on its batch host.
        stepd = fake.root / "proc/4321"
        a_step(stepd, b"slurmstepd: [6.batch]\0")
        assert list_snapshot_owners(str(folder)) == [
            OrphanedSnapshots(os.getuid(), "5", True),
            OrphanedSnapshots(os.getuid(), "6", False),
        ]
        assert save_and_free_ended_jobs_memory(fake.node) == [] and fake.runner.calls == [] and len(files(fake)) == 4
    finally:
        trainer.kill()
        trainer.wait(timeout=60)
    fake.runner.on("squeue job", 1, "slurm_load_jobs error: Invalid job id specified")
    assert [one.job for one in save_and_free_ended_jobs_memory(fake.node) or []] == ["5"] and len(files(fake)) == 2


@pytest.mark.full
def test_what_cannot_be_saved_stays_and_says_why(left: Any, tmp_path: Path) -> None:
    (tmp_path / "root").rename(tmp_path / "away")
    (tmp_path / "root").mkdir()
    left.runner.on(SHOW, 1, "Invalid job id specified")
    [swept] = save_and_free_ended_jobs_memory(left.node) or []
    assert not swept.done and "its mount is gone" in swept.summary and len(files(left)) == 2
    tries = 0
    for _ in range(600):
        left.clock.now += 60
        tries += len(save_and_free_ended_jobs_memory(left.node) or [])
    assert 18 < tries < 30, "later and later, at most half an hour apart"
    (tmp_path / "root").rmdir()
    (tmp_path / "away").rename(tmp_path / "root")
    left.clock.now += 3600
    [swept] = save_and_free_ended_jobs_memory(left.node) or []
    assert swept.done and files(left) == []


def test_a_clock_that_was_set_back_does_not_put_off_the_next_try(left: Any, tmp_path: Path) -> None:
    (tmp_path / "root").rename(tmp_path / "away")
    left.runner.on(SHOW, 1, "Invalid job id specified")
    for _ in range(8):
        left.clock.now += 3600
        assert len(save_and_free_ended_jobs_memory(left.node) or []) == 1
    (tmp_path / "away").rename(tmp_path / "root")
    left.clock.now -= 30 * 86400
    [swept] = save_and_free_ended_jobs_memory(left.node) or []
    assert swept.done and files(left) == []


def test_what_cannot_be_saved_for_a_day_is_given_up_aloud(
    left: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "root").rename(tmp_path / "away")
    left.runner.on(SHOW, 1, "Invalid job id specified")
    monkeypatch.setattr(mount_commands, "open_node", lambda: left.node)
    assert mount_commands.clean_up_memory_command(argparse.Namespace()) == 1
    day.backdate_captures(str(left.root / "dev/shm"))
    left.clock.now += 3600
    assert mount_commands.clean_up_memory_command(argparse.Namespace()) == 86 and files(left) == []
    assert "LOST: step 10 (seq 1), given up 25.0 hours after it was sealed" in capsys.readouterr().err


def test_copies_of_other_nodes_captures_are_looked_at_too(make_node: Any, tmp_path: Path) -> None:
    """Their trainers live elsewhere, if at all; their job says whether somebody comes for them."""
    fake = make_node([])
    folder = fake.root / "dev/shm"
    uid = os.getuid()
    folder.mkdir(parents=True)
    shm_paths.make_directories_as_root_reporting_moved(str(folder), uid)
    own = folder / f"hyperpod-kit/{uid}"
    capture(own / "partners", tmp_path / "root", owner=process.this_process())
    assert list_snapshot_owners(str(folder)) == [OrphanedSnapshots(uid, "5", False)]
    fake.runner.on(SHOW, 1, "Invalid job id specified")
    [swept] = save_and_free_ended_jobs_memory(fake.node) or []
    assert not swept.done and "not on storage yet" in swept.summary
    capture(own, tmp_path / "root")
    fake.clock.now += 3600
    [swept] = save_and_free_ended_jobs_memory(fake.node) or []
    assert swept.done and swept.summary.startswith("committed seq-") and not swept.lost
    assert not [path for path in own.rglob("hpk-*") if path.suffix in (".ctl", ".img")]
    assert list_snapshot_owners(str(folder)) == []


def test_what_strangers_put_into_shared_memory_is_no_word_for_root(left: Any, tmp_path: Path) -> None:
    folder = left.root / "dev/shm"
    page = next(folder.glob("*.ctl"))
    other = page.name.replace("-00.ctl", "-01.ctl")
    (folder / other).symlink_to("/etc/passwd")
    os.mkfifo(folder / page.name.replace("-00.ctl", "-02.ctl"))
    (folder / page.name.replace(f"hpk-{os.getuid()}-", "hpk-4242-")).write_bytes(page.read_bytes())
    capture(folder, tmp_path / "other", job="5 --oneliner; reboot")
    assert list_snapshot_owners(str(folder)) == [OrphanedSnapshots(os.getuid(), "5", False)]


SAID: List[Dict[str, Any]] = [
    {"records": [], "ended": True},
    {"records": [{"JobState": "RUNNING", "NodeList": f"a,{HERE}"}], "ended": False},
    {"records": [{"JobState": "COMPLETING", "NodeList": HERE}], "ended": False},
    {"records": [{"JobState": "SUSPENDED", "NodeList": HERE}], "ended": False},
    {"records": [{"JobState": "RUNNING", "NodeList": "ip-10-1-0-[18-19]"}], "ended": True},
    {"records": [{"JobState": "PENDING", "NodeList": "(null)"}], "ended": True},
    {"records": [{"JobState": "PENDING", "NodeList": ""}], "ended": True},
    {"records": [{"JobState": "COMPLETED", "NodeList": HERE}], "ended": True},
    {"records": [{"JobState": "NODE_FAIL", "NodeList": HERE}], "ended": True},
    {
        "records": [{"JobState": "COMPLETED", "NodeList": HERE}, {"JobState": "RUNNING", "NodeList": HERE}],
        "ended": False,
    },
]


@pytest.mark.parametrize("case", SAID, ids=lambda case: json.dumps(case["records"]))
def test_the_verdict(case: Dict[str, Any]) -> None:
    assert has_job_left_node(HERE, case["records"]) is case["ended"]


ROOTS = "0\t0\t0\t0"


def a_step(place: Path, words: bytes, uids: str = ROOTS, program: str = "slurmstepd") -> None:
    """A process as /proc shows it."""
    place.mkdir(parents=True)
    (place / "cmdline").write_bytes(words)
    (place / "status").write_text(f"Name:\tx\nUid:\t{uids}\n")
    (place / "exe").symlink_to(f"/opt/slurm/sbin/{program}")


def test_a_slurmstepd_is_known_by_the_name_it_gives_itself(tmp_path: Path) -> None:
    for pid, words, uids, program in (
        (1, b"/sbin/init", ROOTS, "systemd"),
        (20, b"slurmstepd: [12.batch]\0\0", ROOTS, "slurmstepd"),
        (21, b"slurmstepd: [13.0]    ", ROOTS, "slurmstepd (deleted)"),
        (22, b"slurmstepd infinity", ROOTS, "slurmstepd"),
        (23, b"grep\0slurmstepd: [14.0]", ROOTS, "slurmstepd"),
        # Another user's, a set-user-ID program of his, one that has become root's altogether.
        (24, b"slurmstepd: [15.0]", "4001\t4001\t4001\t4001", "slurmstepd"),
        (25, b"slurmstepd: [16.0]", "4001\t0\t0\t0", "slurmstepd"),
        (26, b"slurmstepd: [17.0]", ROOTS, "sudo"),
    ):
        a_step(tmp_path / str(pid), words, uids, program)
    (tmp_path / "30").mkdir()
    assert jobs_with_stepd(str(tmp_path)) == {"12", "13"}


@pytest.mark.needs("root")
@pytest.mark.parametrize("uid", [0, 4001])
def test_whoever_calls_himself_slurmstepd_holds_up_nothing(uid: int) -> None:
    words = ["bash", "-c", 'exec -a "slurmstepd: [4711.batch]" sleep 600']
    liar = subprocess.Popen(["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "--", *words])
    try:
        until(lambda: b"[4711.batch]\0" in Path(f"/proc/{liar.pid}/cmdline").read_bytes(), what="false name")
        assert "4711" not in jobs_with_stepd("/proc")
    finally:
        liar.kill()
        liar.wait(timeout=60)


@pytest.mark.needs("root")
def test_a_user_whose_captures_take_all_the_time_holds_up_nobody_else(
    make_node: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = make_node([])
    folder = fake.root / "dev/shm"
    folder.mkdir(parents=True)
    for uid, jobs in ((4001, range(20, 60)), (4002, range(7, 8))):
        shm_paths.make_directories_as_root_reporting_moved(str(folder), uid)
        own = folder / f"hyperpod-kit/{uid}"
        for job in jobs:
            capture(folder / "made", tmp_path / f"root{job}", job=str(job))
            for path in (folder / "made").iterdir():
                path.rename(own / path.name.replace("hpk-0-", f"hpk-{uid}-"))
        for path in own.iterdir():
            os.chown(path, uid, uid)
    flushed: List[int] = []

    def flush_as(uid: int, **_: Any) -> List[flush.FlushOutcome]:
        flushed.append(uid)
        fake.clock.now += 45.0 if uid == 4001 else 1.0
        return [flush.FlushOutcome("run", None, False, "not done")]

    monkeypatch.setattr(flush_users, "flush_as", flush_as)
    fake.runner.on("scontrol -o show job", 1, "Invalid job id specified")
    assert len([one for one in list_snapshot_owners(str(folder)) if one.uid == 4001]) == MOST_JOBS
    save_and_free_ended_jobs_memory(fake.node)
    assert flushed == [4001, 4002], "once a round"
    for _ in range(20):
        fake.clock.now += 60
        save_and_free_ended_jobs_memory(fake.node)
    assert flushed[2] == 4002 and flushed.count(4002) > 3, "who is slow comes last from then on"
