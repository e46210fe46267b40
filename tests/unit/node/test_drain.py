"""Draining and undraining against a real slurmctld of our own; what is due, case by case."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Iterator, Mapping, Optional, Sequence

import pytest

from hyperpod_kit.errors import NodeError
from hyperpod_kit.model.mounts.efs import EfsMount
from hyperpod_kit.model.mounts.mountpoint_s3 import S3Mount
from hyperpod_kit.node.devices import slurm_state
from hyperpod_kit.node.devices.findings import Cure, DeviceFinding
from hyperpod_kit.node.machine import files
from hyperpod_kit.node.observe import health_record
from hyperpod_kit.node.observe.health_record import HealthRecord
from hyperpod_kit.node.slurm import drain, gate_refusal
from hyperpod_kit.node.slurm.drain import (
    AGAIN_AFTER,
    CLEAR,
    desired_reason_or_too_early,
    drain_or_undrain_for_mounts,
    is_slurm_update_due,
)
from hyperpod_kit.node.slurm.spool import SPOOL_REASON, SPOOL_REASON_OF_SLURM
from hyperpod_kit.run import Completed, LocalRunner
from tests.support.capabilities import require
from tests.support.ports import free_port
from tests.support.runner import RecordingRunner
from tests.support.wait import until

DATA = S3Mount("data", "/mnt/data", "sagemaker-data")
HOME = EfsMount("home", "/efs", "fs-0123456789abcdef0")
ALICE = EfsMount(
    "home-alice", "/home/.homes/alice/home", "fs-0123456789abcdef0", "fsap-0123456789abcdef0", owner="alice"
)
EXTRA = S3Mount("extra", "/mnt/extra", "sagemaker-extra", required=False)
NODE = "ip-10-1-0-20"
OURS = "hyperpod-kit:mount:data:stale"
GOOD = HealthRecord({"state": "ok"})
FAILING = HealthRecord({"state": "stale"}, failures=1)
DEGRADED = HealthRecord({"state": "stale"}, failures=5, degraded=True)
CONF = """\
ClusterName=test
SlurmctldHost=localhost(127.0.0.1)
SlurmUser=root
AuthType=auth/none
CredType=cred/none
SlurmctldPort={ports[0]}
StateSaveLocation={place}/state
SlurmctldPidFile={place}/slurmctld.pid
SlurmdPidFile={place}/slurmd.pid
SlurmdSpoolDir={place}/spool
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SchedulerType=sched/builtin
ReturnToService=0
NodeName={node} NodeHostname=localhost NodeAddr=127.0.0.1 Port={ports[1]} CPUs=1 State=UNKNOWN
PartitionName=dev Nodes=ALL Default=YES
"""


@dataclass
class Slurm:
    """A controller and its one node. As a Runner it lets scontrol find this controller, and nothing else run."""

    place: Path
    target: str = ""

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout: float = 60.0,
        check: bool = True,
        input: Optional[str] = None,
        env: Optional[Mapping[str, Optional[str]]] = None,
    ) -> Completed:
        if argv[0] != "scontrol":
            return Completed(tuple(argv), 0, "", "")
        known = {**(env or {}), "SLURM_CONF": str(self.place / "slurm.conf")}
        return LocalRunner().run(argv, timeout=timeout, check=check, env=known)

    def shown(self) -> tuple[str, str]:
        """(state without NOT_RESPONDING, reason without its author)."""
        text = self.run(["scontrol", "-o", "show", "node", NODE]).stdout
        state = text.split(" State=")[1].split()[0].replace("+NOT_RESPONDING", "").replace("*", "")
        return state, text.split(" Reason=")[1].split(" [")[0] if " Reason=" in text else ""

    def say(self, *words: str) -> None:
        self.run(["scontrol", "update", f"nodename={NODE}", *words])


@pytest.fixture(scope="module")
def daemons(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    require("slurm")
    place = tmp_path_factory.mktemp("slurm")
    (place / "state").mkdir()
    (place / "spool").mkdir()
    ports = [free_port(), free_port()]
    (place / "slurm.conf").write_text(CONF.format(place=place, ports=ports, node=NODE))
    started = []
    try:
        with (place / "log").open("w") as log:
            for argv in (["slurmctld", "-D", "-i"], ["slurmd", "-D", "-N", NODE]):
                started.append(
                    subprocess.Popen(
                        [*argv, "-f", str(place / "slurm.conf")], stdout=log, stderr=log, stdin=subprocess.DEVNULL
                    )
                )
        slurm = Slurm(place)

        def is_idle() -> bool:
            assert all(daemon.poll() is None for daemon in started), (place / "log").read_text()
            return "State=IDLE" in slurm.run(["scontrol", "-o", "show", "node", NODE], check=False).stdout

        until(is_idle, what="idle node")
        yield slurm
    finally:
        for daemon in started:
            daemon.kill()
            daemon.wait(20)


@pytest.fixture
def slurm(daemons: Slurm) -> Slurm:
    # Slurm refuses it for a node that nobody has drained.
    daemons.run(["scontrol", "update", f"nodename={NODE}", "state=resume"], check=False)
    return daemons


@pytest.fixture
def node(make_node: Any) -> Any:
    fake = make_node([DATA, HOME, EXTRA, ALICE])
    config = replace(fake.node.config, health=replace(fake.node.config.health, drain=True))
    fake.node = replace(fake.node, config=config)
    fake.clock.now = time.time()
    return fake


def found(fake: Any, data: HealthRecord, home: HealthRecord = GOOD, extra: HealthRecord = GOOD) -> dict[str, Any]:
    records = {"data": data, "home": home, "extra": extra}
    health_record.save_health_records(fake.node, records, fake.clock.now)
    return records


def tell(fake: Any, slurm: Slurm, data: HealthRecord) -> str:
    found(fake, data)
    return drain_or_undrain_for_mounts(replace(fake.node, runner=slurm))


def test_drained_with_our_reason_and_undrained_once_all_serves(node: Any, slurm: Slurm) -> None:
    assert tell(node, slurm, FAILING) == "" and slurm.shown() == ("IDLE", "")
    assert tell(node, slurm, DEGRADED) == f"drained: {OURS}"
    assert slurm.shown() == ("IDLE+DRAIN", OURS)
    assert tell(node, slurm, DEGRADED) == ""
    assert tell(node, slurm, replace(DEGRADED, status={"state": "hung"})) == "drained: hyperpod-kit:mount:data:hung"
    assert tell(node, slurm, FAILING) == "" and slurm.shown()[0] == "IDLE+DRAIN"
    assert tell(node, slurm, GOOD) == "undrained: hyperpod-kit:mount:data:hung is over"
    assert slurm.shown() == ("IDLE", "")


@pytest.mark.parametrize(
    "reason", ["bad DIMM", "Action:Replace", "hyperpod-kit:mount:other:stale", f"{OURS} says the admin"]
)
def test_what_somebody_else_said_stays(node: Any, slurm: Slurm, reason: str) -> None:
    slurm.say("state=drain", f"reason={reason}")
    said = tell(node, slurm, DEGRADED)
    assert said.startswith("unchanged: IDLE+DRAIN") and said.endswith(f", {reason}")
    assert tell(node, slurm, GOOD) == ""
    assert slurm.shown() == ("IDLE+DRAIN", reason)


def test_a_reason_that_was_changed_is_not_ours_any_more(node: Any, slurm: Slurm) -> None:
    tell(node, slurm, DEGRADED)
    slurm.say("reason=replacing the disk")
    assert tell(node, slurm, GOOD) == ""
    assert slurm.shown() == ("IDLE+DRAIN", "replacing the disk")


def test_a_node_that_is_down_keeps_its_reason(node: Any, slurm: Slurm) -> None:
    slurm.say("state=down", "reason=power")
    said = tell(node, slurm, DEGRADED)
    assert said.startswith("unchanged: DOWN") and said.endswith(", power")
    assert slurm.shown() == ("DOWN", "power")


def test_an_admin_who_resumes_the_node_is_not_argued_with(node: Any, slurm: Slurm) -> None:
    tell(node, slurm, DEGRADED)
    slurm.say("state=resume")
    assert tell(node, slurm, DEGRADED) == "unchanged: a person has resumed this node"
    assert tell(node, slurm, replace(DEGRADED, status={"state": "hung"})).startswith("unchanged")
    assert slurm.shown() == ("IDLE", "")


@pytest.mark.parametrize("left", ["bad DIMM", OURS, "hyperpod-kit:mount:other:stale"])
def test_a_reason_that_has_outlived_its_drain_is_nobodys(node: Any, left: str) -> None:
    """24.11 leaves the reason standing when a node is resumed or undrained."""
    shown = f"NodeName={NODE} State=IDLE Reason={left} [root@2026-11-23T01:39:08]"
    runner = RecordingRunner({"scontrol --oneliner show node": shown, "scontrol update": ""})
    found(node, DEGRADED)
    assert drain_or_undrain_for_mounts(replace(node.node, runner=runner)) == f"drained: {OURS}"
    assert f"scontrol update nodename={NODE} state=drain reason={OURS}" in runner.calls


def test_a_drain_outlives_a_reboot_and_its_note_even_a_new_disk(node: Any, slurm: Slurm) -> None:
    tell(node, slurm, DEGRADED)
    Path(node.node.paths.last_drain_request_note).unlink()
    assert is_slurm_update_due(node.node, found(node, GOOD), first=True)
    assert tell(node, slurm, GOOD) == f"undrained: {OURS} is over"


def test_slurms_own_prolog_error_is_about_us_only_just_after_our_gate_refused(node: Any, slurm: Slurm) -> None:
    slurm.say("state=drain", "reason=Prolog error")
    assert tell(node, slurm, GOOD) == "" and slurm.shown() == ("IDLE+DRAIN", "Prolog error")
    mark = Path(node.node.paths.gate_refusal_record)
    mark.write_text(json.dumps({"at": node.clock.now - 3600}))
    assert tell(node, slurm, GOOD) == "" and slurm.shown() == ("IDLE+DRAIN", "Prolog error")
    assert not mark.exists()
    mark.write_text(json.dumps({"at": node.clock.now}))
    # At once, without waiting for `degraded`: the node is drained already.
    assert tell(node, slurm, FAILING) == f"drained: {OURS}"
    assert tell(node, slurm, GOOD) == f"undrained: {OURS} is over"
    slurm.say("state=drain", "reason=Prolog error")
    mark.write_text(json.dumps({"at": node.clock.now}))
    assert tell(node, slurm, GOOD) == "undrained: Prolog error is over"
    assert slurm.shown() == ("IDLE", "")


def test_a_refusal_is_as_old_as_slurms_word_for_it_whatever_the_clocks_say(node: Any, slurm: Slurm) -> None:
    """This node's clock is an hour off, before the refusal or after it. What is older is somebody else's."""
    clock = node.clock
    for before, after in ((-3600.0, 0.0), (3600.0, 0.0), (0.0, 3600.0), (0.0, -3600.0)):
        slurm.say("state=drain", "reason=Prolog error")
        clock.set_by = before
        gate_refusal.record_refusal(node.node, node.node.paths.gate_refusal_record)
        clock.set_by = before + after
        assert tell(node, slurm, GOOD) == "undrained: Prolog error is over", (before, after)
    slurm.say("state=drain", "reason=Prolog error")
    clock.set_by = 3600.0
    gate_refusal.record_refusal(node.node, node.node.paths.gate_refusal_record)
    clock.now += 3600.0
    assert tell(node, slurm, GOOD) == "" and slurm.shown() == ("IDLE+DRAIN", "Prolog error")


@pytest.mark.parametrize("own_reason", ["Prolog error", SPOOL_REASON_OF_SLURM])
def test_a_node_whose_spool_cannot_be_written_stays_drained_until_it_can(
    node: Any, slurm: Slurm, monkeypatch: pytest.MonkeyPatch, own_reason: str
) -> None:
    """Slurm's own drain for the refused job would be undone at once, as all mounts serve."""
    failure = ["slurmd cannot store a job"]
    monkeypatch.setattr(drain, "spool_failure", lambda node: failure[0])
    records = found(node, GOOD)
    assert desired_reason_or_too_early(node.node, records) == CLEAR, "no check writes there before a job was refused"
    gate_refusal.record_refusal(node.node, node.node.paths.gate_refusal_record, slurm_reason=SPOOL_REASON)
    slurm.say("state=drain", f"reason={own_reason}")
    assert is_slurm_update_due(node.node, records, first=False)
    assert tell(node, slurm, GOOD) == f"drained: {SPOOL_REASON}" and slurm.shown() == ("IDLE+DRAIN", SPOOL_REASON)
    assert not is_slurm_update_due(node.node, records, first=False) and tell(node, slurm, GOOD) == ""
    failure[0] = ""
    assert is_slurm_update_due(node.node, records, first=False)
    assert tell(node, slurm, GOOD) == f"undrained: {SPOOL_REASON} is over" and slurm.shown() == ("IDLE", "")
    assert not is_slurm_update_due(node.node, records, first=False)


def test_a_drain_of_slurms_for_a_full_spool_is_undone_where_the_gate_has_seen_it(
    node: Any, slurm: Slurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drain, "spool_failure", lambda node: "")
    slurm.say("state=drain", f"reason={SPOOL_REASON_OF_SLURM}")
    assert tell(node, slurm, GOOD) == "" and slurm.shown() == ("IDLE+DRAIN", SPOOL_REASON_OF_SLURM)
    gate_refusal.record_refusal(node.node, node.node.paths.gate_refusal_record, slurm_reason=SPOOL_REASON)
    assert tell(node, slurm, GOOD) == f"undrained: {SPOOL_REASON_OF_SLURM} is over" and slurm.shown() == ("IDLE", "")


def test_a_drain_that_could_not_be_recorded_on_a_full_disk_is_undone_all_the_same(
    node: Any, slurm: Slurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    failure = ["slurmd cannot store a job"]
    monkeypatch.setattr(drain, "spool_failure", lambda node: failure[0])

    def fail_to_write(path: str, data: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(drain, "write_json", fail_to_write)
    gate_refusal.record_refusal(node.node, node.node.paths.gate_refusal_record, slurm_reason=SPOOL_REASON)
    slurm.say("state=drain", "reason=Prolog error")
    for summary in (f"drained: {SPOOL_REASON}", "no change"):
        with pytest.raises(NodeError, match=rf"was updated .{summary}., but not recorded in .*: No space left"):
            tell(node, slurm, GOOD)
        assert slurm.shown() == ("IDLE+DRAIN", SPOOL_REASON)
    failure[0] = ""
    monkeypatch.setattr(drain, "write_json", files.write_json)
    assert tell(node, slurm, GOOD) == f"undrained: {SPOOL_REASON} is over" and slurm.shown() == ("IDLE", "")


def test_a_refusal_is_an_error_that_names_slurms_words_and_is_tried_again(node: Any) -> None:
    node.runner.on("scontrol update", 1, "slurm_update error: Access/permission denied")
    node.runner.on("scontrol --oneliner", out=f"NodeName={NODE} State=IDLE Comment=x")
    records = found(node, DEGRADED)
    assert is_slurm_update_due(node.node, records, first=False)
    with pytest.raises(NodeError, match="Access/permission denied"):
        drain_or_undrain_for_mounts(node.node)
    assert not is_slurm_update_due(node.node, records, first=False)
    node.clock.now += AGAIN_AFTER
    assert is_slurm_update_due(node.node, records, first=False)
    node.runner.on("scontrol --oneliner", 1, f"Node {NODE} not found")
    with pytest.raises(NodeError, match="not found"):
        drain_or_undrain_for_mounts(node.node)


def test_what_is_wished_and_when_slurm_is_asked(node: Any) -> None:
    assert desired_reason_or_too_early(node.node, found(node, GOOD)) == CLEAR
    assert desired_reason_or_too_early(node.node, found(node, FAILING)) is None
    assert desired_reason_or_too_early(node.node, found(node, DEGRADED)) == OURS
    assert desired_reason_or_too_early(node.node, found(node, GOOD, extra=DEGRADED)) == CLEAR, (
        "an optional mount drains no node"
    )
    assert desired_reason_or_too_early(node.node, {**found(node, GOOD), "home-alice": DEGRADED}) == CLEAR, (
        "nor one user's home"
    )
    assert desired_reason_or_too_early(node.node, {}) is None
    healthy = found(node, GOOD)
    assert not is_slurm_update_due(node.node, healthy, first=False)
    assert is_slurm_update_due(node.node, healthy, first=True)
    controller = replace(node.node, facts=replace(node.node.facts, role="controller"))
    assert not is_slurm_update_due(controller, found(node, DEGRADED), first=True)


LOST = DeviceFinding("gpu", "lost", "the GPU at 0000:02:00.0", Cure.REPLACE, 3)
FOR_LOST = "hyperpod-kit:device:gpu:lost"


def test_a_lost_gpu_drains_and_its_return_undrains(node: Any, slurm: Slurm) -> None:
    mine = replace(node.node, runner=slurm)
    assert slurm_state.drain_or_undrain_for_devices(mine, [LOST], "report") == "" and slurm.shown() == ("IDLE", "")
    assert slurm_state.drain_or_undrain_for_devices(mine, [LOST], "drain") == f"drain: {FOR_LOST}"
    assert slurm.shown() == ("IDLE+DRAIN", FOR_LOST)
    assert tell(node, slurm, DEGRADED).startswith("unchanged") and tell(node, slurm, GOOD) == ""
    assert slurm.shown() == ("IDLE+DRAIN", FOR_LOST), "what is said of a mount takes nothing back that is a GPU's"
    assert slurm_state.drain_or_undrain_for_devices(mine, [], "drain") == f"undrained: {FOR_LOST} is over"
    assert slurm.shown() == ("IDLE", "")


def test_hyperpod_is_asked_in_its_own_words_and_the_node_is_its_own_then(node: Any, slurm: Slurm) -> None:
    mine = replace(node.node, runner=slurm)
    assert slurm_state.drain_or_undrain_for_devices(mine, [LOST], "replace") == "fail: Action:Replace"
    state, reason = slurm.shown()
    assert state.startswith("FAIL") or "FAIL" in state, state
    assert reason == "Action:Replace"
    assert (
        slurm_state.drain_or_undrain_for_devices(mine, [], "replace")
        == "unchanged, HyperPod handles it: Action:Replace"
    )
    assert slurm.shown() == (state, reason)
    assert tell(node, slurm, DEGRADED).endswith(", Action:Replace")


def test_a_refusal_for_a_device_is_not_undone_for_the_mounts(node: Any, slurm: Slurm) -> None:
    mine = replace(node.node, runner=slurm)
    node.clock.now = time.time()
    slurm_state.record_gate_refusal(mine)
    slurm.say("state=drain", "reason=Prolog error")
    assert tell(node, slurm, GOOD) == "" and slurm.shown()[0] == "IDLE+DRAIN"
    assert slurm_state.drain_or_undrain_for_devices(mine, [LOST], "drain") == f"drain: {FOR_LOST}"
    assert not os.path.exists(mine.paths.devices_gate_refusal_record)
    assert slurm_state.withdraw_device_drain(mine) == f"undrained: {FOR_LOST} is over"


def test_a_slurm_that_does_not_answer_is_asked_again(node: Any) -> None:
    silent = replace(node.node, runner=RecordingRunner())
    with pytest.raises(NodeError, match="state of this node's devices could not be reported to Slurm"):
        slurm_state.drain_or_undrain_for_devices(silent, [LOST], "drain")
    assert slurm_state.drain_or_undrain_for_devices(silent, [LOST], "drain") == "", "not at once"
    node.clock.now += AGAIN_AFTER + 1
    with pytest.raises(NodeError):
        slurm_state.drain_or_undrain_for_devices(silent, [LOST], "drain")
