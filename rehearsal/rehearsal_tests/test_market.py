"""Capacity that is late and in part, Spot that is taken back, addresses that are used again, automatic patches."""

from __future__ import annotations

import json
import time
from typing import Any, Dict

import pytest

from hyperpod_rehearsal import targets
from hyperpod_rehearsal.metadata.instance_metadata import InstanceIdentity, Metadata
from hyperpod_rehearsal.platform import patching
from hyperpod_rehearsal.platform.market import Spot
from hyperpod_rehearsal.platform.patching import Patching
from hyperpod_rehearsal.platform.recovery import Recovery
from rehearsal_tests.test_continuous import SLURM, events
from rehearsal_tests.test_control_plane import endpoint, group, nodes, sagemaker, wait
from tests.support.wait import until

__all__ = ["endpoint", "sagemaker"]

SPOT: Dict[str, Any] = {"CapacityRequirements": {"Spot": {}}}
REGISTERED = {"/opt/slurm/bin/scontrol -o show node": "NodeName=x State=IDLE SlurmdStartTime=2096-01-01T00:00:00"}


def workers(count, name="gpu", **more):
    return group(name, count, SlurmConfig={"NodeType": "Compute", "PartitionNames": ["p"]}, **more)


def groups(count, **more):
    return [group("head", 1, SlurmConfig={"NodeType": "Controller"}), workers(count, **more)]


@pytest.fixture
def cluster(sagemaker, operations):
    """A continuous cluster of a controller and two Spot workers, all Running."""
    operations.fleet.machines.answers = dict(REGISTERED)
    sagemaker.create_cluster(ClusterName="demo", InstanceGroups=groups(2, **SPOT), **SLURM)
    wait(sagemaker)
    until(lambda: [node["InstanceStatus"]["Status"] for node in nodes(sagemaker)] == ["Running"] * 3)
    until(lambda: not operations.claimed_ids)
    return operations.clusters["demo"]


def test_capacity_that_comes_in_part_gives_part_of_the_nodes_and_the_rest_later(sagemaker, operations, cluster):
    layout = operations.fleet.layout
    targets.set_capacity(layout, 1)
    sagemaker.update_cluster(ClusterName="demo", InstanceGroups=groups(4, **SPOT), **SLURM)
    until(lambda: sorted(node.status for node in cluster.nodes.values()) == ["Failure", *["Running"] * 4])
    [failed] = [node for node in cluster.nodes.values() if node.status == "Failure"]
    words = f"We currently do not have sufficient capacity to launch new {failed.instance_type} instances."
    assert failed.message.startswith(words) and failed.instance_id not in operations.fleet.machines.started
    [error] = [event for event in events(sagemaker) if event["EventLevel"] == "Error"]
    detail = sagemaker.describe_cluster_event(ClusterName="demo", EventId=error["EventId"])["EventDetails"]
    assert detail["EventDetails"]["EventMetadata"]["Instance"]["FailureMessage"].startswith(words)
    targets.set_capacity(layout, None)
    until(lambda: not operations.claimed_ids)
    Recovery(operations, operations.fleet.stopping).recover_cluster_nodes(cluster)
    until(lambda: [node.status for node in cluster.nodes.values()] == ["Running"] * 5)


def test_a_spot_instance_is_told_and_then_taken_back(sagemaker, operations, cluster):
    lost, other = cluster.nodes_in_group("gpu")
    targets.give_spot_notice(operations.fleet.layout, {"instance_id": lost.instance_id}, 120)
    targets.give_spot_notice(operations.fleet.layout, {"instance_id": cluster.controller.instance_id}, 0)
    now = [time.time()]
    spot = Spot(operations.fleet, operations.clusters, operations.fleet.stopping, lambda: now[0])
    assert spot.look() == [] and spot.look() == []
    [notice] = [event["Description"] for event in events(sagemaker) if "will be interrupted" in event["Description"]]
    assert lost.instance_id in notice
    now[0] += 121
    assert spot.look() == [lost.instance_id] and spot.look() == []
    assert operations.fleet.machines.exit_code(lost.instance_id) is not None
    assert operations.fleet.machines.exit_code(other.instance_id) is None
    assert operations.fleet.machines.exit_code(cluster.controller.instance_id) is None, "it is on demand"


def test_the_notice_is_in_the_instances_metadata_once_it_was_given():
    identity = InstanceIdentity("i-1", "ml.p5.48xlarge", "10.1.0.2", "h", "r", "1", "", "a", "b", is_spot=True)
    metadata = Metadata(identity, clock=lambda: 1000.0)
    _, _, token = metadata.respond("PUT", "/latest/api/token", {"x-aws-ec2-metadata-token-ttl-seconds": "60"})
    ask = {"x-aws-ec2-metadata-token": token.decode()}
    assert metadata.respond("GET", "/latest/meta-data/instance-life-cycle", ask)[2] == b"spot"
    assert metadata.respond("GET", "/latest/meta-data/spot/instance-action", ask)[0] == 404
    metadata.spot_end = 1120.0
    status, _, body = metadata.respond("GET", "/latest/meta-data/spot/instance-action", ask)
    assert status == 200 and json.loads(body) == {"action": "terminate", "time": "1970-01-01T00:18:40Z"}


def test_an_address_is_used_again_at_once_by_an_instance_of_another_group(sagemaker, operations, cluster):
    [_, last] = cluster.nodes_in_group("gpu")
    sagemaker.update_cluster(ClusterName="demo", InstanceGroups=groups(1, **SPOT), **SLURM)
    until(lambda: len(cluster.nodes) == 2)
    sagemaker.update_cluster(ClusterName="demo", InstanceGroups=[*groups(1, **SPOT), workers(1, "cpu")], **SLURM)
    until(lambda: len(cluster.nodes) == 3)
    [new] = cluster.nodes_in_group("cpu")
    assert new.ip == last.ip and new.instance_id != last.instance_id


def patched(operations, cluster, strategy, busy, **more):
    """The patch of the workers' group, in a thread; `busy`: host names that have a job; `more`: of AutoPatchConfig."""
    machines = operations.fleet.machines
    real = machines.execute

    def execute(instance_id, argv, timeout=20.0, check=True):
        done = real(instance_id, argv, timeout, check)
        if argv[0].endswith("squeue") and argv[3] in busy:
            return type(done)(done.argv, 0, "7\n", "")
        return done

    machines.execute = execute
    gpu = next(entry for entry in cluster.request["InstanceGroups"] if entry["InstanceGroupName"] == "gpu")
    gpu["AutoPatchConfig"] = {"PatchingStrategy": strategy, "PatchSchedule": {"NextPatchDate": 1000.0}, **more}
    Patching(operations, operations.fleet.stopping, lambda: 999.0).begin_due_patches()
    assert not any("state=drain" in line for line in machines.executed), "its date has not come"
    found = Patching(operations, operations.fleet.stopping)
    for _ in range(2):
        found.begin_due_patches()
    until(lambda: sum("state=drain" in line for line in machines.executed) >= 2)
    return machines


def boots(machines, node):
    return machines.started.count(node.instance_id)


def test_when_idle_patches_each_node_as_its_job_ends(sagemaker, operations, cluster):
    working, idle = cluster.nodes_in_group("gpu")
    busy = {working.host}
    machines = patched(operations, cluster, patching.WHEN_IDLE, busy)
    until(lambda: boots(machines, idle) == 2 and idle.status == "Running")
    assert boots(machines, working) == 1 and working.status == "Running"
    assert f"update nodename={working.host} state=drain reason={patching.REASON}" in " ".join(machines.executed)
    busy.clear()
    until(lambda: boots(machines, working) == 2 and working.status == "Running")
    until(lambda: any(event["Description"].endswith("gpu has Succeeded") for event in events(sagemaker)))
    assert sum("state=drain" in line for line in machines.executed) == 2, "once a date"


def test_when_all_idle_waits_for_the_last_one(sagemaker, operations, cluster):
    working, idle = cluster.nodes_in_group("gpu")
    busy = {working.host}
    machines = patched(operations, cluster, patching.WHEN_ALL_IDLE, busy)
    until(lambda: sum("squeue" in line for line in machines.executed) >= 6, what="three looks at both nodes")
    assert boots(machines, idle) == boots(machines, working) == 1
    busy.clear()
    until(lambda: boots(machines, idle) == boots(machines, working) == 2)


def test_nodes_that_do_not_become_idle_are_uncordoned_as_they_are(sagemaker, operations, cluster):
    working, idle = cluster.nodes_in_group("gpu")
    busy = {working.host, idle.host}
    machines = patched(operations, cluster, patching.WHEN_ALL_IDLE, busy, IdleWaitWindowInSeconds=1)
    until(lambda: sum("state=resume" in line for line in machines.executed) >= 2)
    assert boots(machines, working) == 1
    until(lambda: any("2 instances did not become idle" in event["Description"] for event in events(sagemaker)))
