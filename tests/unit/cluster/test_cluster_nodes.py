"""Nodes as AWS lists them: addresses, names for people, replacement in batches."""

from __future__ import annotations

from typing import Any, Sequence

import pytest
from botocore.exceptions import EndpointConnectionError

from hyperpod_kit.aws.sagemaker import BATCH_LIMIT, NOT_ASKED, SageMaker
from hyperpod_kit.cluster.nodes import ClusterNode, list_nodes, reboot, replace, resolve
from hyperpod_kit.errors import AwsError, Unreachable, UsageError


class Fleet(SageMaker):
    """Three nodes; of one AWS tells no address, one is gone when it is looked up."""

    def __init__(self) -> None:
        self.batches: list[Sequence[str]] = []

    def list_nodes(self, name: str) -> list[dict[str, Any]]:
        return [
            {
                "InstanceGroupName": "w",
                "InstanceId": "i-2",
                "PrivateDnsHostname": "ip-10-0-0-10.ec2.internal",
                "InstanceStatus": {"Status": "Running"},
            },
            {"InstanceGroupName": "w", "InstanceId": "i-1", "InstanceStatus": {"Status": "Running"}},
            {
                "InstanceGroupName": "c",
                "InstanceId": "i-0",
                "InstanceStatus": {"Status": "ShuttingDown", "Message": "bye"},
            },
        ]

    def describe_node(self, name: str, node_id: str) -> dict[str, Any]:
        if node_id == "i-0":
            raise AwsError("DescribeClusterNode", "ResourceNotFound", "gone")
        return {"PrivatePrimaryIp": "10.0.0.9"} if node_id == "i-1" else {}


def test_addresses_come_from_the_description_or_the_host_name() -> None:
    nodes = list_nodes(Fleet(), "demo")
    assert [(node.group, node.instance_id, node.address, node.gone) for node in nodes] == [
        ("c", "i-0", "", True),
        ("w", "i-1", "10.0.0.9", False),
        ("w", "i-2", "10.0.0.10", False),
    ]


def test_a_node_has_three_names() -> None:
    nodes = list_nodes(Fleet(), "demo")
    assert [node.instance_id for node in resolve(nodes, ["w/1", "10.0.0.9", "i-0"])] == ["i-2", "i-1", "i-0"]
    for wrong in ("w/2", "w", "i-9", "w/x"):
        with pytest.raises(UsageError, match=f"there is no node `{wrong}`"):
            resolve(nodes, [wrong])


def test_replacement_goes_in_batches_and_reports_every_refusal() -> None:
    class Client:
        def __init__(self) -> None:
            self.calls: list[int] = []

        def batch_replace_cluster_nodes(self, ClusterName: str, NodeIds: list[str]) -> dict[str, Any]:
            self.calls.append(len(NodeIds))
            refused = [node for node in NodeIds if node.endswith("9")]
            return {
                "Successful": [node for node in NodeIds if node not in refused],
                "Failed": [
                    {"NodeId": node, "ErrorCode": "InvalidInstanceStatus", "Message": "busy"} for node in refused
                ],
            }

    fleet = Fleet()
    client = fleet._client = Client()
    nodes = [ClusterNode("w", f"i-{number}", "", "Running", "", "", "") for number in range(30)]
    done, refused = replace(fleet, "demo", nodes)
    assert len(done) == 27 and [entry["NodeId"] for entry in refused] == ["i-9", "i-19", "i-29"]
    assert client.calls == [BATCH_LIMIT, 5]
    assert replace(fleet, "demo", [*nodes[:3], nodes[0]]) == (["i-0", "i-1", "i-2"], [])


def test_a_batch_that_fails_hides_no_batch_that_was_accepted() -> None:
    class Client:
        def __init__(self, good: int) -> None:
            self.good = good

        def batch_reboot_cluster_nodes(self, ClusterName: str, NodeIds: list[str]) -> dict[str, Any]:
            self.good -= 1
            if self.good < 0:
                raise EndpointConnectionError(endpoint_url="http://127.0.0.1:1/")
            return {"Successful": NodeIds}

    fleet = Fleet()
    nodes = [ClusterNode("w", f"i-{number}", "", "Running", "", "", "") for number in range(60)]
    fleet._client = Client(1)
    done, refused = reboot(fleet, "demo", nodes)
    assert done == [f"i-{number}" for number in range(25)] and len(refused) == 35
    assert refused[0] == {
        "NodeId": "i-25",
        "ErrorCode": NOT_ASKED,
        "Message": "BatchRebootClusterNodes demo: http://127.0.0.1:1 does not answer",
    }
    fleet._client = Client(0)
    with pytest.raises(Unreachable):
        reboot(fleet, "demo", nodes)
