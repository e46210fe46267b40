"""The least policies of people: who makes and runs clusters, and who runs `validate --aws`.

The calls of clusters are those of the service contract; the rest is what the commands call, by their tables on the page
of permissions.
"""

from __future__ import annotations

from typing import Any, Iterator

from hyperpod_kit.aws.policies import VERSION
from hyperpod_kit.aws.service_contract import OPERATIONS
from hyperpod_kit.aws.verdicts import FieldVerdict
from hyperpod_kit.config.settings.settings import Settings
from hyperpod_kit.preflight.permission import CLUSTER_LOGS
from hyperpod_kit.preflight.placement import execution_roles
from hyperpod_kit.preflight.role_policy import SERVICE

BESIDE_CLUSTERS = ("AddTags", "DescribeTrainingPlan")
"""Of SageMaker: tags of a new cluster, and until when the training plan of a group serves."""
HOMES = (
    "elasticfilesystem:CreateAccessPoint",
    "elasticfilesystem:DescribeAccessPoints",
    "elasticfilesystem:DescribeFileSystemPolicy",
    "elasticfilesystem:DescribeFileSystems",
    "elasticfilesystem:PutFileSystemPolicy",
    "elasticfilesystem:TagResource",
)


def cluster_actions() -> list[str]:
    """Return the actions of all calls about clusters, and of what goes with them."""
    called = [name for name, operation in OPERATIONS.items() if operation.verdict is FieldVerdict.CALLED]
    return sorted(f"sagemaker:{name}" for name in (*called, *BESIDE_CLUSTERS))


def admin_policy(settings: Settings) -> dict[str, Any]:
    """Return the policy of whoever makes and runs the clusters of a configuration."""
    return {"Version": VERSION, "Statement": list(_statements(settings))}


def _statements(settings: Settings) -> Iterator[dict[str, Any]]:
    roles = execution_roles(settings)
    partition, account = roles[0].arn.split(":")[1], roles[0].account
    yield _allow("Clusters", cluster_actions(), "*")
    yield {
        **_allow("NodesRole", "iam:PassRole", _one_or_list(sorted({role.arn for role in roles}))),
        "Condition": {"StringEquals": {"iam:PassedToService": SERVICE}},
    }
    if settings.entry_script:
        bucket = f"arn:{partition}:s3:::{settings.bundle.bucket}"
        yield _allow("BundleList", "s3:ListBucket", bucket)
        yield _allow("Bundle", ["s3:GetObject", "s3:PutObject"], f"{bucket}/{settings.bundle.prefix}*")
    yield _allow("Sessions", ["ssm:StartSession", "ssm:TerminateSession"], "*")
    yield _allow(
        "Logs",
        ["logs:FilterLogEvents", "logs:GetLogEvents"],
        f"arn:{partition}:logs:{settings.cluster.region}:{account}:log-group:{CLUSTER_LOGS}/*",
    )
    if settings.homes is not None:
        yield _allow("Homes", list(HOMES), "*")


def _allow(sid: str, actions: Any, resources: Any) -> dict[str, Any]:
    return {"Sid": sid, "Effect": "Allow", "Action": actions, "Resource": resources}


def _one_or_list(values: list[str]) -> Any:
    if len(values) == 1:
        return values[0]
    return values
