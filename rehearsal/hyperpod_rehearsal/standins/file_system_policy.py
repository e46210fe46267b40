"""Who may mount a file system: the part of IAM that EFS applies to NFS clients.

Without a policy everyone may do everything, which is EFS's default. With one, whatever no statement allows is denied,
and a Deny goes before every Allow. Only the condition keys that EFS evaluates are known here ("Using IAM to control
file system data access" of its guide); a policy that needs more is refused, so that nobody believes in it. Policies of
the role itself are not known to a rehearsal: on AWS an Allow there counts as well.
"""

from __future__ import annotations

import fnmatch
import json
import os
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional

ARN = "arn:aws:elasticfilesystem:us-east-1:111122223333"
"""Every file system of a rehearsal is in this region and account."""

MOUNT, WRITE, ROOT = (f"elasticfilesystem:Client{verb}" for verb in ("Mount", "Write", "RootAccess"))
KEYS = (
    "aws:securetransport",
    "elasticfilesystem:accesspointarn",
    "elasticfilesystem:accessedviamounttarget",
    "aws:sourceip",
)

NODE_FILE = "/etc/hyperpod-rehearsal/node.json"
ROLE_VARIABLE = "HPK_STANDIN_ROLE"


class UnsupportedPolicy(ValueError):
    """A policy that EFS would not evaluate as its author thinks, or that is none at all."""


class Client(NamedTuple):
    """One mount: `role` is the ARN of its IAM role, "" without `-o iam`; `access_point` an id, "" without."""

    role: str = ""
    tls: bool = False
    access_point: str = ""


class Granted(NamedTuple):
    """What a client may do."""

    mount: bool
    write: bool
    root: bool


def read_node_role_arn() -> str:
    """The ARN of this node's execution role, "" where nobody said it."""
    if ROLE_VARIABLE in os.environ:
        return os.environ[ROLE_VARIABLE]
    try:
        with open(NODE_FILE, encoding="utf-8") as file:
            return str(json.load(file).get("role") or "")
    except (OSError, ValueError):
        return ""


def evaluate_policy(policy: Optional[Mapping[str, Any]], file_system: str, client: Client) -> Granted:
    """What `client` may do on `file_system` (an id). Raises UnsupportedPolicy."""
    if policy is None:
        return Granted(True, True, True)
    require_supported_policy(policy)
    resource = f"{ARN}:file-system/{file_system}"
    context = {"aws:securetransport": str(client.tls).lower(), "elasticfilesystem:accessedviamounttarget": "true"}
    if client.access_point:
        context["elasticfilesystem:accesspointarn"] = f"{ARN}:access-point/{client.access_point}"
    fitting = [
        statement
        for statement in statement_list(policy)
        if _principal_matches(statement, client.role)
        and _matches_any_pattern(statement.get("Resource", "*"), resource)
        and _conditions_hold(statement, context)
    ]

    def may(action: str) -> bool:
        effects = {item["Effect"] for item in fitting if _matches_any_pattern(item["Action"], action)}
        return effects == {"Allow"}

    return Granted(*(may(action) for action in (MOUNT, WRITE, ROOT)))


def require_supported_policy(policy: Mapping[str, Any]) -> None:
    """Raise UnsupportedPolicy for a policy that cannot be evaluated here, naming what cannot."""
    policy_statements = statement_list(policy)
    if not policy_statements:
        raise UnsupportedPolicy("the policy has no Statement")
    for statement in policy_statements:
        name = statement.get("Sid", "a statement")
        if statement.get("Effect") not in ("Allow", "Deny"):
            raise UnsupportedPolicy(f"{name}: Effect is {statement.get('Effect')}")
        for key in ("Principal", "Action"):
            if key not in statement:
                raise UnsupportedPolicy(f"{name}: no {key}")
        for operator, tests in (statement.get("Condition") or {}).items():
            if _condition_operator(operator) is None:
                raise UnsupportedPolicy(f"{name}: the condition operator {operator} is not known here")
            for key in tests:
                if key.lower() not in KEYS:
                    raise UnsupportedPolicy(f"{name}: EFS does not evaluate {key} when a client mounts")


def statement_list(policy: Mapping[str, Any]) -> List[Dict[str, Any]]:
    """The statements; a lone one needs no list."""
    policy_statements = policy.get("Statement") or []
    if isinstance(policy_statements, dict):
        return [policy_statements]
    return list(policy_statements)


def _principal_matches(statement: Mapping[str, Any], role: str) -> bool:
    principal = statement["Principal"]
    if isinstance(principal, dict):
        names = _as_list(principal.get("AWS"))
    else:
        names = [principal]
    return "*" in names or (bool(role) and role in names)


def _matches_any_pattern(patterns: Any, value: str) -> bool:
    return any(fnmatch.fnmatchcase(value.lower(), str(pattern).lower()) for pattern in _as_list(patterns))


def _conditions_hold(statement: Mapping[str, Any], context: Mapping[str, str]) -> bool:
    for operator, tests in (statement.get("Condition") or {}).items():
        holds = _condition_operator(operator)
        assert holds is not None
        for key, expected in tests.items():
            if not holds(context.get(key.lower()), [str(value) for value in _as_list(expected)]):
                return False
    return True


def _condition_operator(name: str) -> Optional[Callable[[Optional[str], List[str]], bool]]:
    """Return the test of a condition operator, None when it is not supported.

    For a key that is missing only Null and …IfExists hold.
    """
    if name.endswith("IfExists"):
        inner = _condition_operator(name[: -len("IfExists")])
        if inner is None or name.startswith("Null"):
            return None
        return lambda actual, expected: actual is None or inner(actual, expected)
    return {
        "Null": lambda actual, expected: (actual is None) == (expected[0].lower() == "true"),
        "Bool": lambda actual, expected: actual is not None and actual in [value.lower() for value in expected],
        "StringEquals": lambda actual, expected: actual is not None and actual in expected,
        "StringLike": _matches_like,
        "ArnEquals": _matches_like,
        "ArnLike": _matches_like,
    }.get(name)


def _matches_like(actual: Optional[str], expected: List[str]) -> bool:
    return actual is not None and any(fnmatch.fnmatchcase(actual, value) for value in expected)


def _as_list(value: Any) -> List[Any]:
    if isinstance(value, list):
        return value
    if value is None:
        return []
    return [value]
