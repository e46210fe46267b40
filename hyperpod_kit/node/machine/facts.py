"""Who this node is: from HyperPod's resource_config.json and the addresses of this machine, never from an AWS call.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import functools
import json
import os
import re
from dataclasses import asdict, dataclass
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple

from hyperpod_kit.environment import HPK_NODE_ADDRESS
from hyperpod_kit.errors import NodeError, UnknownRole
from hyperpod_kit.model.node_config import NodeConfig
from hyperpod_kit.node.machine import resource_config
from hyperpod_kit.node.machine.files import read_json, read_text, write_json
from hyperpod_kit.node.machine.paths import NodePaths
from hyperpod_kit.node.machine.timing import Clock, wait_for
from hyperpod_kit.untrusted.dataclass_json import dataclass_from_json

PLACED_WITHIN = 60.0
"""Seconds in which HyperPod must have written this node, and the controller, into the resource config."""


@dataclass(frozen=True)
class NodeFacts:
    """What a node knows about itself. `node`: short host name; `controller_address`: None when nobody says;
    `cluster`: the end of the cluster's ARN, "" when nobody says; `controllers`: addresses, the primary's first."""

    node: str
    address: str
    instance_id: str
    group: str
    role: str
    region: str
    partition: str
    controller_address: Optional[str]
    cluster: str = ""
    controllers: Tuple[str, ...] = ()

    def to_dict(self) -> Dict[str, Any]:
        return asdict(self)

    @property
    def dns_suffix(self) -> str:
        """What AWS's host names end in, in this partition."""
        if self.partition == "aws-cn":
            return "amazonaws.com.cn"
        return "amazonaws.com"


def is_local_address(address: str) -> bool:
    """Whether the literal `address` belongs to this machine. Sends nothing: the kernel picks the source address."""
    import socket  # not for the many commands that load the facts of creation

    if ":" in address:
        family = socket.AF_INET6
    else:
        family = socket.AF_INET
    try:
        socket.inet_pton(family, address)  # a name would be looked up, for as long as the resolver likes
    except OSError:
        return False
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((address, 9))
            return bool(probe.getsockname()[0] == address)
        except OSError:
            return False


def facts_from_resource_config(
    raw: Mapping[str, Any],
    roles: Mapping[str, str],
    hostname: str,
    is_local_address: Callable[[str], bool],
    local_instance_id: Callable[[], str] = lambda: "",
) -> Optional[NodeFacts]:
    """Return this node's facts by the resource config `raw`, None while it is not listed there.

    Raises UnknownRole when it is in a group that the bundle does not know, and what `find_local_instance`
    raises.
    """
    instance = resource_config.find_local_instance(raw, is_local_address, local_instance_id)
    if instance is None:
        return None
    if instance.group not in roles:
        raise UnknownRole(
            f"this node is in instance group {instance.group}, but the bundle has only {', '.join(sorted(roles))}",
            hint="add the group to provisioning_parameters.json, then hyperpod-kit upload",
        )
    region, partition = resource_config.region_and_partition(raw)
    controllers = resource_config.controller_addresses(raw, roles)
    return NodeFacts(
        node=hostname,
        address=instance.address,
        instance_id=instance.instance_id,
        group=instance.group,
        role=roles[instance.group],
        region=region,
        partition=partition,
        controller_address=controllers[0] if controllers else None,
        cluster=resource_config.cluster_id(raw),
        controllers=controllers,
    )


def local_address_predicate(paths: NodePaths, environ: Mapping[str, str]) -> Callable[[str], bool]:
    """Return the function that recognises this machine's address; below a root, `HPK_NODE_ADDRESS` may name
    it."""
    named = None
    if paths.root:
        named = environ.get(HPK_NODE_ADDRESS)
    if named:
        return lambda address: address == named
    return is_local_address


def instance_id_from_metadata_service(paths: NodePaths, environ: Mapping[str, str] = os.environ) -> str:
    """This machine's id by the metadata service, "" where that does not say; below a root only one that is named."""
    from hyperpod_kit.signing import role  # not for the many commands that load the facts of creation

    if paths.root and not environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT"):
        return ""
    instance_id = role.instance_id_or_empty(environ)
    if re.fullmatch(r"[A-Za-z0-9-]{1,64}", instance_id):
        return instance_id
    return ""


def gather(
    paths: NodePaths,
    config: NodeConfig,
    clock: Clock,
    environ: Mapping[str, str] = os.environ,
    within: float = PLACED_WITHIN,
) -> NodeFacts:
    """Read the facts anew, waiting up to `within` seconds until HyperPod has listed this node and every
    controller.

    A worker's copy of the file may lag behind: one that never names the controller gives an address of
    None. Raises NodeError without a resource config or with one that contradicts the bundle, UnknownRole
    when this node is not in it.
    """
    path = environ.get("SAGEMAKER_RESOURCE_CONFIG_PATH") or paths.resource_config
    import socket

    hostname = (read_text(paths.hostname) or socket.gethostname()).strip().split(".")[0]
    is_local_address = local_address_predicate(paths, environ)
    cached_instance_id = functools.lru_cache(maxsize=1)(lambda: instance_id_from_metadata_service(paths, environ))
    observed: List[Optional[NodeFacts]] = [None]
    ambiguous: List[resource_config.AmbiguousAddress] = []

    def read_once() -> Optional[NodeFacts]:
        ambiguous.clear()
        observed[0] = None
        try:
            raw = json.loads(read_text(path) or "null")
            if isinstance(raw, dict):
                observed[0] = facts_from_resource_config(
                    raw, config.roles, hostname, is_local_address, cached_instance_id
                )
            else:
                observed[0] = None
        except ValueError:
            return None  # being written just now
        except resource_config.AmbiguousAddress as err:
            ambiguous.append(err)  # an old entry goes, or this machine's comes
        if observed[0] is not None and len(observed[0].controllers) >= config.controllers:
            return observed[0]
        return None

    wait_for(read_once, seconds=within, clock=clock)
    if ambiguous:
        raise ambiguous[0]
    if observed[0] is None:
        if not os.path.exists(path):
            raise NodeError(
                f"{path}: no such file, so the identity of this node is unknown",
                hint="run the command on a HyperPod node, or set SAGEMAKER_RESOURCE_CONFIG_PATH to the file",
            )
        raise UnknownRole(
            f"{path} lists no instance with an address of this machine ({hostname})",
            hint="compare CustomerIpAddress there with: ip -brief address",
        )
    require_matching_role(read_json(paths.provisioning_parameters), observed[0], paths.provisioning_parameters)
    return observed[0]


def require_matching_role(parameters: Any, facts: NodeFacts, path: str) -> None:
    """Raise NodeError where the parameters that the cluster was created with give this node's group another
    role than the bundle."""
    role = resource_config.role_by_parameters(parameters, facts.group)
    if role is not None and role != facts.role:
        raise NodeError(
            f"instance group {facts.group} is {facts.role} in the bundle and {role} in {path}: the "
            "cluster was created from another configuration",
            hint="hyperpod-kit upload, then create or update the cluster from the same file",
        )


def save_facts(paths: NodePaths, facts: NodeFacts) -> None:
    """Keep the facts of creation for the node's life, when the environment of the lifecycle script is gone."""
    write_json(paths.facts, facts.to_dict())


def load_or_gather(paths: NodePaths, config: NodeConfig, clock: Clock) -> NodeFacts:
    """Load the facts of creation; gather them anew, without waiting, when the node was never provisioned."""
    try:
        return dataclass_from_json(NodeFacts, read_json(paths.facts))
    except ValueError:
        return gather(paths, config, clock, within=0.0)  # none, or written by another version
