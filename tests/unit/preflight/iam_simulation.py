"""IAM's policy simulation for moto, which has none: identity policies, boundary, conditions, one decision a pair.

After "Policy evaluation logic" of the IAM user guide: a Deny that fits decides; else an Allow that fits, if the
permissions boundary (when there is one) has such an Allow too; else it is denied implicitly.
"""

from __future__ import annotations

import json
from fnmatch import fnmatchcase
from typing import Any, Iterator, Optional

import pytest
from moto.core.responses import ActionResult
from moto.iam.responses import IamResponse

PAGE = 5
"""Results a page; small, so that several pages are the rule."""


def install(patch: pytest.MonkeyPatch) -> None:
    """Teach moto's IAM SimulatePrincipalPolicy, with pages."""
    patch.setattr(IamResponse, "simulate_principal_policy", _simulate, raising=False)


def _simulate(self: IamResponse) -> ActionResult:
    role = self.backend.get_role_by_arn(self._get_param("PolicySourceArn"))
    context = {
        entry["ContextKeyName"].lower(): entry["ContextKeyValues"] for entry in self._get_param("ContextEntries", [])
    }
    policies = [json.loads(text) for text in role.policies.values()]
    policies += [json.loads(_document(policy)) for policy in role.managed_policies.values()]
    boundary: Optional[Any] = None
    if role.permissions_boundary_arn:
        boundary = json.loads(_document(self.backend.get_policy(role.permissions_boundary_arn)))
    results = []
    for action in self._get_param("ActionNames"):
        each = [_decide(policies, boundary, action, resource, context) for resource in self._get_param("ResourceArns")]
        worst = next((one for one in each if one["EvalResourceDecision"] != "allowed"), each[0])
        result = {
            "EvalActionName": action,
            "EvalResourceName": worst["EvalResourceName"],
            "EvalDecision": worst["EvalResourceDecision"],
            "ResourceSpecificResults": each if len(each) > 1 else [],
        }
        if boundary is not None:
            detail = {
                "AllowedByPermissionsBoundary": all(
                    _allows([boundary], action, one["EvalResourceName"], context) for one in each
                )
            }
            result["PermissionsBoundaryDecisionDetail"] = detail
        results.append(result)
    start = int(self._get_param("Marker", "0"))
    page = {"EvaluationResults": results[start : start + PAGE], "IsTruncated": start + PAGE < len(results)}
    return ActionResult({**page, "Marker": str(start + PAGE)} if page["IsTruncated"] else page)


def _document(policy: Any) -> str:
    return str(next(version.document for version in policy.versions if version.is_default))


def _decide(policies: list[Any], boundary: Any, action: str, resource: str, context: Any) -> dict[str, str]:
    decision = "allowed" if _allows(policies, action, resource, context) else "implicitDeny"
    if boundary is not None and not _allows([boundary], action, resource, context):
        decision = "implicitDeny"
    every = policies if boundary is None else [*policies, boundary]
    if any(statement["Effect"] == "Deny" for statement in _fitting(every, action, resource, context)):
        decision = "explicitDeny"
    return {"EvalResourceName": resource, "EvalResourceDecision": decision}


def _allows(policies: list[Any], action: str, resource: str, context: Any) -> bool:
    return any(statement["Effect"] == "Allow" for statement in _fitting(policies, action, resource, context))


def _fitting(policies: list[Any], action: str, resource: str, context: Any) -> Iterator[Any]:
    for policy in policies:
        found = policy["Statement"]
        for statement in [found] if isinstance(found, dict) else found:
            if (
                any(fnmatchcase(action.lower(), pattern.lower()) for pattern in _list(statement["Action"]))
                and any(fnmatchcase(resource, pattern) for pattern in _list(statement["Resource"]))
                and _holds(statement.get("Condition", {}), context)
            ):
                yield statement


def _holds(conditions: Any, context: Any) -> bool:
    """Every operator on every key; a key that the request has not fails it, as in IAM."""
    for operator, tests in conditions.items():
        plain = operator.removeprefix("ForAnyValue:")
        assert plain in ("StringEquals", "StringLike", "ArnEquals", "Bool"), operator
        for key, wanted in tests.items():
            have = context.get(key.lower())
            if have is None or not any(fnmatchcase(value, pattern) for value in have for pattern in _list(wanted)):
                return False
    return True


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
