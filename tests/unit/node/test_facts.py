"""Who a node is, from resource configs as they occur."""

from __future__ import annotations

import json
import socket
from typing import Any, Dict

import pytest

from hyperpod_kit.errors import NodeError, UnknownRole
from hyperpod_kit.model.node_config import NodeConfig
from hyperpod_kit.node.machine.facts import facts_from_resource_config, gather, is_local_address
from hyperpod_kit.node.machine.paths import NodePaths
from hyperpod_kit.node.machine.resource_config import role_by_parameters

ROLES = {"controller-machine": "controller", "worker-group": "compute"}
CONFIG = NodeConfig("demo", "on_create", ROLES)


def resource_config(**changes: Any) -> Dict[str, Any]:
    return {
        "ClusterType": "Slurm",
        "ClusterConfig": {"ClusterArn": "arn:aws-cn:sagemaker:cn-north-1:111122223333:cluster/abcde1234567"},
        "InstanceGroups": [
            {"Name": "empty", "Instances": None},
            {"Name": "emptier"},
            {"Name": "controller-machine", "Instances": [{"InstanceId": "i-0c", "CustomerIpAddress": "10.1.0.10"}]},
            {
                "Name": "worker-group",
                "Instances": [
                    {"InstanceId": "i-0a", "CustomerIpAddress": "10.1.0.20", "InstanceLabel": None},
                    {"InstanceId": "i-0b", "CustomerIpAddress": "10.1.0.21"},
                ],
            },
        ],
        **changes,
    }


def me(address: str) -> Any:
    return lambda candidate: candidate == address


def test_a_worker() -> None:
    facts = facts_from_resource_config(resource_config(), ROLES, "ip-10-1-0-21", me("10.1.0.21"))
    assert facts is not None
    assert (facts.role, facts.instance_id, facts.group) == ("compute", "i-0b", "worker-group")
    assert (facts.region, facts.partition, facts.dns_suffix) == ("cn-north-1", "aws-cn", "amazonaws.com.cn")
    assert facts.controller_address == "10.1.0.10"


def test_hyperpods_own_word_on_the_controller_wins() -> None:
    raw = resource_config(SlurmConfig={"PrimaryControllerIp": "10.1.0.99"})
    facts = facts_from_resource_config(raw, ROLES, "h", me("10.1.0.20"))
    assert facts is not None and facts.controller_address == "10.1.0.99"


def test_odd_configs() -> None:
    assert facts_from_resource_config(resource_config(), ROLES, "h", me("10.9.9.9")) is None
    assert facts_from_resource_config({}, ROLES, "h", me("10.1.0.20")) is None
    with pytest.raises(UnknownRole, match="instance group worker-group, but the bundle has only controller-machine"):
        facts_from_resource_config(resource_config(), {"controller-machine": "controller"}, "h", me("10.1.0.20"))
    with pytest.raises(NodeError, match="Kubernetes"):
        facts_from_resource_config(resource_config(ClusterType="Kubernetes"), ROLES, "h", me("10.1.0.20"))


@pytest.mark.parametrize(
    "groups",
    [
        None,
        [],
        [{"Name": "worker-group"}],
        [{"Name": "worker-group", "Instances": None}],
        [{"Name": "worker-group", "Instances": []}],  # a group of none
        [{"Name": "worker-group", "Instances": [{"InstanceId": "i-0a"}]}],  # not placed yet
        [{"Name": "worker-group", "Instances": [{"InstanceId": "i-0a", "CustomerIpAddress": None}]}],
        [{"Instances": [{"InstanceId": "i-0a", "CustomerIpAddress": "10.1.0.20"}]}],  # of no group
        # As an EKS cluster writes it, without the ClusterType.
        [{"Name": "worker-group", "Instances": [{"InstanceId": "i-0a", "NodeLabels": {}}]}],
    ],
)
def test_groups_that_say_nothing_about_this_node(groups: Any) -> None:
    assert facts_from_resource_config(resource_config(InstanceGroups=groups), ROLES, "h", me("10.1.0.20")) is None


def test_without_a_cluster_arn_there_is_no_region() -> None:
    facts = facts_from_resource_config(resource_config(ClusterConfig=None), ROLES, "h", me("10.1.0.20"))
    assert facts is not None and (facts.region, facts.partition) == ("", "aws")


@pytest.mark.parametrize(
    "partition, region, suffix",
    [
        ("aws", "eu-west-1", "amazonaws.com"),
        ("aws-cn", "cn-north-1", "amazonaws.com.cn"),
        ("aws-us-gov", "us-gov-west-1", "amazonaws.com"),
    ],
)
def test_partitions(partition: str, region: str, suffix: str) -> None:
    arn = f"arn:{partition}:sagemaker:{region}:111122223333:cluster/abcde1234567"
    facts = facts_from_resource_config(resource_config(ClusterConfig={"ClusterArn": arn}), ROLES, "h", me("10.1.0.20"))
    assert facts is not None and (facts.partition, facts.region, facts.dns_suffix) == (partition, region, suffix)


TWO_GROUPS = [
    ("by its own entry", "i-0gone", "i-0a", "worker-group i-0a"),
    ("by the other entry", "i-0old", "i-0old", "login i-0old"),
    ("neither is this machine", "i-0old", "i-0new", None),
    ("nobody knows its own id", "i-0old", "", None),
    ("an entry without an id", None, "i-0a", "worker-group i-0a"),
    ("an entry without an id, and none here", None, "", None),
]


@pytest.mark.parametrize("other, own_id, expected", [row[1:] for row in TWO_GROUPS], ids=[row[0] for row in TWO_GROUPS])
def test_an_address_in_two_groups_is_that_of_the_machine_with_this_id(other: Any, own_id: str, expected: Any) -> None:
    raw = resource_config()
    old = {"CustomerIpAddress": "10.1.0.20", **({"InstanceId": other} if other else {})}
    raw["InstanceGroups"].append({"Name": "login", "Instances": [old]})
    roles = {**ROLES, "login": "login"}
    if expected:
        facts = facts_from_resource_config(raw, roles, "h", me("10.1.0.20"), lambda: own_id)
        assert facts is not None and f"{facts.group} {facts.instance_id}" == expected
        return
    with pytest.raises(NodeError, match=r"10\.1\.0\.20 is listed in the instance groups login and worker-group"):
        facts_from_resource_config(raw, roles, "h", me("10.1.0.20"), lambda: own_id)


def test_an_entry_without_an_id_is_completed_by_the_metadata_service_which_is_not_asked_otherwise() -> None:
    asked = []

    def own_id() -> str:
        asked.append(1)
        return "i-0mine"

    raw = resource_config()
    facts = facts_from_resource_config(raw, ROLES, "h", me("10.1.0.20"), own_id)
    assert facts is not None and facts.instance_id == "i-0a" and not asked
    del raw["InstanceGroups"][3]["Instances"][0]["InstanceId"]
    facts = facts_from_resource_config(raw, ROLES, "h", me("10.1.0.20"), own_id)
    assert facts is not None and facts.instance_id == "i-0mine" and len(asked) == 1


def test_a_machine_replaced_within_its_group_is_the_later_entry() -> None:
    raw = resource_config()
    raw["InstanceGroups"][3]["Instances"].append({"InstanceId": "i-0new", "CustomerIpAddress": "10.1.0.20"})
    facts = facts_from_resource_config(raw, ROLES, "h", me("10.1.0.20"))
    assert facts is not None and facts.instance_id == "i-0new"


@pytest.mark.parametrize(
    "parameters, role",
    [
        (None, None),
        ([], None),
        ({}, None),
        ({"login_group": "worker-group"}, None),
        ({"controller_group": "controller-machine"}, "compute"),  # no login group at all
        ({"controller_group": "controller-machine", "login_group": "worker-group"}, "login"),
        ({"controller_group": "worker-group"}, "controller"),
        ({"controller_group": "controller-machine", "login_group": "nowhere"}, "compute"),
    ],
)
def test_the_role_by_provisioning_parameters(parameters: Any, role: Any) -> None:
    assert role_by_parameters(parameters, "worker-group") == role


def test_own_addresses_without_sending_anything() -> None:
    assert is_local_address("127.0.0.1")
    assert not is_local_address("192.0.2.1")
    assert not is_local_address("not an address")
    assert not is_local_address("None")


def node_files(fake: Any, raw: Any, parameters: Any = None) -> Any:
    """gather(), as on the worker 10.1.0.20, with these files."""
    directory = fake.root / "opt/ml/config"
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "resource_config.json").write_text(json.dumps(raw))
    if parameters is not None:
        (directory / "provisioning_parameters.json").write_text(json.dumps(parameters))
    return gather(NodePaths(str(fake.root)), CONFIG, fake.clock, {"HPK_NODE_ADDRESS": "10.1.0.20"})


def test_the_bundle_is_held_against_what_the_cluster_was_created_with(make_node: Any) -> None:
    fake = make_node([])
    agreeing = {"controller_group": "controller-machine", "worker_groups": []}
    assert node_files(fake, resource_config(), agreeing).role == "compute"
    with pytest.raises(NodeError, match=r"worker-group is compute in the bundle and controller in .*another config"):
        node_files(fake, resource_config(), {"controller_group": "worker-group"})


def test_a_copy_that_lags_behind_is_waited_for_and_then_taken_as_it_is(make_node: Any) -> None:
    fake = make_node([])
    lagging = resource_config()
    lagging["InstanceGroups"][2]["Instances"] = None  # the controller
    facts = node_files(fake, lagging)
    assert (facts.role, facts.controller_address) == ("compute", None)
    assert 59 <= sum(fake.clock.slept) <= 61
    assert node_files(fake, resource_config()).controller_address == "10.1.0.10"


def test_the_short_host_name(make_node: Any) -> None:
    fake = make_node([])
    hostname = fake.root / "proc/sys/kernel/hostname"
    hostname.parent.mkdir(parents=True)
    hostname.write_text("ip-10-1-0-20.ec2.internal\n")
    assert node_files(fake, resource_config()).node == "ip-10-1-0-20"


def test_it_waits_until_hyperpod_has_written_the_node(make_node: Any) -> None:
    fake = make_node([])
    path = fake.root / "opt/ml/config/resource_config.json"
    path.parent.mkdir(parents=True)
    path.write_text("{ half")
    written = []

    class Clock(type(fake.clock)):  # type: ignore[misc]
        def sleep(self, seconds: float) -> None:
            super().sleep(seconds)
            if len(self.slept) == 3:
                path.write_text(json.dumps(resource_config()))
                written.append(True)

    facts = gather(NodePaths(str(fake.root)), CONFIG, Clock(), {"HPK_NODE_ADDRESS": "10.1.0.20"})
    assert facts.instance_id == "i-0a" and written
    assert facts.node == socket.gethostname().split(".")[0]


def test_an_address_in_two_groups_is_waited_for_until_the_old_entry_has_gone(make_node: Any) -> None:
    fake = make_node([])
    twice = resource_config()
    twice["InstanceGroups"].append({"Name": "login", "Instances": [{"CustomerIpAddress": "10.1.0.20"}]})
    path = fake.root / "opt/ml/config/resource_config.json"

    class Clock(type(fake.clock)):  # type: ignore[misc]
        def sleep(self, seconds: float) -> None:
            super().sleep(seconds)
            if len(self.slept) == 3:
                path.write_text(json.dumps(resource_config()))

    with pytest.raises(NodeError, match="and this machine has no known instance id"):
        node_files(fake, twice)
    assert gather(NodePaths(str(fake.root)), CONFIG, Clock(), {"HPK_NODE_ADDRESS": "10.1.0.20"}).instance_id == "i-0a"


def test_without_a_resource_config_it_says_which_file(make_node: Any) -> None:
    fake = make_node([])
    with pytest.raises(NodeError, match=r"opt/ml/config/resource_config.json: no such file"):
        gather(NodePaths(str(fake.root)), CONFIG, fake.clock, {})
    elsewhere = fake.root / "rc.json"
    elsewhere.write_text(json.dumps(resource_config()))
    environ = {"SAGEMAKER_RESOURCE_CONFIG_PATH": str(elsewhere), "HPK_NODE_ADDRESS": "10.7.7.7"}
    with pytest.raises(UnknownRole, match=r"rc\.json lists no instance"):
        gather(NodePaths(str(fake.root)), CONFIG, fake.clock, environ)
