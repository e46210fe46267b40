"""SageMaker's cluster calls on the rehearsal's machines: the shapes of the API in front, operations behind."""

from __future__ import annotations

import copy
import re
import secrets
from typing import Any, Dict, List, Mapping, Sequence

from hyperpod_kit.rehearsal.cluster_state import CONTROLLER, REGION, Cluster, Node
from hyperpod_kit.rehearsal.operations import Operations
from hyperpod_kit.rehearsal.sagemaker.api import ApiError

GROUP_FIELDS = ("InstanceGroupName", "InstanceType", "LifeCycleConfig", "ExecutionRole", "ThreadsPerCore",
                "InstanceStorageConfigs", "OnStartDeepHealthChecks", "SlurmConfig", "OverrideVpcConfig")
SOURCE_URI = re.compile(r"s3://sagemaker-[^/]+(/.*)?")


class RehearsalControlPlane:
    """Implements sagemaker.api.ControlPlane; see there for what each method promises."""

    def __init__(self, operations: Operations) -> None:
        self._operations = operations

    def _find(self, name: str) -> Cluster:
        with self._operations.lock:
            for cluster in self._operations.clusters.values():
                if name in (cluster.name, cluster.arn):
                    return cluster
        raise ApiError("ResourceNotFound", f"Cluster {name} not found.")

    def create_cluster(self, request: Mapping[str, Any]) -> str:
        operations = self._operations
        _check_sources(request)
        _check_provisioning(request)
        cluster = Cluster(request["ClusterName"], secrets.token_hex(6), copy.deepcopy(dict(request)))
        with operations.lock:
            if cluster.name in operations.clusters:
                raise ApiError("ResourceInUse", f"Cluster with name {cluster.name} already exists. "
                                                "Choose a different name.")
            operations.clusters[cluster.name] = cluster
        operations.changed()
        operations.spawn(operations.create, cluster)
        return cluster.arn

    def describe_cluster(self, name: str) -> Dict[str, Any]:
        cluster = self._find(name)
        with self._operations.lock:
            answer: Dict[str, Any] = {
                "ClusterArn": cluster.arn, "ClusterName": cluster.name, "ClusterStatus": cluster.status,
                "CreationTime": cluster.created_at,
                "InstanceGroups": [_group(cluster, group) for group in cluster.groups],
                "NodeRecovery": cluster.request.get("NodeRecovery", "Automatic"),
            }
            if cluster.failure_message:
                answer["FailureMessage"] = cluster.failure_message
            for field in ("VpcConfig", "Orchestrator", "NodeProvisioningMode", "ClusterRole"):
                if field in cluster.request:
                    answer[field] = cluster.request[field]
        return answer

    def list_clusters(self) -> List[Dict[str, Any]]:
        with self._operations.lock:
            return [{"ClusterArn": cluster.arn, "ClusterName": cluster.name, "CreationTime": cluster.created_at,
                     "ClusterStatus": cluster.status} for cluster in self._operations.clusters.values()]

    def list_cluster_nodes(self, name: str) -> List[Dict[str, Any]]:
        cluster = self._find(name)
        with self._operations.lock:
            return [_summary(node) for node in cluster.nodes.values()]

    def describe_cluster_node(self, name: str, node_id: str) -> Dict[str, Any]:
        cluster = self._find(name)
        with self._operations.lock:
            node = cluster.nodes.get(node_id)
            if node is None:
                raise ApiError("ResourceNotFound", f"Instance with id {node_id} not found.")
            details = {**_summary(node), "PrivatePrimaryIp": node.ip,
                       "Placement": {"AvailabilityZone": f"{REGION}a", "AvailabilityZoneId": "use1-az1"}}
            lifecycle = cluster.group(node.group).get("LifeCycleConfig")
            if lifecycle:
                details["LifeCycleConfig"] = lifecycle
            return details

    def list_cluster_events(self, name: str) -> List[Dict[str, Any]]:
        cluster = self._find(name)
        if not cluster.continuous:
            raise ApiError("ValidationException", "ListClusterEvents is only supported for cluster with "
                                                  "NodeProvisioningMode set to Continuous")
        with self._operations.lock:
            return copy.deepcopy(cluster.events)

    def update_cluster(self, request: Mapping[str, Any]) -> str:
        operations = self._operations
        _check_sources(request)
        with operations.lock:
            cluster = self._find(request["ClusterName"])
            if cluster.status != "InService":
                raise ApiError("ConflictException", f"Cluster {cluster.name} is {cluster.status}.")
            _check_update(cluster, request)
            # A cluster that is provisioned continuously stays in service while its nodes come and go.
            cluster.status, cluster.failure_message = "InService" if cluster.continuous else "Updating", ""
        operations.spawn(operations.resize, cluster, copy.deepcopy(dict(request)))
        return cluster.arn

    def delete_cluster(self, name: str) -> str:
        operations = self._operations
        with operations.lock:
            cluster = self._find(name)
            if cluster.status == "Deleting":
                raise ApiError("ConflictException", f"Cluster {cluster.name} is Deleting.")
            cluster.status = "Deleting"
        operations.spawn(operations.delete, cluster)
        return cluster.arn

    def batch_replace_cluster_nodes(self, name: str, ids: Sequence[str]) -> Dict[str, Any]:
        return self._batch(name, ids, "replace")

    def batch_reboot_cluster_nodes(self, name: str, ids: Sequence[str]) -> Dict[str, Any]:
        return self._batch(name, ids, "reboot")

    def _batch(self, name: str, ids: Sequence[str], verb: str) -> Dict[str, Any]:
        operations = self._operations
        cluster = self._find(name)
        if cluster.status != "InService":
            raise ApiError("ConflictException", f"Cluster {cluster.name} is {cluster.status}.")
        successful: List[str] = []
        failed: List[Dict[str, str]] = []
        for instance_id in ids:
            node = cluster.nodes.get(instance_id)
            if node is None:
                failed.append(_error(instance_id, "InstanceIdNotFound", "no such instance in this cluster"))
            elif verb == "replace" and node.role == CONTROLLER:
                failed.append(_error(instance_id, "InvalidInstanceStatus", "the controller cannot be replaced"))
            elif not operations.take(node):
                failed.append(_error(instance_id, "InstanceIdInUse", "another operation works on this instance"))
            else:
                successful.append(instance_id)
                work = operations.replace if verb == "replace" else operations.reboot
                operations.spawn(work, cluster, node, f"asked for: {verb}")
        return {"Successful": successful, "Failed": failed}


def _error(instance_id: str, code: str, message: str) -> Dict[str, str]:
    return {"NodeId": instance_id, "ErrorCode": code, "Message": message}


def _check_sources(request: Mapping[str, Any]) -> None:
    names = [group["InstanceGroupName"] for group in request.get("InstanceGroups", [])]
    if len(set(names)) != len(names):
        raise ApiError("ValidationException", "InstanceGroupNames must be unique within a cluster.")
    for group in request.get("InstanceGroups", []):
        lifecycle = group.get("LifeCycleConfig") or {}
        uri = lifecycle.get("SourceS3Uri")
        if uri is not None and not SOURCE_URI.fullmatch(uri):
            raise ApiError("ValidationException", f"SourceS3Uri {uri} must start with s3://sagemaker-.")
        if "OnCreate" in lifecycle and "OnInitComplete" in lifecycle:
            raise ApiError("ValidationException", "OnCreate and OnInitComplete in LifeCycleConfig are mutually "
                                                  "exclusive.")


def _check_provisioning(request: Mapping[str, Any]) -> None:
    """Continuous provisioning wants SlurmConfig, and takes no strategy for it."""
    if request.get("NodeProvisioningMode") != "Continuous":
        return
    slurm = (request.get("Orchestrator") or {}).get("Slurm")
    if slurm is None or not all(group.get("SlurmConfig") for group in request.get("InstanceGroups", [])):
        raise ApiError("ValidationException", "NodeProvisioningMode Continuous requires SlurmConfig in every "
                                              "InstanceGroup and Orchestrator.Slurm.")
    if "SlurmConfigStrategy" in slurm:
        raise ApiError("ValidationException", "SlurmConfigStrategy cannot be set for a cluster with "
                                              "NodeProvisioningMode Continuous.")


def _check_update(cluster: Cluster, request: Mapping[str, Any]) -> None:
    wanted = {group["InstanceGroupName"]: group.get("InstanceCount", 0) for group in request.get("InstanceGroups", [])}
    for name, role in cluster.slurm.items():
        if role == CONTROLLER and (wanted.get(name, 1) < 1 or name in request.get("InstanceGroupsToDelete", [])):
            raise ApiError("ValidationException", "The Slurm controller's instance group cannot be removed.")


def _group(cluster: Cluster, group: Mapping[str, Any]) -> Dict[str, Any]:
    running = [node for node in cluster.in_group(group["InstanceGroupName"]) if node.status == "Running"]
    return {**{field: group[field] for field in GROUP_FIELDS if field in group},
            "CurrentCount": len(running), "TargetCount": group.get("InstanceCount", 0)}


def _summary(node: Node) -> Dict[str, Any]:
    status = {"Status": node.status}
    if node.message:
        status["Message"] = node.message
    return {"InstanceGroupName": node.group, "InstanceId": node.instance_id, "InstanceType": node.instance_type,
            "LaunchTime": node.launched_at, "InstanceStatus": status,
            "PrivateDnsHostname": f"{node.host}.ec2.internal"}
