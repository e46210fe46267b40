"""What HyperPod wrote about the cluster, as it occurs: groups of none, odd entries, a copy that lags behind. Pure.

resource_config.json has no published schema; this is what AWS's own readers of it expect. Everything else is ignored.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Callable, Iterator, List, Mapping, Optional, Tuple

from hyperpod_kit.errors import NodeError
from hyperpod_kit.model.states import Role


class AmbiguousAddress(NodeError):
    """Several instance groups list this machine's address, and nothing says yet which entry is this machine."""


@dataclass(frozen=True)
class Instance:
    """One instance of the file, as far as it says: `address` is the one in the customer's VPC."""

    group: str
    address: str
    instance_id: str


def instances(resource_config: Mapping[str, Any]) -> Iterator[Instance]:
    """Yield every instance with an address; `Instances` may be null or absent, for a group of none."""
    for group in resource_config.get("InstanceGroups") or []:
        for raw in group.get("Instances") or []:
            address = raw.get("CustomerIpAddress")
            if isinstance(address, str) and group.get("Name"):
                yield Instance(str(group["Name"]), address, str(raw.get("InstanceId") or ""))


def find_local_instance(
    resource_config: Mapping[str, Any],
    is_local_address: Callable[[str], bool],
    local_instance_id: Callable[[], str] = lambda: "",
) -> Optional[Instance]:
    """This machine among the instances, None while it is not listed.

    A machine that was here before may have had the address, in another group too: then `local_instance_id`, this
    machine's instance id or "" where nobody knows it, decides. It also stands in where the entry has none. Raises
    NodeError on a cluster without Slurm, AmbiguousAddress where no id decides.
    """
    if resource_config.get("ClusterType") == "Kubernetes":
        raise NodeError(
            "this cluster is orchestrated by Kubernetes, but this bundle is for Slurm",
            hint="use a Slurm cluster; on EKS, CSI drivers mount the volumes",
        )
    listed = [instance for instance in instances(resource_config) if is_local_address(instance.address)]
    if not listed:
        return None
    groups = sorted({instance.group for instance in listed})
    if len(groups) == 1 and listed[-1].instance_id:
        return listed[-1]
    local_id = local_instance_id()
    if len(groups) == 1:
        return replace(listed[-1], instance_id=local_id)
    entries = [instance for instance in listed if local_id and instance.instance_id == local_id]
    if len({instance.group for instance in entries}) == 1:
        return entries[-1]
    ids = ", ".join(f"{instance.instance_id or 'no id'} in {instance.group}" for instance in listed)
    identity = "has no known instance id"
    if local_id:
        identity = f"is {local_id}"
    raise AmbiguousAddress(
        f"address {listed[0].address} is listed in the instance groups {' and '.join(groups)} ({ids}), and this "
        f"machine {identity}",
        hint="wait until HyperPod has rewritten /opt/ml/config/resource_config.json, then hyperpod-kit node apply",
    )


def controller_addresses(resource_config: Mapping[str, Any], roles: Mapping[str, str]) -> Tuple[str, ...]:
    """Addresses of the Slurm controllers, the primary first: what HyperPod says, then the instances of their group."""
    slurm_config = resource_config.get("SlurmConfig") or {}
    secondary = slurm_config.get("SecondaryControllerIps")
    if not isinstance(secondary, list):
        secondary = []
    named = [slurm_config.get("PrimaryControllerIp"), *secondary]
    listed = [
        instance.address for instance in instances(resource_config) if roles.get(instance.group) == Role.CONTROLLER
    ]
    return tuple(dict.fromkeys(str(address) for address in [*named, *listed] if address))


def instance_type(resource_config: Mapping[str, Any], group: str) -> str:
    """`ml.p5.48xlarge` of an instance group; "" when the file does not say."""
    groups = resource_config.get("InstanceGroups")
    for raw in groups if isinstance(groups, list) else []:
        if isinstance(raw, dict) and raw.get("Name") == group:
            type_name = raw.get("InstanceType")
            if isinstance(type_name, str) and len(type_name) <= 64:
                return type_name
            return ""
    return ""


def region_and_partition(resource_config: Mapping[str, Any]) -> Tuple[str, str]:
    """(region, partition) out of the cluster's ARN; ("", "aws") without one."""
    arn: List[str] = str((resource_config.get("ClusterConfig") or {}).get("ClusterArn", "")).split(":")
    if len(arn) > 3:
        return (arn[3], arn[1])
    return ("", "aws")


def cluster_id(resource_config: Mapping[str, Any]) -> str:
    """The end of the cluster's ARN, which no other cluster ever has; "" without one."""
    arn = str((resource_config.get("ClusterConfig") or {}).get("ClusterArn", ""))
    cluster = ""
    if ":cluster/" in arn:
        cluster = arn.rpartition(":cluster/")[2]
    if cluster.isalnum():
        return cluster
    return ""


def role_by_parameters(parameters: Any, group: str) -> Optional[str]:
    """The role that a provisioning_parameters.json gives to an instance group; None when it says nothing about roles.

    Whatever is neither the controller's group nor the login group computes; the login group is optional.
    """
    if not isinstance(parameters, dict) or not parameters.get("controller_group"):
        return None
    if group == parameters["controller_group"]:
        return Role.CONTROLLER
    if group == parameters.get("login_group"):
        return Role.LOGIN
    return Role.COMPUTE
