"""The cluster itself: what CreateCluster would refuse, found before the call."""

from __future__ import annotations

import re
from typing import Iterator

from hyperpod_kit.config.findings import WARNING, Finding
from hyperpod_kit.config.settings import Settings
from hyperpod_kit.model.cluster import Vpc

NAME = re.compile(r"[a-zA-Z0-9](-*[a-zA-Z0-9])*")
REGION = re.compile(r"[a-z]{2}(-[a-z]+)+-\d")
ROLE = re.compile(r"arn:aws[a-z-]*:iam::\d{12}:role/?[a-zA-Z_0-9+=,.@/_-]+")
TAG = re.compile(r"[\w .:/=+\-@]*")
RECOVERIES = ("Automatic", "None")
AT = "hyperpod_kit.cluster"

NETWORK_MOUNTS = ("efs", "s3files", "lustre", "openzfs")
"""Kinds that have a network address in a VPC."""


def identity(settings: Settings) -> Iterator[Finding]:
    """Name, region, execution role, VPC and node recovery."""
    cluster = settings.cluster
    if not NAME.fullmatch(cluster.name) or len(cluster.name) > 63:
        yield Finding(
            "HPK-K001",
            f"{AT}.name",
            f"`{cluster.name}` is not a cluster name",
            "Use 1 to 63 letters, digits and hyphens, no hyphen first or last",
        )
    if not REGION.fullmatch(cluster.region):
        yield Finding("HPK-K002", f"{AT}.region", f"`{cluster.region}` is not a region", "Write it like us-east-1")
    if not ROLE.fullmatch(cluster.execution_role):
        yield Finding(
            "HPK-K003",
            f"{AT}.execution_role",
            f"`{cluster.execution_role}` is not the ARN of a role",
            "Write it like arn:aws:iam::111122223333:role/Name",
        )
    if cluster.node_recovery not in RECOVERIES:
        yield Finding(
            "HPK-K004",
            f"{AT}.node_recovery",
            f"`{cluster.node_recovery}` is neither Automatic nor None",
            "Use Automatic",
        )
    elif cluster.node_recovery == "None":
        yield Finding(
            "HPK-K005",
            f"{AT}.node_recovery",
            "a broken node is not replaced, so auto-resume has no spare to wait for",
            "Use Automatic",
            WARNING,
        )
    yield from _vpc(settings)
    for key, value in cluster.tags:
        if not (TAG.fullmatch(key) and TAG.fullmatch(value) and 1 <= len(key) <= 128 and len(value) <= 256):
            yield Finding(
                "HPK-K009",
                f"{AT}.tags.{key}",
                f"`{key}` = `{value}` is not a tag",
                "Use letters, digits, spaces and _.:/=+-@: up to 128 in the key and 256 in the value",
            )


def _vpc(settings: Settings) -> Iterator[Finding]:
    """HyperPod's "FSx configurations are only supported for Custom VPC", and ids that are none."""
    cluster = settings.cluster
    everywhere = cluster.vpc is not None or all(group.vpc is not None for group in cluster.groups)
    network_mounts = [mount for mount in settings.mounts if mount.kind in NETWORK_MOUNTS]
    if network_mounts and not everywhere:
        yield Finding(
            "HPK-K006",
            f"{AT}.vpc",
            f"missing, but mount `{network_mounts[0].name}` can be reached in a VPC only",
            "Add vpc with security_group_ids and subnet_ids",
        )
    places = [(f"{AT}.instance_groups[{index}].vpc", group.vpc) for index, group in enumerate(cluster.groups)]
    for place, vpc in [(f"{AT}.vpc", cluster.vpc), *places]:
        if vpc is not None:
            yield from _ids(place, vpc)


def _ids(place: str, vpc: Vpc) -> Iterator[Finding]:
    for key, ids, letters, limit in (
        ("security_group_ids", vpc.security_group_ids, "sg", 5),
        ("subnet_ids", vpc.subnet_ids, "subnet", 16),
    ):
        if not 1 <= len(ids) <= limit:
            yield Finding(
                "HPK-K007",
                f"{place}.{key}",
                f"{len(ids)} ids: expected 1 to {limit}",
                "List the ids of the cluster's VPC",
            )
        for index, value in enumerate(ids):
            if not re.fullmatch(rf"{letters}-[0-9a-f]{{8,17}}", value):
                yield Finding(
                    "HPK-K008",
                    f"{place}.{key}[{index}]",
                    f"`{value}` is not an id of this kind",
                    f"Write it like {letters}-0123456789abcdef0",
                )
