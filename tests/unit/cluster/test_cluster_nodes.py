"""Nodes as AWS lists them: addresses, names for people, replacement in batches."""

from __future__ import annotations

from typing import Any, Sequence

import pytest
from botocore.exceptions import EndpointConnectionError

from hyperpod_kit.aws.sagemaker import BATCH_LIMIT, NOT_SENT, SageMaker
from hyperpod_kit.cluster.nodes import ClusterNode, list_nodes, reboot_nodes, replace_nodes, resolve_nodes
from hyperpod_kit.errors import Absent, AwsError, Unreachable, UsageError


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
    assert [(node.group, node.instance_id, node.address, node.is_shutting_down_or_gone) for node in nodes] == [
        ("c", "i-0", "", True),
        ("w", "i-1", "10.0.0.9", False),
        ("w", "i-2", "10.0.0.10", False),
    ]


def test_a_node_has_three_names() -> None:
    nodes = list_nodes(Fleet(), "demo")
    assert [node.instance_id for node in resolve_nodes(nodes, ["w/1", "10.0.0.9", "i-0"])] == ["i-2", "i-1", "i-0"]
    for wrong in ("w/2", "w", "i-9", "w/x"):
        with pytest.raises(Absent, match=f"no such node: `{wrong}`"):
            resolve_nodes(nodes, [wrong])


WORKER = ClusterNode("w", "i-1", "", "Running", "", "10.1.42.18", "")
GONE = ClusterNode("w", "i-0", "", "ShuttingDown", "", "10.1.42.18", "")
TWIN = ClusterNode("x", "i-2", "", "Pending", "", "10.1.42.18", "")
OTHER = ClusterNode("x", "i-3", "", "Running", "", "10.1.42.181", "")
COMING = ClusterNode("x", "i-4", "", "Pending", "", "", "")
NAMES = ("i-1", "w/0", "10.1.42.18", "ip-10-1-42-18", "IP-10-1-42-18", "ip-10-1-42-18.ec2.internal")


@pytest.mark.parametrize("name", NAMES)
def test_a_node_goes_by_each_of_its_names(name: str) -> None:
    assert resolve_nodes([WORKER, OTHER, COMING], [name]) == [WORKER]
    assert resolve_nodes([WORKER, OTHER, COMING], [name, *NAMES, "x/0"]) == [WORKER, OTHER]


@pytest.mark.parametrize("name", ["10.1.42.18", "ip-10-1-42-18", "ip-10-1-42-18.ec2.internal"])
def test_an_address_that_several_nodes_have_is_refused_unless_all_but_one_are_gone(name: str) -> None:
    assert resolve_nodes([GONE, WORKER], [name]) == [WORKER] and resolve_nodes([GONE], [name]) == [GONE]
    for nodes in ([WORKER, TWIN], [GONE, WORKER, TWIN]):
        with pytest.raises(UsageError, match=r"matches 2 nodes: i-1 \(w, Running\), i-2 \(x, Pending\)") as refused:
            resolve_nodes(nodes, [name])
        assert refused.value.hint == "use its instance id"
        assert resolve_nodes(nodes, ["i-2"]) == [TWIN]


@pytest.mark.parametrize(
    "name", ["", "ip", "ip-10-1-42", "ip-10-1-42-1", "ip-10-1-42-180", "ip-10-1-42-18x", "10.1.42"]
)
def test_a_name_that_only_resembles_one_is_no_nodes(name: str) -> None:
    with pytest.raises(Absent, match=f"no such node: `{name}`"):
        resolve_nodes([WORKER, OTHER, COMING], [name])


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
    done, refused = replace_nodes(fleet, "demo", nodes)
    assert len(done) == 27 and [entry["NodeId"] for entry in refused] == ["i-9", "i-19", "i-29"]
    assert client.calls == [BATCH_LIMIT, 5]
    assert replace_nodes(fleet, "demo", [*nodes[:3], nodes[0]]) == (["i-0", "i-1", "i-2"], [])


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
    done, refused = reboot_nodes(fleet, "demo", nodes)
    assert done == [f"i-{number}" for number in range(25)] and len(refused) == 35
    assert refused[0] == {
        "NodeId": "i-25",
        "ErrorCode": NOT_SENT,
        "Message": "BatchRebootClusterNodes demo: http://127.0.0.1:1 does not answer",
    }
    fleet._client = Client(0)
    with pytest.raises(Unreachable):
        reboot_nodes(fleet, "demo", nodes)
