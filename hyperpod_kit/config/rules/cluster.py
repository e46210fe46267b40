"""The cluster itself: what CreateCluster would refuse, found before the call."""

from __future__ import annotations

import re
from typing import Iterator

from hyperpod_kit.config.settings.findings import WARNING, Finding
from hyperpod_kit.config.settings.settings import Settings
from hyperpod_kit.model.cluster import Vpc

TAG = re.compile(r"[\w .:/=+\-@]*")
RECOVERIES = ("Automatic", "None")
AT = "hyperpod_kit.cluster"


def check_recovery_vpc_and_tags(settings: Settings) -> Iterator[Finding]:
    """Node recovery, VPC and tags."""
    cluster = settings.cluster
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
    yield from _check_vpc_presence_and_id_counts(settings)
    for key, value in cluster.tags:
        if not (TAG.fullmatch(key) and TAG.fullmatch(value) and 1 <= len(key) <= 128 and len(value) <= 256):
            yield Finding(
                "HPK-K009",
                f"{AT}.tags.{key}",
                f"`{key}` = `{value}` is not a tag",
                "Use letters, digits, spaces and _.:/=+-@: up to 128 in the key and 256 in the value",
            )


def _check_vpc_presence_and_id_counts(settings: Settings) -> Iterator[Finding]:
    """HyperPod's "FSx configurations are only supported for Custom VPC", and how many ids."""
    cluster = settings.cluster
    everywhere = cluster.vpc is not None or all(group.vpc is not None for group in cluster.groups)
    in_vpc = [mount for mount in settings.mounts if mount.traits.in_vpc]
    if in_vpc and not everywhere:
        yield Finding(
            "HPK-K006",
            f"{AT}.vpc",
            f"missing, but mount `{in_vpc[0].name}` can be reached in a VPC only",
            "Add vpc with security_group_ids and subnet_ids",
        )
    places = [(f"{AT}.instance_groups[{index}].vpc", group.vpc) for index, group in enumerate(cluster.groups)]
    for path, vpc in [(f"{AT}.vpc", cluster.vpc), *places]:
        if vpc is not None:
            yield from _check_id_counts(path, vpc)


def _check_id_counts(path: str, vpc: Vpc) -> Iterator[Finding]:
    for key, ids, limit in (("security_group_ids", vpc.security_group_ids, 5), ("subnet_ids", vpc.subnet_ids, 16)):
        if not 1 <= len(ids) <= limit:
            yield Finding(
                "HPK-K007",
                f"{path}.{key}",
                f"{len(ids)} ids: expected 1 to {limit}",
                "List the ids of the cluster's VPC",
            )
