"""The clusters of an account in one region."""

from __future__ import annotations

from dataclasses import dataclass

from hyperpod_kit.aws.sagemaker import SageMaker
from hyperpod_kit.cluster.times import format_utc


@dataclass(frozen=True)
class ListedCluster:
    """One cluster. `created`: in UTC."""

    name: str
    status: str
    created: str
    arn: str


def fetch_clusters(sagemaker: SageMaker) -> list[ListedCluster]:
    """List the clusters of a region by name. Raises AwsError, Unreachable."""
    clusters = [
        ListedCluster(
            summary["ClusterName"],
            summary.get("ClusterStatus", ""),
            format_utc(summary.get("CreationTime")),
            summary["ClusterArn"],
        )
        for summary in sagemaker.list_clusters()
    ]
    return sorted(clusters, key=lambda cluster: cluster.name)
