"""Who asks, and what a role may do: read-only calls to STS and IAM; errors are ours."""

from __future__ import annotations

from typing import Any, Mapping, NamedTuple, Optional, Sequence

from hyperpod_kit.aws import responses
from hyperpod_kit.aws.errors import translate_aws_errors
from hyperpod_kit.aws.session import client
from hyperpod_kit.errors import AwsError

ALLOWED = "allowed"
"""The only decision of a simulation that lets a call through; the others are implicitDeny and explicitDeny."""


class Caller(NamedTuple):
    """Whose credentials are in use."""

    account: str
    arn: str


class Decision(NamedTuple):
    """What IAM would decide about one action on one resource. `limits`: what besides the policies forbids it."""

    action: str
    resource: str
    decision: str
    limits: tuple[str, ...] = ()


def caller_identity(region: Optional[str] = None) -> Caller:
    """Return the account and ARN of the credentials in use (GetCallerIdentity, which needs no permission).

    Raises AwsError, Unreachable.
    """
    sts = client("sts", region)
    with translate_aws_errors("GetCallerIdentity"):
        response = sts.get_caller_identity()
    return Caller(str(response["Account"]), str(response["Arn"]))


class Iam:
    """`region`: decides the partition; IAM itself has none. Every method raises AwsError or Unreachable."""

    def __init__(self, region: Optional[str] = None, *, connections: int = 10) -> None:
        self._client = client("iam", region, connections=connections)

    def role(self, name: str) -> Optional[dict[str, Any]]:
        """Describe a role with its trust policy, None when there is no such role."""
        try:
            with translate_aws_errors("GetRole", name):
                return dict(self._client.get_role(RoleName=name)["Role"])
        except AwsError as err:
            if err.code == "NoSuchEntity":
                return None
            raise

    def simulate_role_decisions(
        self, role_arn: str, actions: Sequence[str], resources: Sequence[str], context: Mapping[str, str]
    ) -> list[Decision]:
        """Simulate what the policies of a role (boundary and service control policies too) decide.

        One entry a pair; none where there is no such role.

        `context`: condition keys and the value that each has. Bucket policies and the like are not part of it: IAM
        does not simulate resource-based policies for roles.
        """
        entries = [
            {"ContextKeyName": key, "ContextKeyValues": [value], "ContextKeyType": _context_key_type(key, value)}
            for key, value in sorted(context.items())
        ]
        try:
            with translate_aws_errors("SimulatePrincipalPolicy", role_arn.rpartition("/")[2]):
                pages = responses.paginate(
                    self._client,
                    "simulate_principal_policy",
                    PolicySourceArn=role_arn,
                    ActionNames=list(actions),
                    ResourceArns=list(resources),
                    ContextEntries=entries,
                )
                results = [result for page in pages for result in page["EvaluationResults"]]
        except AwsError as err:
            if err.code != "NoSuchEntity":
                raise
            return []
        return [decision for result in results for decision in _parse_decisions(result)]


def _context_key_type(key: str, value: str) -> str:
    if key == "kms:ResourceAliases":
        return "stringList"
    if value in ("true", "false"):
        return "boolean"
    return "string"


def _parse_decisions(result: Mapping[str, Any]) -> list[Decision]:
    action = str(result["EvalActionName"])
    limits = tuple(
        limit
        for limit, allowed in (
            ("a service control policy", result.get("OrganizationsDecisionDetail", {}).get("AllowedByOrganizations")),
            (
                "the role's permissions boundary",
                result.get("PermissionsBoundaryDecisionDetail", {}).get("AllowedByPermissionsBoundary"),
            ),
        )
        if allowed is False
    )
    each = result.get("ResourceSpecificResults") or []
    if each:
        return [
            Decision(action, str(entry["EvalResourceName"]), str(entry["EvalResourceDecision"]), limits)
            for entry in each
        ]
    return [Decision(action, str(result.get("EvalResourceName", "*")), str(result["EvalDecision"]), limits)]
