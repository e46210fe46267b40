"""The least policies of the nodes' role: what it is allowed, and who may be it."""

from __future__ import annotations

from typing import Any, Iterable, Mapping

from hyperpod_kit.aws.policies import VERSION, statements, to_text
from hyperpod_kit.config.settings import Settings
from hyperpod_kit.preflight.permission import Permission
from hyperpod_kit.preflight.placement import NodeRole

SERVICE = "sagemaker.amazonaws.com"
"""Who becomes the role on the nodes; the same name in every partition."""

INLINE_LIMIT = 10_240
"""Characters, without white space, of all inline policies of a role together; a managed policy takes 6,144."""


def permissions(needs: Iterable[Permission], denied: Iterable[Mapping[str, Any]] = ()) -> dict[str, Any]:
    """The policy that allows exactly these needs, one statement each, in their order; then what it denies."""
    return {"Version": VERSION, "Statement": [*(_statement(permission) for permission in needs), *denied]}


def bundle_denied(settings: Settings, role: NodeRole) -> list[dict[str, Any]]:
    """The statement that keeps the role from writing where the bundle is, whatever else lets it write there.

    Who replaces the bundle is root of each node that is made afterwards, and every process of a node may have its role.
    """
    if not settings.entry_script:
        return []
    partition = role.arn.split(":")[1]
    return [
        {
            "Sid": "BundleIsOnlyRead",
            "Effect": "Deny",
            "Action": ["s3:DeleteObject", "s3:DeleteObjectVersion", "s3:PutObject", "s3:PutObjectAcl"],
            "Resource": f"arn:{partition}:s3:::{settings.bundle.bucket}/{settings.bundle.prefix}*",
        }
    ]


def trust() -> dict[str, Any]:
    """The role's trust policy: SageMaker and nobody else.

    AWS's guide for HyperPod has no condition on aws:SourceAccount, and does not say whether SageMaker sends it when it
    becomes the role on a node: with such a condition the cluster might not come up.
    """
    return {
        "Version": VERSION,
        "Statement": [
            {
                "Sid": "HyperPod",
                "Effect": "Allow",
                "Principal": {"Service": SERVICE},
                "Action": "sts:AssumeRole",
            }
        ],
    }


def length(policy: Mapping[str, Any]) -> int:
    """Characters that count against IAM's limit."""
    return len(to_text(policy))


def trusts_sagemaker(policy: Mapping[str, Any], account: str) -> bool:
    """Whether a trust policy lets SageMaker become the role. Conditions on anything but the account are not judged."""
    allowed = False
    for statement in statements(policy):
        if not _covers_sagemaker(statement) or not _is_for(statement, account):
            continue
        if statement.get("Effect") == "Deny":
            return False
        allowed = True
    return allowed


def _statement(permission: Permission) -> dict[str, Any]:
    statement: dict[str, Any] = {
        "Sid": permission.sid,
        "Effect": "Allow",
        "Action": sorted(permission.actions),
        "Resource": _one_or_list(permission.resources),
    }
    if permission.context:
        statement["Condition"] = {
            permission.condition: {key: _one_or_list(values) for key, values in sorted(permission.context.items())}
        }
    return statement


def _one_or_list(values: tuple[str, ...]) -> Any:
    if len(values) == 1:
        return values[0]
    return sorted(values)


def _covers_sagemaker(statement: Mapping[str, Any]) -> bool:
    principal = statement.get("Principal", {})
    if isinstance(principal, str):
        services = principal
    else:
        services = principal.get("Service", [])
    if SERVICE not in _list(services) and services != "*":
        return False
    return any(action.lower() in ("sts:assumerole", "sts:*", "*") for action in _list(statement.get("Action", [])))


def _is_for(statement: Mapping[str, Any], account: str) -> bool:
    """Whether the statement's condition on the account, if it has one, is met by this one."""
    for operator, conditions in statement.get("Condition", {}).items():
        for key, values in conditions.items():
            if key.lower() == "aws:sourceaccount" and operator.startswith("StringEquals"):
                return account in _list(values)
    return True


def _list(value: Any) -> list[Any]:
    if isinstance(value, list):
        return value
    return [value]
