"""The timer's check, what it orders, and the repair: real code on a root of our own, commands answered by the test."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hyperpod_kit.checkpoint.agent.shm import failure_note
from hyperpod_kit.model.mounts.efs import EfsMount
from hyperpod_kit.model.mounts.lustre import LustreMount
from hyperpod_kit.model.mounts.mountpoint_s3 import S3Mount
from hyperpod_kit.node.health import check_cycle as module
from hyperpod_kit.node.health.check_cycle import check_mounts_and_start_repairs, due_deep_probe_mode_or_empty
from hyperpod_kit.node.health.repair import repair_if_needed_and_save_outcome
from hyperpod_kit.node.observe.health_record import HealthRecord
from tests.unit.node.fakes import ticked

pytestmark = pytest.mark.usefixtures("no_packet_rules")

EFS = EfsMount("home", "/efs/trainer", "fs-0123456789abcdef0", "fsap-0123456789abcdef0")
S3 = S3Mount("data", "/mnt/data", "sagemaker-data", "corpus/")
LUSTRE = LustreMount("fsx", "/fsx", "fs-0fedcba9876543210.fsx.us-east-1.amazonaws.com", "abcdefgh")
ORDER = "systemctl start --no-block hyperpod-kit-repair@home.service"


def test_a_mount_that_vanished_is_ordered_repaired_and_seen_again(make_node: Any) -> None:
    fake = make_node([EFS, LUSTRE])
    fake.mounted("/fsx", "lustre", "10.1.0.1@tcp:/abcdefgh")
    first = ticked(fake.node)
    assert first.ordered == ("home",) and ORDER in fake.runner.calls
    assert first.messages == ("home: ok -> absent: nothing is mounted at /efs/trainer",)
    assert not any("mount -t" in call for call in fake.runner.calls), "nothing is repaired within a check"
    fake.runner.on("systemctl is-active --quiet hyperpod-kit-mount-home.service", 0)
    fake.runner.on(
        "systemctl restart hyperpod-kit-mount-home.service",
        do=lambda: fake.mounted("/efs/trainer", "nfs4", "127.0.0.1:/"),
    )
    fake.clock.now += 1
    done = repair_if_needed_and_save_outcome(fake.node, EFS)
    assert done is not None and done.ok and done.summary.endswith("serves again")
    # The check that the repair asked for.
    assert fake.runner.calls[-1] == "systemctl start --no-block hyperpod-kit-health.service"
    second = ticked(fake.node)
    assert second.messages == ("home: absent -> ok: known by source and path only",)
    record = second.records["home"]
    assert record.last_repair == done.summary
    assert (record.failures, record.repairs_total, record.failed_repairs_total) == (0, 1, 0)
    assert json.loads(Path(fake.node.paths.health_records).read_text())["mounts"]["home"]["status"]["state"] == "ok"
    assert ticked(fake.node).messages == ()


def test_repairs_that_fail_come_slower_and_end_degraded_but_never_end(make_node: Any) -> None:
    fake = make_node([EFS])
    fake.runner.on("systemctl start hyperpod-kit-mount", 1, "no")
    fake.runner.on("systemctl is-active", 3)
    mark = Path(fake.node.paths.degraded_mark("home"))
    at = []
    for number in range(50):
        done = ticked(fake.node)
        if done.ordered:
            at.append(number)
            ended = repair_if_needed_and_save_outcome(fake.node, EFS)
            assert (
                ended is not None
                and ended.summary == "restart failed: `systemctl start hyperpod-kit-mount-home.service` exited 1: no"
            )
        assert done.records["home"].degraded is mark.exists() is (number >= 2)
        fake.clock.now += 30
    assert not any(word in call for call in fake.runner.calls for word in (" stop", " disable", " mask"))
    gaps = [second - first for first, second in zip(at, at[1:], strict=False)]
    assert gaps[0] == 1 and gaps == sorted(gaps) and gaps[-1] == 10
    record = ticked(fake.node).records["home"]
    assert record.repairs_total == len(at) and record.failed_repairs_total >= len(at) - 1
    assert mark.read_text() == "absent: nothing is mounted at /efs/trainer\n"
    fake.mounted("/efs/trainer", "nfs4", "127.0.0.1:/")
    assert ticked(fake.node).records["home"].degraded is False and not mark.exists()


def test_a_repair_that_lasts_is_not_ordered_again_and_holds_up_no_tick(make_node: Any) -> None:
    fake = make_node([EFS])
    lock = Path(fake.node.paths.lock("home.repair"))
    lock.parent.mkdir(parents=True)
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        for _ in range(3):
            assert ticked(fake.node).ordered == ()
            fake.clock.now += 3000
        assert repair_if_needed_and_save_outcome(fake.node, EFS) is None
        assert fake.clock.slept == []
    assert ticked(fake.node).ordered == ("home",)


def test_two_ticks_at_once_are_one(make_node: Any) -> None:
    fake = make_node([EFS])
    lock = Path(fake.node.paths.lock("health"))
    lock.parent.mkdir(parents=True)
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert check_mounts_and_start_repairs(fake.node) is None
    assert not Path(fake.node.paths.health_records).exists()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"mounts": 3}',
        '{"mounts": {"home": {"failures": 3}}}',
        '{"mounts": {"home": {"status": {}, "from_a_later_version": 1}}}',
    ],
)
def test_a_damaged_record_begins_anew(make_node: Any, text: str) -> None:
    fake = make_node([EFS])
    path = Path(fake.node.paths.health_records)
    path.parent.mkdir(parents=True)
    path.write_text(text)
    assert ticked(fake.node).records["home"].failures == 1


def test_a_systemd_that_does_not_answer_is_said_and_the_tick_ends_well(make_node: Any) -> None:
    fake = make_node([EFS])
    fake.runner.on("systemctl start --no-block", 1, "Failed to connect to bus")
    done = ticked(fake.node)
    assert "Failed to connect to bus" in done.messages[-1] and done.records["home"].repairs == 1


def test_writes_are_probed_now_and_then_and_at_once_after_a_remount(make_node: Any) -> None:
    fresh = HealthRecord({}, deep_at=1000.0, mount_id=7)
    assert due_deep_probe_mode_or_empty(LUSTRE, None, 7, 1000.0) == "w"
    assert due_deep_probe_mode_or_empty(LUSTRE, fresh, 7, 1299.0) == ""
    assert due_deep_probe_mode_or_empty(LUSTRE, fresh, 7, 1300.0) == "w"
    assert due_deep_probe_mode_or_empty(LUSTRE, fresh, 8, 1001.0) == "w"
    assert due_deep_probe_mode_or_empty(LUSTRE, replace(fresh, deep_at=0.0), 7, 1001.0) == "w"
    writable = S3Mount("ckpt", "/mnt/ckpt", "sagemaker-ckpt", read_only=False, allow_delete=True)
    assert due_deep_probe_mode_or_empty(S3, None, 7, 1000.0) == "l"
    assert due_deep_probe_mode_or_empty(writable, None, 7, 1000.0) == "lw"
    assert due_deep_probe_mode_or_empty(writable, fresh, 7, 2000.0) == "l", (
        "no version is left in the bucket every five minutes"
    )
    assert due_deep_probe_mode_or_empty(replace(writable, allow_delete=False), None, 7, 1000.0) == "l"


def test_a_write_that_failed_is_tried_at_every_tick_until_it_works(make_node: Any) -> None:
    fake = make_node([LUSTRE])
    fake.mounted("/fsx", "lustre", "10.1.0.1@tcp:/abcdefgh")
    assert ticked(fake.node).records["fsx"].deep_at == fake.clock.now
    fake.clock.now += 301
    # No file can be made there, by root neither.
    place = fake.root / "fsx"
    place.rmdir()
    place.symlink_to("/proc")
    for _ in range(2):
        record = ticked(fake.node).records["fsx"]
        assert (record.state, record.status["detail"]) == ("unknown", "write: No such file or directory")
        fake.clock.now += 30
    place.unlink()
    place.mkdir()
    assert ticked(fake.node).records["fsx"].state == "ok"
    assert list((fake.root / "fsx").iterdir()) == []


def test_changes_say_little() -> None:
    before = {"a": HealthRecord({"state": "ok"}), "b": HealthRecord({"state": "hung"}, degraded=True)}
    after = {
        "a": HealthRecord({"state": "ok"}),
        "b": HealthRecord({"state": "hung"}, degraded=True),
        "c": HealthRecord({"state": "ok", "detail": "known by source and path only"}),
    }
    assert module.describe_health_changes(before, after) == []


@pytest.mark.full
def test_munged_that_should_run_is_started_later_and_later(make_node: Any) -> None:
    fake = make_node([EFS])
    fake.mounted("/efs/trainer", "nfs4", "127.0.0.1:/")
    key = fake.root / "etc/munge/munge.key"
    key.parent.mkdir(parents=True)
    key.write_text("key")
    procs = fake.root / "sys/fs/cgroup/system.slice/munge.service/cgroup.procs"
    procs.parent.mkdir(parents=True)
    procs.write_text("4321\n")
    assert ticked(fake.node).messages == () and fake.runner.calls == [], "one that runs costs no command"
    procs.unlink()
    start, at = "systemctl start --no-block munge.service", []
    for number in range(60):
        before = fake.runner.calls.count(start)
        said = ticked(fake.node).messages
        if fake.runner.calls.count(start) > before:
            at.append(number)
            assert said[0].startswith("munged does not run") and said[0].endswith(f"start {len(at)}")
        else:
            assert said == ()
        fake.clock.now += 30
    gaps = [second - first for first, second in zip(at, at[1:], strict=False)]
    assert at[0] == 0 and gaps == sorted(gaps) and gaps[-1] == 10
    prom = fake.root / "var/lib/node_exporter/textfile_collector/hyperpod_kit.prom"
    assert "hyperpod_kit_munged_runs 0\n" in prom.read_text()
    procs.write_text("4322\n")
    assert ticked(fake.node).messages == ("munged runs again",) and ticked(fake.node).messages == ()
    procs.unlink()
    fake.runner.on("systemctl is-enabled --quiet munge.service", 1)
    count = fake.runner.calls.count(start)
    assert ticked(fake.node).messages == () and fake.runner.calls.count(start) == count, "somebody has disabled it"


TEXTFILE = "var/lib/node_exporter/textfile_collector/hyperpod_kit.prom"


def test_a_check_that_finds_nothing_new_runs_no_command_and_renews_the_times(make_node: Any) -> None:
    fake = make_node([LUSTRE, EFS])
    fake.mounted("/fsx", "lustre", "10.1.0.1@tcp:/abcdefgh")
    fake.mounted("/efs/trainer", "nfs4", "127.0.0.1:/")
    assert ticked(fake.node).records["home"].state == "ok"
    for path in ("run/hyperpod-kit/health.json", TEXTFILE):
        os.utime(fake.root / path, (1, 1))
    assert ticked(fake.node).messages == () and not fake.runner.calls
    for path in ("run/hyperpod-kit/health.json", TEXTFILE):
        assert time.time() - (fake.root / path).stat().st_mtime < 60


@pytest.mark.needs("mounts")
def test_a_mount_that_has_filled_up_is_seen_by_the_next_check(make_node: Any) -> None:
    fake = make_node([LUSTRE])
    fake.mounted("/fsx", "lustre", "10.1.0.1@tcp:/abcdefgh")
    place = fake.root / "fsx"
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(place)], timeout=20, check=True)
    try:
        assert ticked(fake.node).records["fsx"].state == "ok"
        with pytest.raises(OSError, match="No space"):
            (place / "ballast").write_bytes(bytes(100_000))
        assert ticked(fake.node).records["fsx"].state == "full"
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True, timeout=20)


def test_what_has_changed_since_is_seen_by_the_next_check(make_node: Any) -> None:
    fake = make_node([LUSTRE])
    fake.mounted("/fsx", "lustre", "10.1.0.1@tcp:/abcdefgh")
    listed, text = fake.root / "proc/self/mountinfo", fake.root / TEXTFILE
    before, place = listed.read_text(), fake.root / "fsx"
    assert ticked(fake.node).records["fsx"].state == "ok"
    place.rmdir()
    assert ticked(fake.node).records["fsx"].state == "unknown"
    place.mkdir()
    listed.write_text(before.replace("50 1 0:50 / /fsx rw", "51 1 0:51 / /fsx rw"))
    assert ticked(fake.node).records["fsx"].mount_id == 51
    listed.write_text(before.replace("/fsx rw", "/fsx ro"))
    assert ticked(fake.node).records["fsx"].state == "readonly"
    listed.write_text(before.replace(" /fsx ", " /elsewhere "))
    assert ticked(fake.node).records["fsx"].state == "absent"
    listed.write_text(before + "99 1 0:99 / /fsx rw - fuse mountpoint-s3 rw\n")
    assert ticked(fake.node).records["fsx"].state == "wrong_target"
    listed.write_text(before)
    text.unlink()
    assert ticked(fake.node).records["fsx"].state == "ok" and text.exists()


def test_a_word_of_a_run_about_its_saves_gets_into_the_metrics(make_node: Any) -> None:
    """What is none is passed over, and waited for never."""
    fake = make_node([LUSTRE])
    fake.mounted("/fsx", "lustre", "10.1.0.1@tcp:/abcdefgh")
    shm, text = fake.root / "dev/shm", fake.root / TEXTFILE
    shm.mkdir(parents=True)
    assert ticked(fake.node) and "checkpoint" not in text.read_text()
    path = shm / f"hpk-{os.getuid()}-0123456789ab-00000.saves"
    word = failure_note.Note('llama "a"', "/fsx/run", "7", None, None, 1, "full")
    failure_note.write(str(path), word)
    assert ticked(fake.node).records["fsx"].state == "ok"
    labels = f'{{run="llama \\"a\\"",id="0123456789ab",uid="{os.getuid()}",job_id="7"}}'
    assert f"hyperpod_kit_checkpoint_lost_saves{labels} 1\n" in text.read_text()
    assert "hyperpod_kit_checkpoint_durable_timestamp_seconds{" not in text.read_text()
    failure_note.write(str(path), word._replace(durable_step=80, durable_at=1.5, lost_in_row=0))
    assert ticked(fake.node)
    assert f"hyperpod_kit_checkpoint_lost_saves{labels} 0\n" in text.read_text()
    assert f"hyperpod_kit_checkpoint_durable_timestamp_seconds{labels} 1.5\n" in text.read_text()
    path.unlink()
    os.mkfifo(path)
    assert ticked(fake.node) and "checkpoint" not in text.read_text()
    path.unlink()
    own = shm / f"hyperpod-kit-{os.getuid()}"
    own.mkdir()
    failure_note.write(str(own / path.name), word)
    assert ticked(fake.node)
    assert f"hyperpod_kit_checkpoint_lost_saves{labels} 1\n" in text.read_text()


def test_a_job_that_runs_here_gets_into_the_metrics_until_it_is_gone(make_node: Any) -> None:
    """Two notes that say they are of one job: a series twice would be an error of the whole file."""
    fake = make_node([LUSTRE])
    fake.mounted("/fsx", "lustre", "10.1.0.1@tcp:/abcdefgh")
    shm, text = fake.root / "dev/shm", fake.root / TEXTFILE
    shm.mkdir(parents=True)
    words = (
        "import sys; from hyperpod_kit.checkpoint.agent.shm.job_note import LockedNote, JobNote, JobStepNote\n"
        "both = [LockedNote(sys.argv[1], int(sys.argv[2]), number) for number in '78']\n"
        "[one.put(JobNote('7', 2, None, 3, 0.5, {'crash': 1})) for one in both]\n"
        "step = LockedNote(sys.argv[1], int(sys.argv[2]), '7', 'step')\n"
        "step.put(JobStepNote('7', 1207, 1700000000.5, 2.5))\n"
        "print('held', flush=True); sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", words, str(shm), str(os.getuid())], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as job:
        assert job.stdout and job.stdout.readline() == b"held\n"
        assert ticked(fake.node)
        labels = f'job_id="7",uid="{os.getuid()}"'
        said = [line for line in text.read_text().splitlines() if line.startswith("hyperpod_kit_job_")]
        assert said == [
            f"hyperpod_kit_job_attempts{{{labels}}} 2",
            f"hyperpod_kit_job_lost_steps{{{labels}}} 3",
            f"hyperpod_kit_job_goodput_ratio{{{labels}}} 0.5",
            f"hyperpod_kit_job_step{{{labels}}} 1207",
            f"hyperpod_kit_job_moved_timestamp_seconds{{{labels}}} 1700000000.5",
            f"hyperpod_kit_job_step_seconds{{{labels}}} 2.5",
            f'hyperpod_kit_job_ended_attempts{{{labels},class="crash"}} 1',
        ]
        job.kill()
    assert len(list(shm.iterdir())) == 3 and ticked(fake.node) and "hyperpod_kit_job" not in text.read_text()
