"""Who a node is, from resource configs as they occur."""

from __future__ import annotations

import json
import socket
from typing import Any, Dict

import pytest

from hyperpod_kit.errors import NodeError, UnknownRole
from hyperpod_kit.model.node_config import NodeConfig
from hyperpod_kit.node.facts import find_self, gather, is_own_address
from hyperpod_kit.node.paths import NodePaths

ROLES = {"controller-machine": "controller", "worker-group": "compute"}
CONFIG = NodeConfig("demo", "on_create", ROLES)


def resource_config(**changes: Any) -> Dict[str, Any]:
    return {
        "ClusterType": "Slurm",
        "ClusterConfig": {"ClusterArn": "arn:aws-cn:sagemaker:cn-north-1:111122223333:cluster/abcde1234567"},
        "InstanceGroups": [
            {"Name": "empty", "Instances": None}, {"Name": "emptier"},
            {"Name": "controller-machine", "Instances": [{"InstanceId": "i-0c", "CustomerIpAddress": "10.1.0.10"}]},
            {"Name": "worker-group", "Instances": [
                {"InstanceId": "i-0a", "CustomerIpAddress": "10.1.0.20", "InstanceLabel": None},
                {"InstanceId": "i-0b", "CustomerIpAddress": "10.1.0.21"}]},
        ], **changes}


def me(address: str) -> Any:
    return lambda candidate: candidate == address


def test_a_worker() -> None:
    facts = find_self(resource_config(), ROLES, "ip-10-1-0-21", me("10.1.0.21"))
    assert facts is not None
    assert (facts.role, facts.instance_id, facts.group) == ("compute", "i-0b", "worker-group")
    assert (facts.region, facts.partition, facts.dns_suffix) == ("cn-north-1", "aws-cn", "amazonaws.com.cn")
    assert facts.controller_address == "10.1.0.10"


def test_hyperpods_own_word_on_the_controller_wins() -> None:
    raw = resource_config(SlurmConfig={"PrimaryControllerIp": "10.1.0.99"})
    facts = find_self(raw, ROLES, "h", me("10.1.0.20"))
    assert facts is not None and facts.controller_address == "10.1.0.99"


def test_odd_configs() -> None:
    assert find_self(resource_config(), ROLES, "h", me("10.9.9.9")) is None
    assert find_self({}, ROLES, "h", me("10.1.0.20")) is None
    with pytest.raises(UnknownRole, match="instance group worker-group, the bundle knows controller-machine"):
        find_self(resource_config(), {"controller-machine": "controller"}, "h", me("10.1.0.20"))
    with pytest.raises(NodeError, match="Kubernetes"):
        find_self(resource_config(ClusterType="Kubernetes"), ROLES, "h", me("10.1.0.20"))


def test_own_addresses_without_sending_anything() -> None:
    assert is_own_address("127.0.0.1")
    assert not is_own_address("192.0.2.1")
    assert not is_own_address("not an address")


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
    assert facts.node == socket.gethostname()


def test_without_a_resource_config_it_says_which_file(make_node: Any) -> None:
    fake = make_node([])
    with pytest.raises(NodeError, match=r"opt/ml/config/resource_config.json: not there"):
        gather(NodePaths(str(fake.root)), CONFIG, fake.clock, {})
    elsewhere = fake.root / "rc.json"
    elsewhere.write_text(json.dumps(resource_config()))
    environ = {"SAGEMAKER_RESOURCE_CONFIG_PATH": str(elsewhere), "HPK_NODE_ADDRESS": "10.7.7.7"}
    with pytest.raises(UnknownRole, match=r"rc\.json lists no instance"):
        gather(NodePaths(str(fake.root)), CONFIG, fake.clock, environ)
