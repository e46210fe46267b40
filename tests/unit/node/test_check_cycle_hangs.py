"""Mounts, daemons and probers that hang: what a check does about them, and what it does not wait for."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hyperpod_kit.model.mounts.efs import EfsMount
from hyperpod_kit.model.mounts.lustre import LustreMount
from hyperpod_kit.model.mounts.mountpoint_s3 import S3Mount
from hyperpod_kit.model.node_config import HealthPolicy
from hyperpod_kit.node.health.repair import repair_if_needed_and_save_outcome
from hyperpod_kit.node.observe.probe import probe
from tests.support.serving_fuse import silence
from tests.support.wait import scaled, until
from tests.unit.node.fakes import ticked

pytestmark = pytest.mark.usefixtures("no_packet_rules")

FUSE = pytest.mark.needs("fuse")
EFS = EfsMount("home", "/efs/trainer", "fs-0123456789abcdef0", "fsap-0123456789abcdef0")
S3 = S3Mount("data", "/mnt/data", "sagemaker-data", "corpus/")
LUSTRE = LustreMount("fsx", "/fsx", "fs-0fedcba9876543210.fsx.us-east-1.amazonaws.com", "abcdefgh")
S3_UNIT = "hyperpod-kit-s3-data.service"
S3_ARGV = ["/usr/bin/mount-s3", "--foreground", "--prefix", "corpus/", "sagemaker-data", "/mnt/data"]


def test_a_node_that_is_too_busy_to_ask_is_not_held_against_the_mount(
    make_node: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hyperpod_kit.node.observe import check as look
    from hyperpod_kit.node.observe.probe import Probed

    fake = make_node([LUSTRE])
    fake.mounted("/fsx", "lustre", "10.1.0.1@tcp:/abcdefgh")
    with monkeypatch.context() as busy:
        busy.setattr(look, "probe_all", lambda targets, *_: [Probed("not_asked")] * len(targets))
        for _ in range(9):
            record = ticked(fake.node).records["fsx"]
        assert (record.state, record.failures, record.degraded) == ("unknown", 0, False)
    assert ticked(fake.node).records["fsx"].state == "ok"


def test_a_proxy_that_its_watchdog_revives_is_not_torn_away(make_node: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from hyperpod_kit.node.health import repair as repairing
    from hyperpod_kit.node.observe import check as look
    from hyperpod_kit.node.observe.probe import Probed

    fake = make_node([EFS])
    fake.mounted("/efs/trainer", "nfs4", "127.0.0.1:/", "rw,port=1")  # nobody listens at port 1
    answers = [Probed("no_answer")] * 3 + [Probed("answered")] * 9
    monkeypatch.setattr(look, "probe_all", lambda targets, *_: [answers.pop(0) for _ in targets])
    done = repairing.repair_if_needed_and_save_outcome(fake.node, EFS)
    assert done == repairing.RepairOutcome(True, "its watchdog brought the proxy back")
    assert not any(call.startswith("umount") for call in fake.runner.calls)
    answers[:] = [Probed("no_answer")] * 99
    fake.runner.on("umount --lazy /efs/trainer", do=lambda: fake.unmounted("/efs/trainer"))
    fake.runner.on("systemctl is-active", 3)
    fake.runner.on("systemctl start hyperpod-kit-mount", 1, "no")
    slept = sum(fake.clock.slept)
    done = repairing.repair_if_needed_and_save_outcome(fake.node, EFS)
    assert done is not None and not done.ok and "umount --lazy /efs/trainer" in fake.runner.calls
    assert sum(fake.clock.slept) - slept >= repairing.REVIVED_WITHIN


@pytest.mark.rehearsal
@FUSE
def test_a_daemon_that_hangs_is_killed_at_the_second_strike(make_node: Any, silent_mount: Any) -> None:
    fake = make_node([S3, LUSTRE])
    fake.node = replace(fake.node, config=replace(fake.node.config, health=HealthPolicy(30.0, scaled(4.0), 3)))
    fake.mounted("/fsx", "lustre", "10.1.0.1@tcp:/abcdefgh")
    fake.mounted("/mnt/data", "fuse", "mountpoint-s3")
    fake.serve_s3(S3_UNIT, S3_ARGV)
    fake.runner.on("systemctl is-active", 3)
    place = fake.root / "mnt/data"
    with silent_mount(place) as handle:
        first = ticked(fake.node)
        assert {name: record.state for name, record in first.records.items()} == {"data": "hung", "fsx": "ok"}
        assert first.ordered == ()

        # What the kernel does when the daemon dies; the lazy unmount and the new daemon are the test's own.
        def kill() -> None:
            os.close(handle)
            # The kernel tears the connection down in its own time; on a node a unit's stop waits for the process.
            until(lambda: probe(str(place), scaled(2.0)).outcome == "error", what="end of the mount")

        def unmount() -> None:
            subprocess.run(["umount", "--lazy", str(place)], check=True, timeout=20)
            fake.unmounted("/mnt/data")

        fake.runner.on("systemctl kill --signal=KILL", do=kill)
        fake.runner.on("umount --lazy /mnt/data", do=unmount)
        fake.runner.on(f"systemctl start {S3_UNIT}", do=lambda: fake.mounted("/mnt/data", "fuse", "mountpoint-s3"))
        fake.clock.now += 30
        assert ticked(fake.node).ordered == ("data",)
        fake.clock.now += 1
        done = repair_if_needed_and_save_outcome(fake.node, S3)
    assert done is not None and done.summary == f"kill: {S3_UNIT} serves again"
    order = [call for call in fake.runner.calls if not call.startswith(("systemctl show", "systemctl is-"))]
    assert order == [
        "systemctl start --no-block hyperpod-kit-repair@data.service",
        f"systemctl kill --signal=KILL {S3_UNIT}",
        "umount --lazy /mnt/data",
        f"systemctl start {S3_UNIT}",
        "systemctl start --no-block hyperpod-kit-health.service",
    ]
    assert ticked(fake.node).records["data"].state == "ok"


@pytest.mark.rehearsal
@FUSE
def test_a_prober_that_is_stuck_is_not_joined_by_another(
    make_node: Any, silent_mount: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = make_node([LUSTRE])
    fake.node = replace(fake.node, config=replace(fake.node.config, health=HealthPolicy(30.0, scaled(3.0), 3)))
    fake.mounted("/fsx", "lustre", "10.1.0.1@tcp:/abcdefgh")
    with silent_mount(fake.root / "fsx"):
        real = os.kill
        monkeypatch.setattr(os, "kill", lambda *_: None)  # as for a prober in D state
        assert ticked(fake.node).records["fsx"].state == "hung"
        noted = json.loads(Path(fake.node.paths.stuck_probe_record("fsx")).read_text())
        assert ticked(fake.node).records["fsx"].state == "hung"
        after = json.loads(Path(fake.node.paths.stuck_probe_record("fsx")).read_text())
        assert after["pid"] == noted["pid"], "nobody was sent to wait"
        monkeypatch.undo()
        real(noted["pid"], 9)


@pytest.mark.rehearsal
@FUSE
def test_a_prober_in_d_state_holds_up_nobody_and_gets_no_company(make_node: Any, serving_mount: Any) -> None:
    fake = make_node([LUSTRE, EFS])
    fake.node = replace(fake.node, config=replace(fake.node.config, health=HealthPolicy(30.0, scaled(3.0), 3)))
    fake.mounted("/efs/trainer", "nfs4", "127.0.0.1:/")
    with serving_mount(fake.root / "fsx") as daemon:
        fake.mounted("/fsx", "lustre", "10.1.0.1@tcp:/abcdefgh")
        assert ticked(fake.node).records["fsx"].state == "ok"
        silence(daemon)
        pids = set()
        for _ in range(3):
            assert {name: one.state for name, one in ticked(fake.node).records.items()} == {"fsx": "hung", "home": "ok"}
            pids.add(json.loads(Path(fake.node.paths.stuck_probe_record("fsx")).read_text())["pid"])
        assert len(pids) == 1
        stat = Path(f"/proc/{pids.pop()}/stat").read_text().rpartition(")")[2].split()
        assert stat[0] == "D", "SIGKILL has freed it after all"
        daemon.kill()
        daemon.wait(20)
        # The kernel frees the prober in its own time, and until then the mount is not asked.
        until(lambda: ticked(fake.node).records["fsx"].state == "stale", what="stale mount")
