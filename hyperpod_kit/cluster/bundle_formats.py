"""Which nodes run a bundle of a format that this release does not support: they are to be replaced.

AWS tells the bundle of an instance group and not that of a node, so this holds until the group has another one; `diff`
asks the nodes themselves.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Mapping, Optional

from hyperpod_kit.aws.s3 import Bucket
from hyperpod_kit.aws.sagemaker import SageMaker
from hyperpod_kit.bundle import manifest
from hyperpod_kit.bundle.stored import read_stored_format
from hyperpod_kit.cluster.nodes import list_nodes
from hyperpod_kit.errors import HyperpodKitError


@dataclass(frozen=True)
class UnsupportedBundle:
    """An instance group whose nodes were created from a bundle of another format. `nodes`: their instance ids."""

    group: str
    format: str
    nodes: tuple[str, ...]


def find_unsupported_bundles(
    live: Mapping[str, Any], sagemaker: SageMaker, open_bucket: Callable[[str], Bucket]
) -> list[UnsupportedBundle]:
    """Return the groups whose nodes were created from a bundle of a format that this release does not
    support.

    `live`: DescribeCluster's answer. A bundle that cannot be read is left out. Raises AwsError,
    Unreachable.
    """
    uris = {
        group["InstanceGroupName"]: (group.get("LifeCycleConfig") or {}).get("SourceS3Uri", "")
        for group in live["InstanceGroups"]
    }
    formats = {uri: _read_bundle_format(uri, open_bucket) for uri in sorted({*uris.values()})}
    unsupported = {group: formats[uri] for group, uri in uris.items() if formats[uri] not in ("", manifest.FORMAT)}
    if not unsupported:
        return []
    nodes: dict[str, list[str]] = {}
    for node in list_nodes(sagemaker, live["ClusterName"], fetch_addresses=False):
        if not node.is_shutting_down_or_gone:
            nodes.setdefault(node.group, []).append(node.instance_id)
    return [
        UnsupportedBundle(group, stored_format, tuple(nodes[group]))
        for group, stored_format in unsupported.items()
        if group in nodes
    ]


def replacement_advice(unsupported: UnsupportedBundle, controller: Optional[str]) -> str:
    """Return one sentence that says how to replace the unsupported bundle.

    `controller`: the Slurm controller's group.
    """
    nodes = " ".join(unsupported.nodes)
    problem = f"{unsupported.group} was created from {unsupported.format}, which this release does not support"
    if unsupported.group == controller:
        return f"{problem}: run the new bundle's entry script on {nodes}"
    return f"{problem}: hyperpod-kit replace-node {nodes}, or run the new bundle's entry script on them"


def _read_bundle_format(uri: str, open_bucket: Callable[[str], Bucket]) -> str:
    """The format of the bundle at an S3 URI, "" where there is none to read."""
    bucket, _, prefix = uri.removeprefix("s3://").partition("/")
    if not bucket or not prefix:
        return ""
    try:
        return read_stored_format(open_bucket(bucket), f"{prefix.rstrip('/')}/")
    except HyperpodKitError:
        return ""
