"""What HyperPod wrote about the cluster, as it occurs: groups of none, odd entries, a copy that lags behind. Pure.

resource_config.json has no published schema; this is what AWS's own readers of it expect. Everything else is ignored.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Iterator, List, Mapping, Optional, Tuple

from hyperpod_kit.errors import NodeError
from hyperpod_kit.model.states import Role


@dataclass(frozen=True)
class Instance:
    """One instance of the file, as far as it says: `address` is the one in the customer's VPC."""

    group: str
    address: str
    instance_id: str


def instances(resource_config: Mapping[str, Any]) -> Iterator[Instance]:
    """Every instance with an address; `Instances` may be null or absent, for a group of none."""
    for group in resource_config.get("InstanceGroups") or []:
        for raw in group.get("Instances") or []:
            address = raw.get("CustomerIpAddress")
            if isinstance(address, str) and group.get("Name"):
                yield Instance(str(group["Name"]), address, str(raw.get("InstanceId") or ""))


def find_own(resource_config: Mapping[str, Any], is_own: Callable[[str], bool]) -> Optional[Instance]:
    """This machine among the instances, None while it is not listed.

    Raises NodeError on a cluster without Slurm, and when two groups list the address: one of them is a machine that
    was here before, and nothing says which.
    """
    if resource_config.get("ClusterType") == "Kubernetes":
        raise NodeError(
            "this cluster is orchestrated by Kubernetes, and this bundle is for Slurm",
            hint="use a Slurm cluster; on EKS, volumes are the CSI drivers' business",
        )
    found = [instance for instance in instances(resource_config) if is_own(instance.address)]
    groups = sorted({instance.group for instance in found})
    if len(groups) > 1:
        raise NodeError(f"address {found[0].address} is listed in the instance groups {' and '.join(groups)}")
    return found[-1] if found else None


def controller_addresses(resource_config: Mapping[str, Any], roles: Mapping[str, str]) -> Tuple[str, ...]:
    """Addresses of the Slurm controllers, the primary first: what HyperPod says, then the instances of their group."""
    said = resource_config.get("SlurmConfig") or {}
    others = said.get("SecondaryControllerIps")
    named = [said.get("PrimaryControllerIp"), *(others if isinstance(others, list) else ())]
    listed = [
        instance.address for instance in instances(resource_config) if roles.get(instance.group) == Role.CONTROLLER
    ]
    return tuple(dict.fromkeys(str(address) for address in [*named, *listed] if address))


def instance_type(resource_config: Mapping[str, Any], group: str) -> str:
    """`ml.p5.48xlarge` of an instance group; "" when the file does not say."""
    groups = resource_config.get("InstanceGroups")
    for raw in groups if isinstance(groups, list) else []:
        if isinstance(raw, dict) and raw.get("Name") == group:
            found = raw.get("InstanceType")
            return found if isinstance(found, str) and len(found) <= 64 else ""
    return ""


def place(resource_config: Mapping[str, Any]) -> Tuple[str, str]:
    """(region, partition) out of the cluster's ARN; ("", "aws") without one."""
    arn: List[str] = str((resource_config.get("ClusterConfig") or {}).get("ClusterArn", "")).split(":")
    return (arn[3], arn[1]) if len(arn) > 3 else ("", "aws")


def cluster_id(resource_config: Mapping[str, Any]) -> str:
    """The end of the cluster's ARN, which no other cluster ever has; "" without one."""
    arn = str((resource_config.get("ClusterConfig") or {}).get("ClusterArn", ""))
    found = arn.rpartition(":cluster/")[2] if ":cluster/" in arn else ""
    return found if found.isalnum() else ""


def role_by_parameters(parameters: Any, group: str) -> Optional[str]:
    """The role that a provisioning_parameters.json gives to an instance group; None when it says nothing about roles.

    Whatever is neither the controller's group nor the login group computes; the login group is optional.
    """
    if not isinstance(parameters, dict) or not parameters.get("controller_group"):
        return None
    if group == parameters["controller_group"]:
        return Role.CONTROLLER
    return Role.LOGIN if group == parameters.get("login_group") else Role.COMPUTE
