"""The least policies of the nodes' role: what it is allowed, and who may be it."""

from __future__ import annotations

from typing import Any, Iterable, Mapping

from hyperpod_kit.aws.policies import VERSION, statements, to_compact_json
from hyperpod_kit.config.settings.settings import Settings
from hyperpod_kit.preflight.permission import Permission
from hyperpod_kit.preflight.placement import NodeRole

SERVICE = "sagemaker.amazonaws.com"
"""Who becomes the role on the nodes; the same name in every partition."""

INLINE_LIMIT = 10_240
"""Characters, without white space, of all inline policies of a role together; a managed policy takes 6,144."""


def permissions_policy(needs: Iterable[Permission], denials: Iterable[Mapping[str, Any]] = ()) -> dict[str, Any]:
    """Return the policy that allows exactly these needs, one statement each, in their order; then the denials."""
    return {"Version": VERSION, "Statement": [*(_allow_statement(permission) for permission in needs), *denials]}


def bundle_write_denials(settings: Settings, role: NodeRole) -> list[dict[str, Any]]:
    """Return the statement that keeps the role from writing where the bundle is, whatever else lets it write
    there.

    Whoever replaces the bundle is root of each node that is made afterwards, and every process of a node may
    have its role.
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


def trust_policy() -> dict[str, Any]:
    """Return the trust policy that lets SageMaker and nobody else assume the role.

    AWS's guide for HyperPod has no condition on aws:SourceAccount, and does not say whether SageMaker sends
    it when it assumes the role on a node: with such a condition the cluster might not come up.
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


def policy_length(policy: Mapping[str, Any]) -> int:
    """Return the number of characters of a policy that count against IAM's limit."""
    return len(to_compact_json(policy))


def trusts_sagemaker(policy: Mapping[str, Any], account: str) -> bool:
    """Whether a trust policy lets SageMaker become the role. Conditions on anything but the account are not judged."""
    allowed = False
    for statement in statements(policy):
        if not _is_about_sagemaker_assuming_role(statement) or not _is_source_account_met(statement, account):
            continue
        if statement.get("Effect") == "Deny":
            return False
        allowed = True
    return allowed


def _allow_statement(permission: Permission) -> dict[str, Any]:
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


def _is_about_sagemaker_assuming_role(statement: Mapping[str, Any]) -> bool:
    principal = statement.get("Principal", {})
    if isinstance(principal, str):
        services = principal
    else:
        services = principal.get("Service", [])
    if SERVICE not in _as_list(services) and services != "*":
        return False
    return any(action.lower() in ("sts:assumerole", "sts:*", "*") for action in _as_list(statement.get("Action", [])))


def _is_source_account_met(statement: Mapping[str, Any], account: str) -> bool:
    """Whether the statement's condition on the source account, if it has one, is met by this account."""
    for operator, conditions in statement.get("Condition", {}).items():
        for key, values in conditions.items():
            if key.lower() == "aws:sourceaccount" and operator.startswith("StringEquals"):
                return account in _as_list(values)
    return True


def _as_list(value: Any) -> list[Any]:
    if isinstance(value, list):
        return value
    return [value]
