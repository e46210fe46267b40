"""A control plane that keeps clusters in memory: enough to see what the endpoint asks and answers."""

from __future__ import annotations

import itertools
from typing import Any, Mapping

from hyperpod_rehearsal.sagemaker.api import ApiError


class MemoryControlPlane:
    """Every node is Running at once."""

    def __init__(self) -> None:
        self.requests: list[Mapping[str, Any]] = []
        self._clusters: dict[str, dict[str, Any]] = {}
        self._ids = itertools.count(1)

    def _find(self, name: str) -> dict[str, Any]:
        for cluster in self._clusters.values():
            if name in (cluster["request"]["ClusterName"], cluster["arn"]):
                return cluster
        raise ApiError("ResourceNotFound", f"Cluster {name} not found.")

    def create_cluster(self, request: Mapping[str, Any]) -> str:
        self.requests.append(request)
        name = request["ClusterName"]
        if name in self._clusters:
            raise ApiError("ResourceInUse", f"Cluster with name {name} already exists. Choose a different name.")
        number = next(self._ids)
        arn = f"arn:aws:sagemaker:us-east-1:111122223333:cluster/{number:012d}"
        nodes = [
            {
                "InstanceGroupName": group["InstanceGroupName"],
                "InstanceId": f"i-{next(self._ids):017x}",
                "InstanceType": group["InstanceType"],
                "LaunchTime": 1700000000.25 + next(self._ids),
                "InstanceStatus": {"Status": "Running"},
            }
            for group in request["InstanceGroups"]
            for _ in range(group["InstanceCount"])
        ]
        self._clusters[name] = {"request": request, "arn": arn, "nodes": nodes, "created": 1700000000.0 + number}
        return arn

    def describe_cluster(self, name: str) -> dict[str, Any]:
        cluster = self._find(name)
        groups = [
            {
                **{
                    key: group[key]
                    for key in ("InstanceGroupName", "InstanceType", "LifeCycleConfig", "ExecutionRole")
                    if key in group
                },
                "CurrentCount": group["InstanceCount"],
                "TargetCount": group["InstanceCount"],
            }
            for group in cluster["request"]["InstanceGroups"]
        ]
        return {
            "ClusterArn": cluster["arn"],
            "ClusterName": cluster["request"]["ClusterName"],
            "ClusterStatus": "InService",
            "CreationTime": cluster["created"],
            "InstanceGroups": groups,
        }

    def list_clusters(self) -> list[dict[str, Any]]:
        return [
            {
                "ClusterArn": cluster["arn"],
                "ClusterName": name,
                "CreationTime": cluster["created"],
                "ClusterStatus": "InService",
            }
            for name, cluster in self._clusters.items()
        ]

    def list_cluster_nodes(self, name: str) -> list[dict[str, Any]]:
        return list(self._find(name)["nodes"])

    def describe_cluster_node(self, name: str, node_id: str) -> dict[str, Any]:
        for node in self._find(name)["nodes"]:
            if node["InstanceId"] == node_id:
                return {**node, "PrivatePrimaryIp": "10.1.41.18", "PrivateDnsHostname": "ip-10-1-41-18.ec2.internal"}
        raise ApiError("ResourceNotFound", f"Instance with id {node_id} not found.")

    def update_cluster(self, request: Mapping[str, Any]) -> str:
        return str(self._find(request["ClusterName"])["arn"])

    def delete_cluster(self, name: str) -> str:
        cluster = self._find(name)
        del self._clusters[cluster["request"]["ClusterName"]]
        return str(cluster["arn"])

    def batch_replace_cluster_nodes(self, request: Mapping[str, Any]) -> dict[str, Any]:
        ids = request["NodeIds"]
        instance_ids = {node["InstanceId"] for node in self._find(request["ClusterName"])["nodes"]}
        return {
            "Successful": [item for item in ids if item in instance_ids],
            "Failed": [
                {"NodeId": item, "ErrorCode": "InstanceIdNotFound", "Message": "not found"}
                for item in ids
                if item not in instance_ids
            ],
        }

    def batch_reboot_cluster_nodes(self, request: Mapping[str, Any]) -> dict[str, Any]:
        raise RuntimeError("the control plane broke")
