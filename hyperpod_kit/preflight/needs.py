"""What the nodes' role must be allowed, read off the configuration.

One list, two readers: policy.py makes the least policy of it, and the preflight has IAM simulate it. So what is
generated passes, and what passes is what the nodes need.

Sources: HyperPod's own needs are those of AWS's managed policy AmazonSageMakerClusterInstanceRolePolicy and, with a
VPC, of the policy in the sample architecture of awslabs/awsome-distributed-ai (SageMaker makes the nodes' network
interfaces with the role); those of the mount clients are in Mountpoint's CONFIGURATION.md and in the user guides of
EFS and S3 Files.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Iterator, Mapping, Optional, Sequence

from hyperpod_kit.config.homes import NO_ACCESS_POINT
from hyperpod_kit.config.settings import Settings
from hyperpod_kit.model.mounts.base import Mount
from hyperpod_kit.model.mounts.efs import EfsMount
from hyperpod_kit.model.mounts.mountpoint_s3 import S3Mount
from hyperpod_kit.model.mounts.s3files import S3FilesMount
from hyperpod_kit.model.secrets import ARN
from hyperpod_kit.preflight.placement import RoleOf

CLUSTER_LOGS = "/aws/sagemaker/Clusters"
"""Log group and metric namespace of every HyperPod cluster."""


@dataclass(frozen=True)
class Need:
    """`actions` on `resources` under `context` (condition key -> value), without which `why` does not work.

    sid: letters and digits, unique in a configuration; path: the place in the configuration that asks for it;
    optional: something still works without it; condition: operator of the policy's condition on `context`.
    """

    sid: str
    why: str
    path: str
    actions: tuple[str, ...]
    resources: tuple[str, ...]
    context: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    optional: bool = False
    condition: str = "StringEquals"

    def questions(self) -> Iterator[dict[str, str]]:
        """One context a simulation: every value of a key that has several must be allowed."""
        longest = max((len(values) for values in self.context.values()), default=1)
        for index in range(longest):
            yield {key: values[min(index, len(values) - 1)] for key, values in self.context.items()}


Carried = Sequence[tuple[Mount, str]]
"""The mounts that a role's nodes have, each with its place in the configuration."""


@dataclass(frozen=True)
class Account:
    """Whose resources the ARNs name."""

    partition: str
    number: str
    region: str

    def arn(self, service: str, resource: str, region: Optional[str] = None) -> str:
        """ARN of a resource of this account in the cluster's region, or in another."""
        return f"arn:{self.partition}:{service}:{region or self.region}:{self.number}:{resource}"


def needs(settings: Settings, role: RoleOf) -> tuple[Need, ...]:
    """Everything that one of the configuration's roles must be allowed, for the groups that have it.

    The role's ARN must be one: the account is read off it.
    """
    account = Account(role.arn.split(":")[1], role.account, settings.cluster.region)
    carried = [
        (mount, place)
        for mount, place in settings.written_mounts
        if any(mount.carried_by(group.role, group.name) for group in role.groups)
    ]
    return (
        *_platform(settings, role, account),
        *_bundle(settings, account),
        *_buckets(carried, account),
        *_efs(carried, account, role),
        *_s3files(carried, account),
        *_secrets(settings, role),
    )


def _platform(settings: Settings, role: RoleOf, account: Account) -> Iterator[Need]:
    at = role.path
    group = account.arn("logs", f"log-group:{CLUSTER_LOGS}/{settings.cluster.name}/*")
    yield Need(
        "Logs",
        "the log of the lifecycle script",
        at,
        ("logs:PutLogEvents", "logs:CreateLogStream", "logs:DescribeLogStreams"),
        (f"{group}:log-stream:*",),
    )
    yield Need("LogGroup", "the log of the lifecycle script", at, ("logs:CreateLogGroup",), (group,))
    yield Need(
        "Metrics",
        "HyperPod's metrics",
        at,
        ("cloudwatch:PutMetricData",),
        ("*",),
        {"cloudwatch:namespace": (CLUSTER_LOGS,)},
        optional=True,
    )
    yield Need(
        "Sessions",
        "sessions on the nodes (hyperpod-kit connect)",
        at,
        tuple(f"ssmmessages:{verb}{kind}Channel" for verb in ("Create", "Open") for kind in ("Control", "Data")),
        ("*",),
        optional=True,
    )
    if settings.cluster.vpc is not None or any(group.vpc is not None for group in role.groups):
        yield Need(
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
        yield Need(
            "TagNetworkInterfaces",
            "the tags of these network interfaces",
            at,
            ("ec2:CreateTags",),
            (account.arn("ec2", "network-interface/*"),),
        )


def _bundle(settings: Settings, account: Account) -> Iterator[Need]:
    if not settings.entry_script:
        return
    bucket = f"arn:{account.partition}:s3:::{settings.bundle.bucket}"
    at = "hyperpod_kit.bundle.bucket"
    yield Need("BundleList", "finding the lifecycle script", at, ("s3:ListBucket",), (bucket,))
    yield Need(
        "BundleRead",
        "downloading the lifecycle script",
        at,
        ("s3:GetObject",),
        (f"{bucket}/{settings.bundle.prefix}{settings.cluster.name}/*",),
    )


def _buckets(carried: Carried, account: Account) -> Iterator[Need]:
    for mount, place in carried:
        if not isinstance(mount, S3Mount) or mount.endpoint_url is not None:
            continue
        bucket = f"arn:{account.partition}:s3:::{mount.bucket}"
        name, why = _plain(mount.name), f"mount `{mount.name}`"
        if mount.bucket.endswith("--x-s3"):
            arn = account.arn("s3express", f"bucket/{mount.bucket}", mount.region)
            yield Need(f"Mount{name}", why, place, ("s3express:CreateSession",), (arn,))
            continue
        yield Need(f"List{name}", why, place, ("s3:ListBucket",), (bucket,))
        actions = ["s3:GetObject"]
        if not mount.read_only:
            actions += ["s3:PutObject", "s3:AbortMultipartUpload"]
            if mount.allow_delete:
                actions.append("s3:DeleteObject")
        yield Need(f"Mount{name}", why, place, tuple(actions), (f"{bucket}/{mount.prefix}*",))
        if not mount.read_only and mount.sse_kms_key_id:
            yield _key(mount.sse_kms_key_id, f"Key{name}", why, place, account)


def _key(key: str, sid: str, why: str, place: str, account: Account) -> Need:
    """The key that new objects are encrypted with: an ARN, an id, or an alias, which no policy's resource can name."""
    place, actions = f"{place}.sse_kms_key_id", ("kms:GenerateDataKey", "kms:Decrypt")
    if not key.startswith("alias/"):
        arn = key if key.startswith("arn:") else account.arn("kms", f"key/{key}")
        return Need(sid, why, place, actions, (arn,))
    aliases = {"kms:ResourceAliases": (key,)}
    keys = (account.arn("kms", "key/*"),)
    return Need(sid, why, place, actions, keys, aliases, condition="ForAnyValue:StringEquals")


def _efs(carried: Carried, account: Account, role: RoleOf) -> Iterator[Need]:
    """EFS that is mounted with IAM. Homes are not here: their file system's own policy lets the role in."""
    found: dict[str, None] = {}
    for mount, place in carried:
        if not isinstance(mount, EfsMount):
            continue
        arn = account.arn("elasticfilesystem", f"file-system/{mount.file_system_id}", mount.region)
        found.setdefault(arn)
        if not mount.iam or mount.owner is not None:
            continue
        through: dict[str, tuple[str, ...]] = {}
        if mount.access_point_id not in (None, NO_ACCESS_POINT):
            point = account.arn("elasticfilesystem", f"access-point/{mount.access_point_id}", mount.region)
            through = {"elasticfilesystem:AccessPointArn": (point,)}
        verbs = tuple(f"elasticfilesystem:Client{verb}" for verb in ("Mount", "Write"))
        yield Need(f"Mount{_plain(mount.name)}", f"mount `{mount.name}`", place, verbs, (arn,), through)
    if found:
        yield Need(
            "FindMountTargets",
            "finding the mount targets of EFS where the name does not resolve",
            role.path,
            ("elasticfilesystem:DescribeMountTargets",),
            tuple(found),
            optional=True,
        )


def _s3files(carried: Carried, account: Account) -> Iterator[Need]:
    """S3 Files always asks IAM. The configuration does not know its bucket, so direct reads of it are not here."""
    for mount, place in carried:
        if not isinstance(mount, S3FilesMount):
            continue
        arn = account.arn("s3files", f"file-system/{mount.file_system_id}", mount.region)
        through: dict[str, tuple[str, ...]] = {}
        if mount.access_point_id is not None:
            through = {"s3files:AccessPointArn": (f"{arn}/access-point/{mount.access_point_id}",)}
        verbs = tuple(f"s3files:Client{verb}" for verb in ("Mount", "Write"))
        yield Need(f"Mount{_plain(mount.name)}", f"mount `{mount.name}`", place, verbs, (arn,), through)


def _secrets(settings: Settings, role: RoleOf) -> Iterator[Need]:
    for index, secret in enumerate(settings.secrets):
        if not ARN.fullmatch(secret.arn) or not any(group.role in secret.roles for group in role.groups):
            continue
        action = "secretsmanager:GetSecretValue" if secret.service == "secretsmanager" else "ssm:GetParameter"
        yield Need(
            f"Secret{_plain(secret.name)}",
            f"secret `{secret.name}`",
            f"hyperpod_kit.secrets[{index}].arn",
            (action,),
            (secret.arn,),
        )


def _plain(name: str) -> str:
    """A mount's name as part of a Sid, which takes letters and digits only; `a-1` and `a1` stay apart."""
    digest = hashlib.sha256(name.encode()).hexdigest()[:6] if "-" in name else ""
    return "".join(part.capitalize() for part in name.split("-")) + digest
