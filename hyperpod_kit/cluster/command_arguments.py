"""The arguments that name a cluster in a command that a message proposes.

The region is always with them: the next command would otherwise look in the default region of the AWS configuration.
"""

from __future__ import annotations

from typing import Any, Mapping, Optional


def cluster_arguments(name: str, region: Optional[str]) -> str:
    """Return `--cluster NAME --region REGION`, without the region where it is unknown."""
    if not region:
        return f"--cluster {name}"
    return f"--cluster {name} --region {region}"


def live_cluster_arguments(live: Mapping[str, Any]) -> str:
    """Return the arguments for a cluster as DescribeCluster describes it; its ARN holds the region."""
    arn_parts = str(live.get("ClusterArn", "")).split(":")
    region = ""
    if len(arn_parts) > 3:
        region = arn_parts[3]
    return cluster_arguments(live["ClusterName"], region)
