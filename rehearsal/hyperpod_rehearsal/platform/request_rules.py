"""What HyperPod refuses beyond the service model's constraints. Pure: a request and what is there, or an ApiError.

Where AWS's own sentence is known it stands here; where it is not, the docstring says so, and what the documentation
forbids is refused in words of ours. What the rehearsal itself cannot do is refused too, and named as that.
"""

from __future__ import annotations

import re
from typing import Any, Mapping, Sequence

from hyperpod_rehearsal.platform.cluster_state import CONTROLLER, RehearsedCluster
from hyperpod_rehearsal.sagemaker.api import ApiError

SOURCE_URI = re.compile(r"s3://sagemaker-[^/]+(/.*)?")
MAX_TAGS = 50
UPDATABLE = (
    "InstanceGroups",
    "RestrictedInstanceGroups",
    "RestrictedInstanceGroupsConfig",
    "TieredStorageConfig",
    "NodeRecovery",
    "InstanceGroupsToDelete",
    "NodeProvisioningMode",
    "ClusterRole",
    "AutoScaling",
    "Orchestrator",
)


def check_creation(request: Mapping[str, Any]) -> None:
    """Raise ApiError when a CreateCluster request breaks a rule.

    That a cluster without any instance group is refused is an assumption.
    """
    _check_orchestrator(request)
    if request.get("RestrictedInstanceGroups"):
        raise _validation_error("RestrictedInstanceGroups: the rehearsal has none.")
    if not request.get("InstanceGroups"):
        raise _validation_error("At least one instance group must be specified in InstanceGroups.")
    _check_groups(request)
    _check_continuous_provisioning(request)
    check_tags(request.get("Tags", []))


def check_update(cluster: RehearsedCluster, request: Mapping[str, Any]) -> None:
    """Raise ApiError when an UpdateCluster request breaks a rule.

    AWS's wording is not known for any of these, nor whether it takes an update that repeats what is there
    already; that one is taken, as no documentation forbids it.
    """
    if not any(request.get(field) is not None for field in UPDATABLE):
        raise _validation_error(f"UpdateCluster changes nothing: one of {', '.join(UPDATABLE)} must be given.")
    _check_orchestrator(request)
    if request.get("RestrictedInstanceGroups"):
        raise _validation_error("RestrictedInstanceGroups: the rehearsal has none.")
    _check_groups(request)
    present = {group["InstanceGroupName"]: group for group in cluster.groups}
    leaving = request.get("InstanceGroupsToDelete") or []
    requested = {group["InstanceGroupName"]: group for group in request.get("InstanceGroups") or []}
    missing = [name for name in leaving if name not in present]
    if missing:
        raise _validation_error(f"InstanceGroupsToDelete names no instance group of the cluster: {', '.join(missing)}.")
    both = [name for name in leaving if name in requested]
    if both:
        raise _validation_error(f"An instance group cannot be both updated and deleted: {', '.join(both)}.")
    for name, group in requested.items():
        for field in ("InstanceType", "SlurmConfig", "CapacityRequirements") if name in present else ():
            if field in group and group[field] != present[name].get(field):
                raise _validation_error(f"{field} of the existing instance group {name} cannot be changed.")
        _check_no_type_is_taken_out(name, present.get(name, {}), group)
    for name, role in cluster.slurm.items():
        if role == CONTROLLER and (requested.get(name, present[name]).get("InstanceCount", 0) < 1 or name in leaving):
            raise _validation_error("The Slurm controller's instance group cannot be removed.")


def check_software_update(cluster: RehearsedCluster, request: Mapping[str, Any]) -> None:
    """Raise ApiError when an UpdateClusterSoftware request breaks a rule. The rehearsal has one image."""
    present = {group["InstanceGroupName"] for group in cluster.groups}
    missing = [
        group["InstanceGroupName"]
        for group in request.get("InstanceGroups") or []
        if group["InstanceGroupName"] not in present
    ]
    if missing:
        raise _validation_error(f"InstanceGroups names no instance group of the cluster: {', '.join(missing)}.")
    if request.get("ImageId", "default") != "default" or any(
        "ImageReleaseVersion" in group for group in request.get("InstanceGroups") or []
    ):
        raise _validation_error("ImageId, ImageReleaseVersion: the rehearsal has one image, its default.")


def check_node_selection(cluster: RehearsedCluster, request: Mapping[str, Any]) -> None:
    """Raise ApiError unless a Batch request names nodes in one of both lists, as the documentation demands."""
    if not request.get("NodeIds") and not request.get("NodeLogicalIds"):
        raise _validation_error("Either NodeIds or NodeLogicalIds must be provided.")
    if request.get("NodeLogicalIds") and not cluster.is_continuously_provisioned:
        raise _validation_error(
            "NodeLogicalIds is only supported for clusters with NodeProvisioningMode set to Continuous."
        )


def check_batch_add_request(cluster: RehearsedCluster, request: Mapping[str, Any]) -> None:
    """Raise ApiError when a BatchAddClusterNodes request breaks a rule."""
    if not cluster.is_continuously_provisioned:
        raise _validation_error(
            "BatchAddClusterNodes is only supported for clusters with NodeProvisioningMode set to Continuous."
        )
    if sum(entry["IncrementTargetCountBy"] for entry in request["NodesToAdd"]) > 50:
        raise _validation_error(
            "The total number of nodes across all instance groups in a single request cannot exceed 50."
        )


def check_tags(tags: Sequence[Mapping[str, str]], existing_keys: Sequence[str] = ()) -> None:
    """Raise ApiError when tags cannot be added to a resource.

    `existing_keys`: of the resource's tags. The message for two tags of one key is not AWS's.
    """
    keys = [tag["Key"] for tag in tags]
    if any(key.lower().startswith("aws:") for key in keys):
        raise _validation_error("aws: prefixed tag key names are not allowed for external use.")
    twice = sorted({key for key in keys if keys.count(key) > 1})
    if twice:
        raise _validation_error(f"Tag keys must be unique per resource: {', '.join(twice)}.")
    if len({*keys, *existing_keys}) > MAX_TAGS:
        raise _validation_error(f"A resource cannot have more than {MAX_TAGS} tags.")


def _validation_error(message: str) -> ApiError:
    return ApiError("ValidationException", message)


def _check_no_type_is_taken_out(name: str, present: Mapping[str, Any], requested: Mapping[str, Any]) -> None:
    """Types can be added to a flexible group. What AWS does with one that is taken out while nodes have it is not
    known."""
    there, types = (group.get("InstanceRequirements", {}).get("InstanceTypes", []) for group in (present, requested))
    missing = [kind for kind in there if kind not in types]
    if missing:
        raise _validation_error(f"Instance group {name} has {', '.join(missing)}: no type can be taken out.")


def _check_orchestrator(request: Mapping[str, Any]) -> None:
    orchestrator = request.get("Orchestrator")
    if orchestrator is None:
        return
    if len(orchestrator) != 1:
        raise _validation_error("Exactly one orchestrator configuration must be provided: either Eks or Slurm.")
    if "Slurm" not in orchestrator:
        raise _validation_error("Orchestrator.Eks: the rehearsal's clusters are Slurm's, there is no Kubernetes here.")


def _check_groups(request: Mapping[str, Any]) -> None:
    groups = request.get("InstanceGroups") or []
    names = [group["InstanceGroupName"] for group in groups]
    if len(set(names)) != len(names):
        raise _validation_error("InstanceGroupNames must be unique within a cluster.")
    for group in groups:
        name = group["InstanceGroupName"]
        if ("InstanceType" in group) == ("InstanceRequirements" in group):
            raise _validation_error(f"Exactly one of InstanceType and InstanceRequirements must be given for {name}.")
        if group.get("MinInstanceCount", 0) > group["InstanceCount"]:
            raise _validation_error(f"MinInstanceCount of {name} must not be greater than its InstanceCount.")
        _check_lifecycle_config(name, group.get("LifeCycleConfig"))
        if group.get("AutoPatchConfig", {}).get("PatchingStrategy") == "DrainFirst":
            # "Available only for clusters that use Amazon EKS as the orchestrator": the service model; not AWS's words.
            raise _validation_error(f"PatchingStrategy DrainFirst of {name} is only supported for EKS clusters.")


def _check_lifecycle_config(group_name: str, lifecycle: Mapping[str, Any] | None) -> None:
    """A group without LifeCycleConfig is as the model allows. Half of one runs nothing, and is refused; AWS's words for
    that are not known."""
    if lifecycle is None:
        return
    uri = lifecycle.get("SourceS3Uri")
    if uri is not None and not SOURCE_URI.fullmatch(uri):
        raise _validation_error(f"SourceS3Uri {uri} must start with s3://sagemaker-.")
    if "OnCreate" in lifecycle and "OnInitComplete" in lifecycle:
        raise _validation_error("OnCreate and OnInitComplete in LifeCycleConfig are mutually exclusive.")
    if "OnCreate" not in lifecycle and "OnInitComplete" not in lifecycle:
        raise _validation_error(f"LifeCycleConfig of {group_name} must name a script in OnCreate or OnInitComplete.")
    if uri is None:
        raise _validation_error(f"LifeCycleConfig of {group_name} must say in SourceS3Uri where its script is.")


def _check_continuous_provisioning(request: Mapping[str, Any]) -> None:
    """Raise ApiError when a Continuous cluster lacks SlurmConfig or sets a SlurmConfigStrategy."""
    if request.get("NodeProvisioningMode") != "Continuous":
        return
    slurm = (request.get("Orchestrator") or {}).get("Slurm")
    if slurm is None or not all(group.get("SlurmConfig") for group in request.get("InstanceGroups", [])):
        raise _validation_error(
            "NodeProvisioningMode Continuous requires SlurmConfig in every InstanceGroup and Orchestrator.Slurm."
        )
    if "SlurmConfigStrategy" in slurm:
        raise _validation_error("SlurmConfigStrategy cannot be set for a cluster with NodeProvisioningMode Continuous.")
