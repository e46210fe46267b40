"""Quotas allow the cluster beside the others, and secrets exist."""

from __future__ import annotations

from collections import Counter
from typing import Iterator, Mapping

from hyperpod_kit.aws.quotas import ALTOGETHER, PER_CLUSTER, Quota, cluster_quota_name
from hyperpod_kit.config.settings.findings import INFO, WARNING, Finding
from hyperpod_kit.config.settings.settings import Settings
from hyperpod_kit.preflight.facts import AccountFacts, value_or_none
from hyperpod_kit.preflight.placement import TYPES
from hyperpod_kit.untrusted.text import counted


def check_quotas(settings: Settings, facts: AccountFacts) -> Iterator[Finding]:
    """The quota of each instance type, of a cluster and of all clusters is not exceeded."""
    applied = value_or_none(facts.quotas)
    if applied is None:
        return
    clusters = value_or_none(facts.used) or {}
    used_elsewhere: Counter[str] = Counter()
    for name, types in clusters.items():
        if name != settings.cluster.name:
            used_elsewhere.update(types)
    yield from _check_quotas_of_types(settings, applied, used_elsewhere)
    total = sum(group.count for group in settings.cluster.groups)
    for name, used in ((PER_CLUSTER, 0), (ALTOGETHER, sum(used_elsewhere.values()))):
        if name in applied:
            yield from _check_quota(TYPES, applied[name], total, used, settings)


def _check_quotas_of_types(
    settings: Settings, applied: Mapping[str, Quota], used_elsewhere: Mapping[str, int]
) -> Iterator[Finding]:
    """Of a group with several types nobody knows beforehand how many nodes have which: each must have a quota."""
    requested: Counter[str] = Counter()
    for group in settings.cluster.groups:
        requested.update(dict.fromkeys(group.instance_types, 0) or {group.instance_type: group.count})
    for index, group in enumerate(settings.cluster.groups):
        for name in group.types:
            if name not in requested:
                continue  # said with an earlier group
            path, count = f"{TYPES}[{index}]", requested.pop(name)
            quota = applied.get(cluster_quota_name(name))
            if quota is not None:
                yield from _check_quota(path, quota, count, used_elsewhere.get(name, 0), settings)
            elif group.count:
                yield _no_quota_finding(f"{path}.{group.types_key}", name, settings)


def _no_quota_finding(path: str, instance_type: str, settings: Settings) -> Finding:
    return Finding(
        "HPK-V602",
        path,
        f"SageMaker has no quota `{cluster_quota_name(instance_type)}` in {settings.cluster.region}",
        "The type may not be available for clusters: see AWS's page of HyperPod regions and types",
        WARNING,
    )


def check_secrets_exist(settings: Settings, facts: AccountFacts) -> Iterator[Finding]:
    """Every secret and parameter that nodes fetch is there."""
    for index, secret in enumerate(settings.secrets):
        if facts.secrets.get(secret.arn) is False:
            kind = "parameter"
            if secret.service == "secretsmanager":
                kind = "secret"
            yield Finding(
                "HPK-V701",
                f"hyperpod_kit.secrets[{index}].arn",
                f"{kind} {secret.arn} does not exist",
                "Create it, or correct the ARN",
            )


def check_cluster_name_unused(settings: Settings, facts: AccountFacts) -> Iterator[Finding]:
    """A cluster of this name is there already: what differs from it is for update-cluster."""
    clusters = value_or_none(facts.used)
    if clusters is not None and settings.cluster.name in clusters:
        nodes = sum(clusters[settings.cluster.name].values())
        yield Finding(
            "HPK-V603",
            "hyperpod_kit.cluster.name",
            f"cluster `{settings.cluster.name}` already exists, with {counted(nodes, 'node')}",
            "hyperpod-kit update-cluster --dry-run shows what would change",
            INFO,
        )


def _check_quota(path: str, quota: Quota, requested: int, used: int, settings: Settings) -> Iterator[Finding]:
    if requested + used <= quota.value:
        return
    beside = ""
    if used:
        beside = f" in addition to {used} in other clusters"
    count_path = path
    if path != TYPES:
        count_path = f"{path}.count"
    yield Finding(
        "HPK-V601",
        count_path,
        f"the quota `{quota.name}` is {quota.value:g}, but the configuration has {counted(requested, 'node')}{beside}",
        f"aws service-quotas request-service-quota-increase --service-code sagemaker --quota-code {quota.code} "
        f"--desired-value {requested + used} --region {settings.cluster.region}",
    )
