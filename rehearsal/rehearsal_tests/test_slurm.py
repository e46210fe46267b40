"""slurm.conf, the roles behind it, and how the platform reads Slurm's answers."""

from __future__ import annotations

from typing import Any

import pytest

from hyperpod_kit.errors import RehearsalError, RunError
from hyperpod_kit.run import Completed
from hyperpod_rehearsal.platform import resource_config, slurm_conf
from hyperpod_rehearsal.platform.cluster_state import CONTROLLER, RehearsedCluster, RehearsedNode
from hyperpod_rehearsal.platform.slurm_control import SlurmControl, parse_scontrol_node_line
from hyperpod_rehearsal.records.profiles import HYPERPOD, NEWEST, STOCK

GROUPS = [
    {"InstanceGroupName": "head", "InstanceType": "ml.m5.large"},
    {"InstanceGroupName": "login", "InstanceType": "ml.m5.large"},
    {"InstanceGroupName": "gpu", "InstanceType": "ml.p5.48xlarge"},
]
PARAMETERS = {
    "controller_group": "head",
    "login_group": "login",
    "worker_groups": [
        {"instance_group_name": "gpu", "partition_name": "train"},
        {"instance_group_name": "gone", "partition_name": "x"},
    ],
}


def api_groups():
    kinds = {
        "head": {"NodeType": "Controller"},
        "login": {"NodeType": "Login"},
        "gpu": {"NodeType": "Compute", "PartitionNames": ["train"]},
    }
    return [{**group, "SlurmConfig": kinds[group["InstanceGroupName"]]} for group in GROUPS]


@pytest.mark.parametrize(
    "request_, parameters", [({"InstanceGroups": GROUPS}, PARAMETERS), ({"InstanceGroups": api_groups()}, None)]
)
def test_both_sources_give_the_same_roles(request_, parameters):
    roles, partitions = slurm_conf.slurm_node_types_and_partitions(request_, parameters)
    assert roles == {"head": "Controller", "login": "Login", "gpu": "Compute"}
    assert partitions == {"dev": ["gpu"], "train": ["gpu"]}


def test_both_sources_together_are_what_hyperpod_refuses():
    with pytest.raises(RehearsalError, match="cannot include both"):
        slurm_conf.slurm_node_types_and_partitions({"InstanceGroups": api_groups()}, PARAMETERS)


def test_a_bundle_without_either_gets_no_slurm():
    assert slurm_conf.slurm_node_types_and_partitions({"InstanceGroups": GROUPS}, None) == ({}, {})


def test_slurm_without_a_controller_is_refused():
    with pytest.raises(RehearsalError, match="controller"):
        slurm_conf.slurm_node_types_and_partitions({"InstanceGroups": api_groups()[1:]}, None)


def cluster():
    made = RehearsedCluster(
        "demo",
        "abc",
        {"InstanceGroups": GROUPS},
        slurm={"head": "Controller", "gpu": "Compute"},
        partitions={"dev": ["gpu"], "train": ["gpu"]},
    )
    for instance_id, group, index, ip in (
        ("i-1", "head", 0, "10.1.41.18"),
        ("i-3", "gpu", 1, "10.1.43.19"),
        ("i-2", "gpu", 0, "10.1.43.18"),
    ):
        made.nodes[instance_id] = RehearsedNode(instance_id, group, "ml.x", index, ip, role=made.slurm[group])
    return made


def test_slurm_conf_names_controller_nodes_and_partitions():
    text = slurm_conf.render_slurm_conf(cluster(), 4096, cred_expire=7, slurmd_timeout=31)
    lines = text.splitlines()
    assert "SlurmctldHost=ip-10-1-41-18(10.1.41.18)" in lines
    assert "AuthInfo=cred_expire=7" in lines and "SlurmdTimeout=31" in lines and "ReturnToService=1" in lines
    assert "NodeName=ip-10-1-43-18 NodeAddr=10.1.43.18 CPUs=2 RealMemory=4096 State=UNKNOWN" in lines
    assert "PartitionName=dev Nodes=ip-10-1-43-18,ip-10-1-43-19 Default=YES MaxTime=INFINITE State=UP" in lines
    assert not any(line.startswith("NodeName=ip-10-1-41-18") for line in lines)


def test_of_two_controllers_the_first_place_is_the_primary_and_slurm_is_asked_where_it_can_be():
    import json

    two = cluster()
    two.nodes["i-0"] = RehearsedNode("i-0", "head", "ml.x", 1, "10.1.41.19", role=CONTROLLER)
    two.nodes["i-1"] = two.nodes.pop("i-1")  # replaced: it comes last, and keeps its place
    lines = slurm_conf.render_slurm_conf(two, 4096, cred_expire=7, slurmd_timeout=31).splitlines()
    hosts = [line for line in lines if line.startswith("SlurmctldHost=")]
    assert hosts == ["SlurmctldHost=ip-10-1-41-18(10.1.41.18)", "SlurmctldHost=ip-10-1-41-19(10.1.41.19)"]
    config = json.loads(resource_config.render_resource_config_json(two))["SlurmConfig"]
    assert config == {"PrimaryControllerIp": "10.1.41.18", "SecondaryControllerIps": ["10.1.41.19"]}

    queried = []

    class Machines:
        def execute(self, instance_id, argv, timeout):
            queried.append(instance_id)
            if instance_id == "i-1":
                raise RunError(argv, 1)
            return Completed(tuple(argv), 0, "", "")

    machines: Any = Machines()
    assert SlurmControl(machines).resume_node(two, two.nodes["i-3"]) and queried == ["i-1", "i-0"]


def test_a_profile_that_tracks_by_cgroup_says_so_and_how():
    assert "ProctrackType=proctrack/cgroup\n" in slurm_conf.render_slurm_conf(cluster(), 1000, 10, 30, HYPERPOD)
    assert "CgroupPlugin=cgroup/v1\n" in slurm_conf.render_cgroup_conf(
        HYPERPOD, has_v1_freezer=True, v2_only_nodes_on_mixed_host=False
    )
    assert slurm_conf.render_cgroup_conf(HYPERPOD, has_v1_freezer=False, v2_only_nodes_on_mixed_host=False) == ""
    with pytest.raises(RehearsalError, match="profile hyperpod tracks processes by cgroup"):
        slurm_conf.render_cgroup_conf(HYPERPOD, has_v1_freezer=True, v2_only_nodes_on_mixed_host=True)


def test_a_profile_that_does_not_leaves_hierarchies_alone_that_slurmd_would_end_at():
    assert slurm_conf.render_cgroup_conf(STOCK, has_v1_freezer=True, v2_only_nodes_on_mixed_host=False) == ""
    assert (
        slurm_conf.render_cgroup_conf(NEWEST, has_v1_freezer=True, v2_only_nodes_on_mixed_host=True)
        == "CgroupPlugin=disabled\n"
    )


def test_new_node_lines_leave_what_others_added():
    before = slurm_conf.render_slurm_conf(cluster(), 4096, 10, 30) + "# >>> somebody\nProlog=/x.sh\n# <<< somebody\n"
    smaller = cluster()
    del smaller.nodes["i-3"]
    after = slurm_conf.replace_or_append_platform_lines(before, slurm_conf.node_and_partition_lines(smaller, 4096))
    assert "ip-10-1-43-19" not in after and "Prolog=/x.sh" in after
    assert (
        slurm_conf.replace_or_append_platform_lines(after, slurm_conf.node_and_partition_lines(cluster(), 4096))
        == before
    )


def test_resource_config_lists_instances_in_order():
    import json

    data = json.loads(resource_config.render_resource_config_json(cluster()))
    assert data["SlurmConfig"]["PrimaryControllerIp"] == "10.1.41.18"
    groups = {group["Name"]: group["Instances"] for group in data["InstanceGroups"]}
    assert [instance["InstanceId"] for instance in groups["gpu"]] == ["i-2", "i-3"]
    assert groups["gpu"][0] == {
        "InstanceName": "gpu-1",
        "InstanceId": "i-2",
        "AgentIpAddress": "10.1.43.18",
        "CustomerIpAddress": "10.1.43.18",
    }
    assert groups["login"] == []


def test_a_node_line_of_scontrol():
    slurm_node = parse_scontrol_node_line(
        "NodeName=ip-10-1-43-18 State=DOWN+FAIL BootTime=2026-01-02T03:04:05 "
        "SlurmdStartTime=2026-01-02T03:04:06 Reason=Action:Replace [root@2026-01-02T03:04:07]"
    )
    assert (slurm_node.state, slurm_node.reason, slurm_node.registered_at) == (
        "DOWN+FAIL",
        "Action:Replace",
        1767323046.0,
    )


@pytest.mark.parametrize("stamp", ["None", "Unknown"])
def test_a_node_that_never_registered(stamp):
    assert parse_scontrol_node_line(f"NodeName=x State=UNKNOWN SlurmdStartTime={stamp}").registered_at == 0.0


def test_a_slurmctld_that_was_never_started_is_not_waited_for():
    class Machines:
        def __init__(self):
            self.commands = []

        def execute(self, instance_id, argv, timeout):
            self.commands.append(" ".join(argv))
            raise RunError(argv, 3)

    cluster = RehearsedCluster("demo", "abc", {})
    cluster.nodes["i-1"] = RehearsedNode("i-1", "head", "ml.m5.large", 0, "10.1.41.18", role=CONTROLLER)
    machines: Any = Machines()
    assert SlurmControl(machines).restart_slurmctld_and_reconfigure(cluster) is False
    assert machines.commands == ["systemctl is-active --quiet slurmctld"]
