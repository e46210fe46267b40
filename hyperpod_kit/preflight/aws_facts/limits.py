"""Quotas and what is in use of them, and whether secrets are there."""

from __future__ import annotations

from hyperpod_kit.aws.quotas import ALTOGETHER, PER_CLUSTER, Quota, Quotas, cluster_quota_name
from hyperpod_kit.aws.secrets import Secrets
from hyperpod_kit.config.settings.settings import Settings
from hyperpod_kit.model.secrets import Secret
from hyperpod_kit.preflight.client import QueryClient
from hyperpod_kit.preflight.facts import Queried
from hyperpod_kit.preflight.placement import TYPES


def fetch_quotas(client: QueryClient, settings: Settings) -> Queried[dict[str, Quota]]:
    """Query the quotas that bound this cluster, by name."""
    calls = client.service_client(Quotas, settings.cluster.region)
    names = [cluster_quota_name(name) for group in settings.cluster.groups for name in group.types]
    return client.query_or_record_failure(
        "servicequotas:ListServiceQuotas",
        TYPES,
        "whether the quotas allow the requested number of nodes",
        lambda: calls.quotas_by_name([*dict.fromkeys(names), PER_CLUSTER, ALTOGETHER]),
    )


def fetch_node_counts_by_cluster(client: QueryClient, settings: Settings) -> Queried[dict[str, dict[str, int]]]:
    """Query the number of nodes of every cluster, by instance type."""
    calls = client.service_client(Quotas, settings.cluster.region)
    return client.query_or_record_failure(
        "sagemaker:ListClusters",
        TYPES,
        "how much of the quotas other clusters use",
        calls.instance_counts_by_cluster,
    )


def query_secret_or_parameter_exists(client: QueryClient, requested: Secret, config_path: str) -> Queried[bool]:
    """Query whether a secret or parameter exists."""
    calls = client.service_client(Secrets, requested.region)
    what = f"whether secret `{requested.name}` exists"
    if requested.service == "secretsmanager":
        return client.query_or_record_failure(
            "secretsmanager:DescribeSecret", config_path, what, lambda: calls.secret_exists(requested.arn)
        )
    return client.query_or_record_failure(
        "ssm:DescribeParameters", config_path, what, lambda: calls.parameter_exists(requested.arn)
    )
