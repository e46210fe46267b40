"""EFS has no limit of a directory. What it has is a policy: an access point in our one statement cannot write.

It cannot delete either, because that is writing too; an admin deletes through another access point.
"""

from __future__ import annotations

import json
from typing import Any, Iterable, Protocol

from hyperpod_kit.storage.quota.limits import QuotaError

SID = "HyperpodKitQuotaStop"
MAX_POLICY = 20_000
"""Characters of a policy, which AWS allows."""
MAX_ATTEMPTS = 4


class PolicyOwner(Protocol):
    """The calls of aws/efs.py that are needed."""

    def policy(self, file_system_id: str) -> dict[str, Any] | None: ...

    def put_policy(self, file_system_id: str, policy: str) -> None: ...


def access_point_arns_denied_writing(policy: dict[str, Any] | None) -> list[str]:
    """List the ARNs of the access points that a policy keeps from writing."""
    for statement in (policy or {}).get("Statement", []):
        if statement.get("Sid") == SID:
            arns = statement["Condition"]["ArnEquals"]["elasticfilesystem:AccessPointArn"]
            return [arns] if isinstance(arns, str) else list(arns)
    return []


def policy_denying_writes_by_access_points(policy: dict[str, Any] | None, arns: Iterable[str]) -> dict[str, Any]:
    """Make the policy with exactly these stopped; statements of others stay as they are, in their places."""
    kit_statements: list[dict[str, Any]] = []
    names = sorted(set(arns))
    if names:
        kit_statements = [
            {
                "Sid": SID,
                "Effect": "Deny",
                "Principal": {"AWS": "*"},
                "Action": "elasticfilesystem:ClientWrite",
                "Condition": {"ArnEquals": {"elasticfilesystem:AccessPointArn": names}},
            }
        ]
    body = dict(policy or {"Version": "2012-10-17"})
    foreign_statements = [statement for statement in body.get("Statement", []) if statement.get("Sid") != SID]
    return {**body, "Statement": [*foreign_statements, *kit_statements]}


def update_stopped_access_points(
    efs: PolicyOwner, file_system_id: str, *, stop: Iterable[str] = (), resume: Iterable[str] = ()
) -> list[str]:
    """Stop and release access points by ARN; returns those that are stopped then. Nothing is put where nothing changes.

    AWS has no compare-and-set for a policy: it is read again after it was put, and where another has put his in
    between, the change is made again on that one. Raises QuotaError, AwsError, Unreachable.
    """
    stop, resume = set(stop), set(resume)
    for _ in range(MAX_ATTEMPTS):
        policy = efs.policy(file_system_id)
        if policy is None:
            raise QuotaError(
                f"{file_system_id} has no policy, so every client in the network may write, even without an "
                "access point",
                hint="hyperpod-kit policy --help prints one; a stop without it would be the only statement",
            )
        desired = sorted((set(access_point_arns_denied_writing(policy)) | stop) - resume)
        if desired == sorted(access_point_arns_denied_writing(policy)):
            return desired
        changed_policy = policy_denying_writes_by_access_points(policy, desired)
        if not changed_policy["Statement"]:
            raise QuotaError(f"{file_system_id}: its policy would be empty", hint="set a policy of your own first")
        text = json.dumps(changed_policy)
        if len(text) > MAX_POLICY:
            raise QuotaError(
                f"{file_system_id}: a policy that stops {len(desired)} access points has {len(text):,} "
                f"characters, and AWS accepts at most {MAX_POLICY:,}",
                hint="allow some of them to write again: hyperpod-kit storage quota resume",
            )
        efs.put_policy(file_system_id, text)
        if sorted(access_point_arns_denied_writing(efs.policy(file_system_id))) == desired:
            return desired
    raise QuotaError(
        f"{file_system_id}: its policy is being changed by others; ours was overwritten {MAX_ATTEMPTS} times"
    )
