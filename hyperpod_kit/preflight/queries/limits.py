"""Quotas and what is in use of them, and whether secrets are there."""

from __future__ import annotations

from hyperpod_kit.aws.quotas import ALTOGETHER, PER_CLUSTER, Quota, Quotas, for_type
from hyperpod_kit.aws.secrets import Secrets
from hyperpod_kit.config.settings import Settings
from hyperpod_kit.model.secrets import Secret
from hyperpod_kit.preflight.facts import Answer
from hyperpod_kit.preflight.placement import TYPES
from hyperpod_kit.preflight.queries.client import QueryClient


def quotas(client: QueryClient, settings: Settings) -> Answer[dict[str, Quota]]:
    """The quotas that bound this cluster, by name."""
    calls = client.service(Quotas, settings.cluster.region)
    names = [for_type(group.instance_type) for group in settings.cluster.groups]
    return client.ask(
        "servicequotas:ListServiceQuotas",
        TYPES,
        "whether the quotas allow so many nodes",
        lambda: calls.named([*dict.fromkeys(names), PER_CLUSTER, ALTOGETHER]),
    )


def used(client: QueryClient, settings: Settings) -> Answer[dict[str, dict[str, int]]]:
    """Nodes of every cluster, by instance type."""
    calls = client.service(Quotas, settings.cluster.region)
    return client.ask(
        "sagemaker:ListClusters",
        TYPES,
        "how much of the quotas other clusters use",
        calls.used,
    )


def secret(client: QueryClient, wanted: Secret, path: str) -> Answer[bool]:
    """Whether a secret or parameter is there."""
    calls = client.service(Secrets, wanted.region)
    what = f"whether secret `{wanted.name}` is there"
    if wanted.service == "secretsmanager":
        return client.ask("secretsmanager:DescribeSecret", path, what, lambda: calls.secret_exists(wanted.arn))
    return client.ask("ssm:DescribeParameters", path, what, lambda: calls.parameter_exists(wanted.arn))
