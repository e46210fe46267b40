"""Mounts of a creation are made side by side: systemd is ordered to start many, and each step waits for its own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Dict, List, Sequence

import pytest

from hyperpod_kit.errors import MountFailed
from hyperpod_kit.model.mounts.efs import EfsMount
from hyperpod_kit.model.units import carrier_unit
from hyperpod_kit.node.mounts import bring_up
from hyperpod_kit.node.mounts.kinds.registry import kind_of
from hyperpod_kit.node.setup import kit_units
from hyperpod_kit.run import Completed

MOUNTS = [EfsMount(f"m{number:02}", f"/m{number:02}", "fs-0123456789abcdef0") for number in range(20)]


class Systemd:
    """The units of these mounts. A start that was ordered ends when it is waited for, as the slowest one does."""

    def __init__(self, fake: Any, active: Sequence[str] = ()) -> None:
        self.fake = fake
        self.mounts = {carrier_unit(mount): mount for mount in MOUNTS}
        self.states: Dict[str, str] = {unit: "inactive" for unit in self.mounts}
        for mount in MOUNTS:
            if mount.name in active:
                self.states[carrier_unit(mount)] = "active"
        self.orders: List[List[str]] = []
        fake.runner.answers["systemctl is-active"] = self._is_active
        fake.runner.answers["systemctl is-failed"] = self._is_failed
        fake.runner.answers["systemctl start"] = self._start

    def _is_active(self, argv: Sequence[str]) -> Completed:
        states = [self.states[word] for word in argv if word in self.states]
        code = 0 if "active" in states else 3
        return Completed(tuple(argv), code, "" if "--quiet" in argv else "\n".join(states) + "\n", "")

    def _is_failed(self, argv: Sequence[str]) -> Completed:
        return Completed(tuple(argv), 0 if self.states[argv[-1]] == "failed" else 1, "", "")

    def _start(self, argv: Sequence[str]) -> Completed:
        units = [word for word in argv if word in self.mounts]
        self.orders.append([self.mounts[unit].name for unit in units])
        if "--no-block" in argv:
            self.states.update(dict.fromkeys(units, "activating"))
            return Completed(tuple(argv), 0, "", "")
        unit = units[0]
        if self.states[unit] != "active":
            self.states[unit] = "active"
            self.fake.mounted(self.mounts[unit].path, "nfs4", "127.0.0.1:/")
        return Completed(tuple(argv), 0, "", "")


def names(first: int, end: int) -> List[str]:
    return [mount.name for mount in MOUNTS[first:end]]


def test_a_batch_is_started_at_once_and_every_step_waits_for_its_own_unit(make_node: Any) -> None:
    fake = make_node(MOUNTS)
    systemd = Systemd(fake)
    outcomes = [bring_up.STEP.run(fake.node, mount.name) for mount in MOUNTS]
    assert all(outcome.changed for outcome in outcomes)
    together = [order for order in systemd.orders if len(order) > 1]
    assert together == [names(0, 16), names(16, 20)]
    assert [order for order in systemd.orders if len(order) == 1] == [[mount.name] for mount in MOUNTS]
    another_process = replace(fake.node, starting_units=set())
    again = [bring_up.STEP.run(another_process, mount.name) for mount in MOUNTS]
    assert not any(outcome.changed for outcome in again) and len(systemd.orders) == 22


def test_what_runs_or_is_mounted_already_is_not_ordered(make_node: Any) -> None:
    fake = make_node(MOUNTS[:4])
    systemd = Systemd(fake, active=["m01"])
    fake.mounted("/m02", "nfs4", "10.9.9.9:/")
    bring_up.STEP.run(fake.node, "m00")
    assert systemd.orders[0] == ["m00", "m03"]
    with pytest.raises(MountFailed, match="/m02 is"):
        bring_up.STEP.run(fake.node, "m02")


def test_one_mount_alone_is_started_by_its_step(make_node: Any) -> None:
    fake = make_node(MOUNTS[:1])
    systemd = Systemd(fake)
    assert bring_up.STEP.run(fake.node, "m00").changed and systemd.orders == [["m00"]]


def test_a_unit_that_has_failed_meanwhile_is_not_tried_a_second_time(make_node: Any) -> None:
    fake = make_node(MOUNTS[:3])
    systemd = Systemd(fake)
    fake.runner.on("journalctl", out='{"MESSAGE": "mount.nfs4: access denied by server"}\n')
    program = Path(f"{fake.root}{kind_of(MOUNTS[1]).program}")
    program.parent.mkdir(parents=True, exist_ok=True)
    program.touch()
    assert bring_up.STEP.run(fake.node, "m00").changed
    systemd.states[carrier_unit(MOUNTS[1])] = "failed"
    with pytest.raises(MountFailed, match="access denied by server"):
        bring_up.STEP.run(fake.node, "m01")
    assert bring_up.STEP.run(fake.node, "m02").changed
    assert systemd.orders == [names(0, 3), ["m00"], ["m02"]]


def test_what_a_boot_started_is_recorded_before_its_unit_gets_another_text(
    make_node: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = make_node(MOUNTS[:2])
    Systemd(fake, active=["m00"])
    units = [Path(fake.node.paths.unit(carrier_unit(mount))) for mount in MOUNTS[:2]]
    for unit in units:
        unit.parent.mkdir(parents=True, exist_ok=True)
        unit.write_text("ExecStart=before\n")

    def install(*_: object) -> bool:
        for unit in units:
            unit.write_text("ExecStart=after\n")
        return True

    monkeypatch.setattr("hyperpod_kit.node.machine.systemd.install_and_enable_bundled_units", install)
    kit_units.STEP.run(fake.node)
    assert not bring_up.was_started_with_unit_or_unrecorded(fake.node, MOUNTS[0], "ExecStart=after\n")
    assert bring_up.was_started_with_unit_or_unrecorded(fake.node, MOUNTS[0], "ExecStart=before\n")
    assert bring_up.was_started_with_unit_or_unrecorded(fake.node, MOUNTS[1], "ExecStart=after\n"), "it does not run"
