"""The clusters of an account in one region."""

from __future__ import annotations

from dataclasses import dataclass

from hyperpod_kit.aws.sagemaker import SageMaker
from hyperpod_kit.cluster.times import in_utc


@dataclass(frozen=True)
class ListedCluster:
    """One cluster. `created`: in UTC."""

    name: str
    status: str
    created: str
    arn: str


def list_all(sagemaker: SageMaker) -> list[ListedCluster]:
    """By name. Raises AwsError, Unreachable."""
    found = [
        ListedCluster(
            one["ClusterName"], one.get("ClusterStatus", ""), in_utc(one.get("CreationTime")), one["ClusterArn"]
        )
        for one in sagemaker.list_clusters()
    ]
    return sorted(found, key=lambda one: one.name)
