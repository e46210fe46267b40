"""Security groups: one of the nodes, one of the file systems, and what passes between them and nothing else.

The ports are those that the preflight asks for, from the same tables.
"""

from __future__ import annotations

from itertools import groupby
from typing import Any, Iterator, Sequence

from hyperpod_kit.config.settings.settings import Settings
from hyperpod_kit.infra.part import TemplatePart, name_tags, ref, resource
from hyperpod_kit.preflight.checks.shared import NFS
from hyperpod_kit.preflight.mounts.registry import INQUIRIES
from hyperpod_kit.preflight.placement import network_placements

NODES, STORAGE = "NodesGroup", "StorageGroup"


def security_groups_part(settings: Settings) -> TemplatePart:
    """Return both security groups with their rules. Nodes reach each other by everything, which an EFA needs,
    and whatever is outside."""
    inward, both_ways = _ports_to_and_from_storage(settings)
    resources: dict[str, Any] = {
        NODES: _security_group(settings.cluster.name, "nodes"),
        "NodesFromNodes": _security_group_rule("Ingress", NODES, NODES),
        "NodesToNodes": _security_group_rule("Egress", NODES, NODES),
    }
    if inward:
        resources[STORAGE] = _security_group(settings.cluster.name, "file systems")
    for low, high in _contiguous_ranges(inward):
        resources[f"StorageFromNodes{low}"] = _security_group_rule("Ingress", STORAGE, NODES, (low, high))
    if any(mount.efa for mount in settings.mounts):
        # FSx makes no file system with EFA without: all traffic, of groups by name, for an EFA's own is no IP traffic.
        for group, peer in ((STORAGE, STORAGE), (STORAGE, NODES), (NODES, STORAGE)):
            names = group.removesuffix("Group"), peer.removesuffix("Group")
            resources[f"{names[0]}From{names[1]}"] = _security_group_rule("Ingress", group, peer)
            resources[f"{names[0]}To{names[1]}"] = _security_group_rule("Egress", group, peer)
    for low, high in _contiguous_ranges(both_ways):
        # Lustre's servers connect to each other and back to their clients.
        resources[f"StorageFromStorage{low}"] = _security_group_rule("Ingress", STORAGE, STORAGE, (low, high))
        resources[f"NodesFromStorage{low}"] = _security_group_rule("Ingress", NODES, STORAGE, (low, high))
    return TemplatePart(
        "security groups",
        tuple(placement.security_groups_config_path for placement in network_placements(settings)),
        resources,
        {},
        {f"{placement.security_groups_config_path}[0]": ref(NODES) for placement in network_placements(settings)},
    )


def _ports_to_and_from_storage(settings: Settings) -> tuple[set[int], set[int]]:
    """Return the ports that nodes connect to on file systems, and those that file systems connect to on nodes."""
    inward: set[int] = set()
    both_ways: set[int] = set()
    for mount in settings.mounts:
        its = INQUIRIES[mount.kind]
        if its.shared is not None:
            inward.add(NFS)
        if its.fsx is not None:
            inward.update(its.fsx.ports)
            if its.fsx.both_ways:
                both_ways.update(its.fsx.ports)
    if settings.homes is not None:
        inward.add(NFS)
    return inward, both_ways


def _contiguous_ranges(ports: set[int]) -> Iterator[tuple[int, int]]:
    """Yield neighbouring ports as one range each, (first, last)."""
    for _, run in groupby(enumerate(sorted(ports)), lambda pair: pair[1] - pair[0]):
        neighbours = [port for _, port in run]
        yield neighbours[0], neighbours[-1]


def _security_group(cluster: str, members: str) -> Any:
    """Return a security group that lets everything out: EC2 adds that rule by default, Terraform does not."""
    return resource(
        "AWS::EC2::SecurityGroup",
        {
            "GroupDescription": f"{members} of {cluster}",
            "VpcId": ref("Vpc"),
            "SecurityGroupEgress": [{"IpProtocol": "-1", "CidrIp": "0.0.0.0/0"}],
            "Tags": name_tags(f"{cluster} {members}"),
        },
    )


def _security_group_rule(direction: str, group: str, peer: str, ports: Sequence[int] = ()) -> Any:
    peers = "DestinationSecurityGroupId"
    if direction == "Ingress":
        peers = "SourceSecurityGroupId"
    about: dict[str, Any] = {"IpProtocol": "-1"}
    if ports:
        about = {"IpProtocol": "tcp", "FromPort": ports[0], "ToPort": ports[1]}
    return resource(f"AWS::EC2::SecurityGroup{direction}", {"GroupId": ref(group), **about, peers: ref(peer)})
