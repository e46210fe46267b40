"""A node of a cluster with two controllers: what is ours is right on both."""

from __future__ import annotations

import json
import os
import signal
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any, List

import pytest

from hyperpod_kit.model.mounts.lustre import LustreMount
from hyperpod_kit.model.node_config import NodeConfig
from hyperpod_kit.model.optional_steps import NodeExporter, OptionalSteps
from hyperpod_kit.model.slurm_state import StateCopy
from hyperpod_kit.node.machine import facts, resource_config
from hyperpod_kit.node.optional import node_exporter
from hyperpod_kit.node.slurm import controller, lease_keeper, state, worker
from hyperpod_kit.run import Completed
from hyperpod_kit.untrusted import by_descriptor

HEADS = ("10.1.0.10", "10.1.0.11")
FSX = LustreMount("fsx", "/fsx", "fs-0fedcba9876543210.fsx.us-east-1.amazonaws.com", "abcdefgh")
CONF = "SlurmUser=root\nStateSaveLocation=/var/spool/slurmctld\n"
ROLES = {"head": "controller", "gpu": "compute"}


def on_head(make_node: Any, index: int = 0, **steps: Any) -> Any:
    """One of two controllers, with Slurm's state on /fsx."""
    found = make_node([FSX], role="controller")
    asked = replace(found.node.config, slurm_state="fsx", controllers=2, steps=OptionalSteps(**steps))
    told = replace(
        found.node.facts, address=HEADS[index], controllers=HEADS, instance_id=f"i-{index}", controller_address=HEADS[0]
    )
    found.node = replace(found.node, config=asked, facts=told)
    found.mounted("/fsx", "lustre", "10.1.0.1@tcp:/abcdefgh")
    os.chmod(found.root / "fsx", 0o755)
    return found


def test_the_resource_config_names_them_the_primary_first() -> None:
    groups = [
        {"Name": "head", "Instances": [{"InstanceId": f"i-{n}", "CustomerIpAddress": ip} for n, ip in enumerate(HEADS)]}
    ]
    for slurm, wanted in (
        ({"PrimaryControllerIp": HEADS[0], "SecondaryControllerIps": [HEADS[1]]}, HEADS),
        ({"PrimaryControllerIp": HEADS[1], "SecondaryControllerIps": None}, (HEADS[1], HEADS[0])),
        ({"PrimaryControllerIp": "", "SecondaryControllerIps": "10.1.0.9"}, HEADS),
        (None, HEADS),
    ):
        raw = {"SlurmConfig": slurm, "InstanceGroups": groups}
        assert resource_config.controller_addresses(raw, ROLES) == wanted
        found = facts.facts_from_resource_config(raw, ROLES, "h", lambda address: address == HEADS[1])
        assert found is not None and (found.role, found.controllers) == ("controller", wanted)
    assert resource_config.controller_addresses({}, ROLES) == ()


def test_the_bundle_says_how_many_and_facts_keep_their_addresses(make_node: Any) -> None:
    node = on_head(make_node).node
    facts.save_facts(node.paths, node.facts)
    assert facts.load_or_gather(node.paths, node.config, node.clock) == node.facts
    assert NodeConfig.from_json(node.config.to_json()).controllers == 2
    one = replace(node.config, controllers=1)
    assert "controllers" not in json.loads(one.to_json()) and NodeConfig.from_json(one.to_json()) == one


def test_slurmd_asks_either_of_them(make_node: Any) -> None:
    node = on_head(make_node).node
    assert "--conf-server=10.1.0.10,10.1.0.11\n" in worker.slurmd_drop_in_path_and_text(node)[1]


def test_both_make_the_state_at_the_same_moment(make_node: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other one is faster between our look and our rename, and its slurmctld has written already."""
    fake = on_head(make_node)
    where = state.shared_state_location(fake.node)
    assert where is not None
    there = Path(f"{fake.root}{where.state}")
    rename = by_descriptor.rename

    def later(old: str, new: str) -> None:
        if str(new) == str(there) and not there.exists():
            there.mkdir(mode=0o700)
            (there / "job_state").write_text("of the other one")
        rename(old, new)

    monkeypatch.setattr(by_descriptor, "rename", later)
    assert state.make_chosen_copy_the_shared_one(fake.node, where, "root", "", StateCopy.SHARED) == ""
    assert (there / "job_state").read_text() == "of the other one"
    assert sorted(path.name for path in there.parent.iterdir()) == ["lease", "slurmctld"], "no seed is left"


def test_the_keeper_waits_for_the_mount_and_takes_no_lease(make_node: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = on_head(make_node)
    where = state.shared_state_location(fake.node)
    assert where is not None
    state.make_chosen_copy_the_shared_one(fake.node, where, "root", "", StateCopy.SHARED)
    fake.unmounted("/fsx")
    said: List[str] = []
    one = lease_keeper.LeaseKeeper(fake.node, where, said.append)
    slept = fake.clock.sleep

    def sleep(seconds: float) -> None:
        slept(seconds)
        fake.mounted("/fsx", "lustre", "10.1.0.1@tcp:/abcdefgh")

    fake.clock.sleep = sleep
    one.wait_for_mount()
    assert len(said) == 1 and said[0].startswith("waiting for /fsx, which has Slurm's state: it is absent")
    assert os.listdir(f"{fake.root}{where.lease}") == []
    # The whole unit: it lets slurmctld start, rests, and ends when told to.
    made: List[lease_keeper.LeaseKeeper] = []

    class Stopped(lease_keeper.LeaseKeeper):
        def wait_until_stopped(self) -> None:
            made.append(self)

    monkeypatch.setattr(lease_keeper, "LeaseKeeper", Stopped)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    assert lease_keeper.run_lease_keeper(fake.node) == 0 and len(made) == 1
    assert fake.runner.calls[-1] == "systemctl start --no-block slurmctld.service"


def test_one_that_stands_by_is_started_anew_with_other_lines(make_node: Any) -> None:
    fake = on_head(make_node, 1)
    bundled = fake.root / "opt/hyperpod-kit/current/slurm"
    bundled.mkdir(parents=True)
    (bundled / "hooks.conf").write_text("PrologFlags=Alloc\n")
    conf = Path(fake.node.paths.slurm_conf)
    conf.parent.mkdir(parents=True)
    conf.write_text(CONF)
    fake.runner.on(f"{fake.node.paths.scontrol} ping", out="Slurmctld(backup) at ip-10-1-0-11 is UP\n")
    fake.runner.on("systemctl is-active --quiet slurmctld", 3)
    controller.install_hooks_and_move_state(fake.node)
    (bundled / "hooks.conf").write_text("PrologFlags=Alloc\nKillWait=9\n")
    fake.runner.on("systemctl is-active --quiet slurmctld", 0)
    fake.runner.on(
        "systemctl stop slurmctld.service", do=lambda: fake.runner.on("systemctl is-active --quiet slurmctld", 3)
    )
    controller.install_hooks_and_move_state(fake.node)
    orders = [call for call in fake.runner.calls if "slurmctld.service" in call and "is-active" not in call]
    assert orders == ["systemctl stop slurmctld.service", "systemctl start slurmctld.service"]


def test_the_numbers_of_slurm_are_written_by_one_of_them(make_node: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = on_head(make_node, 1, node_exporter=NodeExporter())
    monkeypatch.setattr(socket, "gethostname", lambda: "ip-10-1-0-11")
    said = "Slurmctld(primary) at ip-10-1-0-10 is {}\nSlurmctld(backup) at ip-10-1-0-11 is UP\n"
    there = Path(
        fake.node.paths.under_root(f"{node_exporter.metrics_directory(fake.node)}/{node_exporter.SLURM_METRICS}")
    )
    there.parent.mkdir(parents=True, exist_ok=True)

    def counted(argv: Any, **_: Any) -> Completed:
        text = said.format(state_of_first[0]) if "ping" in argv else "n1 idle\n"
        return Completed(tuple(argv), 0, text, "")

    state_of_first = ["DOWN"]
    monkeypatch.setattr(fake.runner, "run", counted)
    node_exporter.write_slurm_metrics(fake.node)
    assert 'hyperpod_kit_slurm_nodes{state="idle"} 1' in there.read_text()
    state_of_first[0] = "UP"
    node_exporter.write_slurm_metrics(fake.node)
    assert not there.exists(), "the other one says it"
