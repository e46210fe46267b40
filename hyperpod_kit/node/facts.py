"""Who this node is: from HyperPod's resource_config.json and the addresses of this machine, never from an AWS call.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import json
import os
import socket
from dataclasses import asdict, dataclass
from typing import Any, Callable, Dict, Iterator, Mapping, Optional, Tuple

from hyperpod_kit.errors import NodeError, UnknownRole
from hyperpod_kit.model.node_config import NodeConfig
from hyperpod_kit.node.files import read_json, read_text, write_json
from hyperpod_kit.node.paths import NodePaths
from hyperpod_kit.node.timing import Clock, wait_for

PLACED_WITHIN = 60.0
"""Seconds in which HyperPod must have written this node into the resource config."""


@dataclass(frozen=True)
class Facts:
    """What a node knows about itself. `node`: host name; `controller_address`: None when nobody says."""

    node: str
    address: str
    instance_id: str
    group: str
    role: str
    region: str
    partition: str
    controller_address: Optional[str]

    def to_dict(self) -> Dict[str, Any]:
        return asdict(self)

    @property
    def dns_suffix(self) -> str:
        """What AWS's host names end in, in this partition."""
        return "amazonaws.com.cn" if self.partition == "aws-cn" else "amazonaws.com"


def is_own_address(address: str) -> bool:
    """Whether `address` belongs to this machine. Sends nothing: the kernel only picks the source address."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((address, 9))
            return bool(probe.getsockname()[0] == address)
        except OSError:
            return False


def instances(resource_config: Mapping[str, Any]) -> Iterator[Tuple[str, Mapping[str, Any]]]:
    """(group name, instance) of every instance; `Instances` may be null or absent for a group of none."""
    for group in resource_config.get("InstanceGroups") or []:
        for instance in group.get("Instances") or []:
            yield group["Name"], instance


def controller_address(resource_config: Mapping[str, Any], roles: Mapping[str, str]) -> Optional[str]:
    """Address of the Slurm controller: what HyperPod says, else the first instance of the controller group."""
    said = (resource_config.get("SlurmConfig") or {}).get("PrimaryControllerIp")
    if said:
        return str(said)
    for group, instance in instances(resource_config):
        if roles.get(group) == "controller":
            return str(instance["CustomerIpAddress"])
    return None


def find_self(resource_config: Mapping[str, Any], roles: Mapping[str, str], hostname: str,
              is_own: Callable[[str], bool]) -> Optional[Facts]:
    """This node's facts, None while it is not in the resource config.

    Raises UnknownRole when it is in a group that the bundle does not know, NodeError on a cluster without Slurm.
    """
    if resource_config.get("ClusterType") == "Kubernetes":
        raise NodeError("this cluster is orchestrated by Kubernetes, and this bundle is for Slurm")
    arn = str((resource_config.get("ClusterConfig") or {}).get("ClusterArn", "")).split(":")
    for group, instance in instances(resource_config):
        if not is_own(str(instance.get("CustomerIpAddress"))):
            continue
        if group not in roles:
            raise UnknownRole(f"this node is in instance group {group}, the bundle knows {', '.join(sorted(roles))}",
                              hint="add the group to provisioning_parameters.json, then hyperpod-kit upload")
        return Facts(
            node=hostname, address=str(instance["CustomerIpAddress"]), instance_id=str(instance.get("InstanceId", "")),
            group=group, role=roles[group], region=arn[3] if len(arn) > 3 else "",
            partition=arn[1] if len(arn) > 3 else "aws", controller_address=controller_address(resource_config, roles))
    return None


def own_address_test(paths: NodePaths, environ: Mapping[str, str]) -> Callable[[str], bool]:
    """How to recognise our own address; below a root, `HPK_NODE_ADDRESS` may name it."""
    named = environ.get("HPK_NODE_ADDRESS") if paths.root else None
    return (lambda address: address == named) if named else is_own_address


def gather(paths: NodePaths, config: NodeConfig, clock: Clock, environ: Mapping[str, str] = os.environ,
           within: float = PLACED_WITHIN) -> Facts:
    """Read the facts anew, waiting up to `within` seconds until HyperPod has listed this node.

    Raises NodeError without a resource config, UnknownRole when this node is not in it.
    """
    path = environ.get("SAGEMAKER_RESOURCE_CONFIG_PATH") or paths.resource_config
    hostname = (read_text(paths.hostname) or socket.gethostname()).strip()
    is_own = own_address_test(paths, environ)

    def look() -> Optional[Facts]:
        try:
            raw = json.loads(read_text(path) or "null")
        except ValueError:
            return None  # being written just now
        return find_self(raw, config.roles, hostname, is_own) if raw else None

    found = wait_for(look, seconds=within, clock=clock)
    if found is not None:
        return found
    if not os.path.exists(path):
        raise NodeError(f"{path}: not there, so nothing says which node this is",
                        hint="run on a HyperPod node, or name the file: SAGEMAKER_RESOURCE_CONFIG_PATH")
    raise UnknownRole(f"{path} lists no instance with an address of this machine ({hostname})")


def save(paths: NodePaths, facts: Facts) -> None:
    """Keep the facts of creation for the node's life, when the environment of the lifecycle script is gone."""
    write_json(paths.facts, facts.to_dict())


def load(paths: NodePaths, config: NodeConfig, clock: Clock) -> Facts:
    """The facts of creation; gathered anew, without waiting, when the node was never provisioned."""
    raw = read_json(paths.facts)
    try:
        return Facts(**raw) if raw else gather(paths, config, clock, within=0.0)
    except TypeError:
        return gather(paths, config, clock, within=0.0)  # written by another version
