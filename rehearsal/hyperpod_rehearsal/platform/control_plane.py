"""SageMaker's cluster calls on the rehearsal's machines: the shapes of the API in front, operations behind."""

from __future__ import annotations

import copy
import secrets
from typing import Any, Dict, List, Mapping, Sequence, Tuple

from hyperpod_rehearsal.agent.s3_client import split_uri
from hyperpod_rehearsal.platform import (
    cluster_operations,
    health_check,
    node_batches,
    request_rules,
    scaling,
    software_update,
)
from hyperpod_rehearsal.platform.cluster_state import ZONE, RehearsedCluster, RehearsedNode
from hyperpod_rehearsal.platform.group_description import capacity_type, describe_group, describe_training_plan
from hyperpod_rehearsal.platform.operations import Operations
from hyperpod_rehearsal.sagemaker.api import ApiError

CLUSTER_FIELDS = ("VpcConfig", "Orchestrator", "NodeProvisioningMode", "ClusterRole", "TieredStorageConfig")
"""Members of a request that come back as they were."""


class RehearsalControlPlane:
    """Implements sagemaker.api.ControlPlane; see there for what each method promises."""

    def __init__(self, operations: Operations) -> None:
        self._operations = operations

    def _find_cluster(self, name_or_arn: str) -> RehearsedCluster:
        with self._operations.lock:
            for cluster in self._operations.clusters.values():
                if name_or_arn in (cluster.name, cluster.arn):
                    return cluster
        raise ApiError("ResourceNotFound", f"Cluster {name_or_arn} not found.")

    def create_cluster(self, request: Mapping[str, Any]) -> str:
        operations = self._operations
        request_rules.check_creation(request)
        cluster = RehearsedCluster(
            request["ClusterName"],
            secrets.token_hex(6),
            copy.deepcopy(dict(request)),
            tags={tag["Key"]: tag["Value"] for tag in request.get("Tags", [])},
        )
        with operations.lock:
            if cluster.name in operations.clusters:
                raise ApiError(
                    "ResourceInUse", f"Cluster with name {cluster.name} already exists. Choose a different name."
                )
            operations.clusters[cluster.name] = cluster
        operations.changed()
        operations.run_in_background(operations.bring_up_cluster, cluster)
        return cluster.arn

    def lifecycle_script_buckets_and_prefixes(self) -> List[Tuple[str, str]]:
        with self._operations.lock:
            groups = [group for cluster in self._operations.clusters.values() for group in cluster.groups]
        uris = {(group.get("LifeCycleConfig") or {}).get("SourceS3Uri") for group in groups}
        return [split_uri(uri) for uri in sorted(filter(None, uris))]

    def describe_cluster(self, name: str) -> Dict[str, Any]:
        cluster = self._find_cluster(name)
        with self._operations.lock:
            description: Dict[str, Any] = {
                "ClusterArn": cluster.arn,
                "ClusterName": cluster.name,
                "ClusterStatus": cluster.status,
                "CreationTime": cluster.created_at,
                "InstanceGroups": [describe_group(cluster, group) for group in cluster.groups],
                "NodeRecovery": cluster.request.get("NodeRecovery", "Automatic"),
            }
            if cluster.failure_message:
                description["FailureMessage"] = cluster.failure_message
            for field in CLUSTER_FIELDS:
                if field in cluster.request:
                    description[field] = cluster.request[field]
        return description

    def list_clusters(self) -> List[Dict[str, Any]]:
        with self._operations.lock:
            return [
                {
                    "ClusterArn": cluster.arn,
                    "ClusterName": cluster.name,
                    "CreationTime": cluster.created_at,
                    "ClusterStatus": cluster.status,
                }
                for cluster in self._operations.clusters.values()
            ]

    def list_cluster_nodes(self, name: str) -> List[Dict[str, Any]]:
        cluster = self._find_cluster(name)
        with self._operations.lock:
            return [_summarize_node(node) for node in cluster.nodes.values()]

    def describe_cluster_node(self, name: str, node_id: str) -> Dict[str, Any]:
        cluster = self._find_cluster(name)
        with self._operations.lock:
            node = cluster.nodes.get(node_id) or next(
                (node for node in cluster.nodes.values() if node.logical_id == node_id), None
            )
            if node is None:
                raise ApiError("ResourceNotFound", f"Instance with id {node_id} not found.")
            details = {
                **_summarize_node(node),
                "PrivatePrimaryIp": node.ip,
                "Placement": {"AvailabilityZone": ZONE, "AvailabilityZoneId": "use1-az1"},
                "CapacityType": capacity_type(cluster.group(node.group)),
            }
            lifecycle = cluster.group(node.group).get("LifeCycleConfig")
            if lifecycle:
                details["LifeCycleConfig"] = lifecycle
            return details

    def list_cluster_events(self, name: str) -> List[Dict[str, Any]]:
        cluster = self._find_cluster(name)
        if not cluster.is_continuously_provisioned:
            raise ApiError(
                "ValidationException",
                "ListClusterEvents is only supported for cluster with NodeProvisioningMode set to Continuous",
            )
        with self._operations.lock:
            return copy.deepcopy(cluster.events)

    def list_cluster_operations(self, name: str) -> List[Dict[str, Any]]:
        cluster = self._find_cluster(name)
        with self._operations.lock:
            return copy.deepcopy(cluster_operations.describe_operations(cluster))

    def start_cluster_health_check(self, request: Mapping[str, Any]) -> str:
        cluster = self._require_in_service(request["ClusterName"])
        health_check.start_health_check(self._operations, cluster, copy.deepcopy(dict(request)))
        return cluster.arn

    def describe_training_plan(self, name: str) -> Dict[str, Any]:
        with self._operations.lock:
            plan = describe_training_plan(self._operations.clusters, name)
        if plan is None:
            raise ApiError("ResourceNotFound", f"Training plan {name} not found.")
        return plan

    def update_cluster(self, request: Mapping[str, Any]) -> str:
        operations = self._operations
        with operations.lock:
            cluster = self._require_in_service(request["ClusterName"])
            request_rules.check_update(cluster, request)
            # A cluster that is provisioned continuously stays in service while its nodes come and go.
            cluster.status, cluster.failure_message = (
                "InService" if cluster.is_continuously_provisioned else "Updating",
                "",
            )
        operations.run_in_background(scaling.apply_cluster_update, operations, cluster, copy.deepcopy(dict(request)))
        return cluster.arn

    def delete_cluster(self, name: str) -> str:
        operations = self._operations
        with operations.lock:
            cluster = self._find_cluster(name)
            if cluster.status == "Deleting":
                raise ApiError("ConflictException", f"Cluster {cluster.name} is Deleting.")
            cluster.status = "Deleting"
        operations.run_in_background(operations.delete_cluster, cluster)
        return cluster.arn

    def update_cluster_software(self, request: Mapping[str, Any]) -> str:
        operations = self._operations
        with operations.lock:
            cluster = self._require_in_service(request["ClusterName"])
            request_rules.check_software_update(cluster, request)
            cluster.status, cluster.failure_message = software_update.UPDATING, ""
        operations.run_in_background(software_update.update_software, operations, cluster, copy.deepcopy(dict(request)))
        return cluster.arn

    def batch_replace_cluster_nodes(self, request: Mapping[str, Any]) -> Dict[str, Any]:
        return node_batches.replace_nodes(self._operations, self._require_in_service(request["ClusterName"]), request)

    def batch_reboot_cluster_nodes(self, request: Mapping[str, Any]) -> Dict[str, Any]:
        return node_batches.reboot_nodes(self._operations, self._require_in_service(request["ClusterName"]), request)

    def batch_delete_cluster_nodes(self, request: Mapping[str, Any]) -> Dict[str, Any]:
        return node_batches.delete_nodes(self._operations, self._require_in_service(request["ClusterName"]), request)

    def batch_add_cluster_nodes(self, request: Mapping[str, Any]) -> Dict[str, Any]:
        return node_batches.add_nodes(self._operations, self._require_in_service(request["ClusterName"]), request)

    def tags(self, arn: str) -> Dict[str, str]:
        with self._operations.lock:
            return dict(self._cluster_by_arn(arn).tags)

    def add_tags(self, arn: str, tags: Sequence[Mapping[str, str]]) -> Dict[str, str]:
        with self._operations.lock:
            cluster = self._cluster_by_arn(arn)
            request_rules.check_tags(tags, list(cluster.tags))
            cluster.tags.update({tag["Key"]: tag["Value"] for tag in tags})
            return dict(cluster.tags)

    def delete_tags(self, arn: str, keys: Sequence[str]) -> None:
        with self._operations.lock:
            cluster = self._cluster_by_arn(arn)
            for key in keys:
                cluster.tags.pop(key, None)

    def _cluster_by_arn(self, arn: str) -> RehearsedCluster:
        for cluster in self._operations.clusters.values():
            if cluster.arn == arn:
                return cluster
        # What AWS answers for an ARN of nothing is not known.
        raise ApiError("ValidationException", f"The request cannot be processed. Resource {arn} does not exist.")

    def _require_in_service(self, name_or_arn: str) -> RehearsedCluster:
        """Return the cluster. Raises ApiError when it is not InService and so cannot be changed now."""
        cluster = self._find_cluster(name_or_arn)
        if cluster.status != "InService":
            raise ApiError("ConflictException", f"Cluster {cluster.name} is {cluster.status}.")
        return cluster


def _summarize_node(node: RehearsedNode) -> Dict[str, Any]:
    optional_members: Dict[str, Any] = {}
    status = {"Status": node.status}
    if node.message:
        status["Message"] = node.message
    if node.updated_at:
        optional_members["LastSoftwareUpdateTime"] = node.updated_at
    return {
        **optional_members,
        "InstanceGroupName": node.group,
        "InstanceId": node.instance_id,
        "NodeLogicalId": node.logical_id,
        "InstanceType": node.instance_type,
        "LaunchTime": node.launched_at,
        "InstanceStatus": status,
        "PrivateDnsHostname": f"{node.host}.ec2.internal",
    }
