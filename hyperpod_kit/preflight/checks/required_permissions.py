"""What the nodes' role must be allowed, read off the configuration.

One list, two readers: role_policy.py makes the least policy of it, and the preflight has IAM simulate it. So what is
generated passes, and what passes is what the nodes need.

Sources: HyperPod's own needs are those of AWS's managed policy AmazonSageMakerClusterInstanceRolePolicy and, with a
VPC, of the policy in the sample architecture of awslabs/awsome-distributed-ai (SageMaker makes the nodes' network
interfaces with the role); those of the mount clients are in Mountpoint's CONFIGURATION.md and in the user guides of
EFS and S3 Files.
"""

from __future__ import annotations

from typing import Iterator

from hyperpod_kit.config.settings.settings import Settings
from hyperpod_kit.config.settings.sourced import SourcedMount
from hyperpod_kit.model.secrets import ARN
from hyperpod_kit.preflight.mounts.registry import INQUIRIES
from hyperpod_kit.preflight.permission import CLUSTER_LOGS, Account, Permission, sid_part_from_name
from hyperpod_kit.preflight.placement import NodeRole


def required_permissions(settings: Settings, role: NodeRole) -> tuple[Permission, ...]:
    """List every permission that a role of the configuration needs, for the groups that have it.

    The role's ARN must be one: the account is read off it.
    """
    account = Account(role.arn.split(":")[1], role.account, settings.cluster.region)
    carried: dict[str, list[SourcedMount]] = {}
    for written in settings.sourced_mounts:
        if any(written.mount.is_carried_by(group.role, group.name) for group in role.groups):
            carried.setdefault(written.mount.kind, []).append(written)
    return (
        *_platform_permissions(settings, role, account),
        *_bundle_permissions(settings, account),
        *(
            permission
            for kind in _mount_kinds_buckets_first()
            for permission in INQUIRIES[kind].permissions(carried.get(kind, ()), account, role)
        ),
        *_secret_permissions(settings, role),
    )


def _mount_kinds_buckets_first() -> list[str]:
    """Return the kinds of mounts in the order of the policy's statements: buckets first."""
    return sorted(INQUIRIES, key=lambda kind: INQUIRIES[kind].bucket is None)


def _platform_permissions(settings: Settings, role: NodeRole, account: Account) -> Iterator[Permission]:
    at = role.path
    group = account.arn("logs", f"log-group:{CLUSTER_LOGS}/{settings.cluster.name}/*")
    yield Permission(
        "Logs",
        "the log of the lifecycle script",
        at,
        ("logs:PutLogEvents", "logs:CreateLogStream", "logs:DescribeLogStreams"),
        (f"{group}:log-stream:*",),
    )
    yield Permission("LogGroup", "the log of the lifecycle script", at, ("logs:CreateLogGroup",), (group,))
    yield Permission(
        "Metrics",
        "HyperPod's metrics",
        at,
        ("cloudwatch:PutMetricData",),
        ("*",),
        {"cloudwatch:namespace": (CLUSTER_LOGS,)},
        optional=True,
    )
    yield Permission(
        "Sessions",
        "sessions on the nodes (hyperpod-kit connect)",
        at,
        tuple(f"ssmmessages:{verb}{kind}Channel" for verb in ("Create", "Open") for kind in ("Control", "Data")),
        ("*",),
        optional=True,
    )
    if settings.cluster.vpc is not None or any(group.vpc is not None for group in role.groups):
        yield Permission(
            "NetworkInterfaces",
            "the nodes' network interfaces in the VPC",
            at,
            (
                "ec2:CreateNetworkInterface",
                "ec2:CreateNetworkInterfacePermission",
                "ec2:DeleteNetworkInterface",
                "ec2:DeleteNetworkInterfacePermission",
                "ec2:DetachNetworkInterface",
                "ec2:DescribeNetworkInterfaces",
                "ec2:DescribeVpcs",
                "ec2:DescribeDhcpOptions",
                "ec2:DescribeSubnets",
                "ec2:DescribeSecurityGroups",
            ),
            ("*",),
        )
        yield Permission(
            "TagNetworkInterfaces",
            "the tags of these network interfaces",
            at,
            ("ec2:CreateTags",),
            (account.arn("ec2", "network-interface/*"),),
        )


def _bundle_permissions(settings: Settings, account: Account) -> Iterator[Permission]:
    if not settings.entry_script:
        return
    bucket = f"arn:{account.partition}:s3:::{settings.bundle.bucket}"
    at = "hyperpod_kit.bundle.bucket"
    yield Permission("BundleList", "finding the lifecycle script", at, ("s3:ListBucket",), (bucket,))
    yield Permission(
        "BundleRead",
        "downloading the lifecycle script",
        at,
        ("s3:GetObject",),
        (f"{bucket}/{settings.bundle.prefix}{settings.cluster.name}/*",),
    )


def _secret_permissions(settings: Settings, role: NodeRole) -> Iterator[Permission]:
    for index, secret in enumerate(settings.secrets):
        if not ARN.fullmatch(secret.arn) or not any(group.role in secret.roles for group in role.groups):
            continue
        action = "ssm:GetParameter"
        if secret.service == "secretsmanager":
            action = "secretsmanager:GetSecretValue"
        yield Permission(
            f"Secret{sid_part_from_name(secret.name)}",
            f"secret `{secret.name}`",
            f"hyperpod_kit.secrets[{index}].arn",
            (action,),
            (secret.arn,),
        )
