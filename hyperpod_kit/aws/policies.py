"""IAM policies around home directories: who may mount the file system, through what, and how.

EFS evaluates only four condition keys for a mount: aws:SecureTransport, aws:SourceIp,
elasticfilesystem:AccessPointArn and elasticfilesystem:AccessedViaMountTarget ("Using IAM to control file system data
access" of its guide). So a client without IAM cannot be denied by a condition on its principal; it is kept out by no
statement letting it in, which is why `public_statement_names` looks for those of others.
"""

from __future__ import annotations

import hashlib
import json
from fnmatch import fnmatchcase
from typing import Any, Mapping, Optional, Sequence

from hyperpod_kit.errors import ConfigError

VERSION = "2012-10-17"
POLICY_LIMIT = 20_000
"""Characters of a file system policy."""

SID_PREFIX = "HyperPodKit"
"""Every Sid of ours begins so; statements of others are kept as they are."""

MOUNT, WRITE, ROOT = (f"elasticfilesystem:Client{verb}" for verb in ("Mount", "Write", "RootAccess"))


def merge_cluster_into_file_system_policy(
    *,
    cluster: str,
    file_system_arn: str,
    role_arn: str,
    access_point_arns: Sequence[str],
    existing: Optional[Mapping[str, Any]] = None,
) -> dict[str, Any]:
    """The policy with which the nodes of `cluster` mount these access points, and nobody mounts anything else.

    Statements of others in `existing` stay, those of other clusters of ours too. Raises ConfigError when it becomes
    longer than EFS takes.
    """
    sid = allow_sid(cluster)
    kept = [
        statement
        for statement in statements(existing)
        if not str(statement.get("Sid", "")).startswith(SID_PREFIX) or _is_of_other_cluster(statement, sid)
    ]
    policy = {
        "Version": VERSION,
        "Id": "hyperpod-kit",
        "Statement": [
            *kept,
            _allow_statement(sid, file_system_arn, role_arn, access_point_arns),
            *_deny_statements(file_system_arn),
        ],
    }
    length = len(to_compact_json(policy))
    if length > POLICY_LIMIT:
        raise ConfigError(
            f"the policy of {file_system_arn} would have {length} characters for {len(access_point_arns)} "
            f"access points of {cluster} and {len(kept)} other statements, more than EFS's maximum of "
            f"{POLICY_LIMIT}",
            hint=(
                "split the users between two clusters, each with its own file system; one policy fits about 200 users"
            ),
        )
    return policy


def execution_role_policy(file_system_arn: str, access_point_arns: Sequence[str]) -> dict[str, Any]:
    """Make the role's own policy: to find a mount target, and to mount where another account owns EFS.

    In one account the file system's policy is enough for mounting. A wider permission than this in the role would
    defeat that policy's list, because EFS takes an Allow from either side.
    """
    return {
        "Version": VERSION,
        "Statement": [
            {
                "Sid": f"{SID_PREFIX}MountHomes",
                "Effect": "Allow",
                "Action": [MOUNT, WRITE],
                "Resource": file_system_arn,
                "Condition": _access_point_condition(access_point_arns),
            },
            {
                "Sid": f"{SID_PREFIX}FindMountTargets",
                "Effect": "Allow",
                "Action": ["elasticfilesystem:DescribeMountTargets"],
                "Resource": file_system_arn,
            },
        ],
    }


def allow_sid(cluster: str) -> str:
    """Sid of a cluster's own statement: letters and digits, and different for clusters that differ in hyphens only."""
    plain = "".join(part.capitalize() for part in cluster.split("-"))
    return f"{SID_PREFIX}Homes{plain}{hashlib.sha256(cluster.encode()).hexdigest()[:6]}"


def public_statement_names(policy: Optional[Mapping[str, Any]]) -> list[str]:
    """Return the names of the statements that let clients mount which show no IAM identity.

    With one of these anybody in the network who knows the id of an access point mounts it: ids are no
    secrets.
    """
    return [
        str(statement.get("Sid") or f"number {index + 1}")
        for index, statement in enumerate(statements(policy))
        if is_public_statement(statement)
    ]


def is_public_statement(statement: Mapping[str, Any]) -> bool:
    """Whether a statement lets everyone mount. NotPrincipal and NotAction count as everyone and every action."""
    principal = statement.get("Principal")
    everyone = (
        principal == "*"
        or (isinstance(principal, Mapping) and "*" in _as_list(principal.get("AWS")))
        or "NotPrincipal" in statement
    )
    return bool(statement.get("Effect") == "Allow" and everyone and _is_about_efs_action(statement, MOUNT))


def has_allow_statement(policy: Mapping[str, Any], role_arn: str, action: str) -> bool:
    """Whether a statement of a file system's policy allows a role the action, whatever its conditions."""
    account = f"arn:{role_arn.split(':')[1]}:iam::{role_arn.split(':')[4]}:root"
    names = {"*", role_arn, account, role_arn.split(":")[4]}
    for statement in statements(policy):
        principal = statement.get("Principal")
        of_aws: Any = principal
        if not isinstance(principal, str):
            of_aws = (principal or {}).get("AWS")
        if (
            statement.get("Effect") == "Allow"
            and names & set(_as_list(of_aws))
            and _is_about_efs_action(statement, action)
        ):
            return True
    return False


def without_public_statements(policy: Optional[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the policy without the statements that let everyone mount."""
    return {**(policy or {}), "Statement": [item for item in statements(policy) if not is_public_statement(item)]}


def are_policies_equivalent(first: Optional[Mapping[str, Any]], second: Optional[Mapping[str, Any]]) -> bool:
    """Whether two policies are equal but for the order of statements and lists, the `Id`, and a single value in
    place of a list of one."""
    return bool(_canonical_policy_value(first) == _canonical_policy_value(second))


def statements(policy: Optional[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The statements of a policy; IAM takes a lone one without a list."""
    entries = (policy or {}).get("Statement", [])
    if isinstance(entries, Mapping):
        return [entries]
    return list(entries)


def to_compact_json(policy: Mapping[str, Any]) -> str:
    """Return the shortest JSON of a policy: its length is what counts against the limit."""
    return json.dumps(policy, separators=(",", ":"))


def _allow_statement(sid: str, file_system_arn: str, role_arn: str, access_point_arns: Sequence[str]) -> dict[str, Any]:
    condition = {**_access_point_condition(access_point_arns), "Bool": {"aws:SecureTransport": "true"}}
    return {
        "Sid": sid,
        "Effect": "Allow",
        "Principal": {"AWS": role_arn},
        "Action": [MOUNT, WRITE],
        "Resource": file_system_arn,
        "Condition": condition,
    }


def _deny_statements(file_system_arn: str) -> list[dict[str, Any]]:
    """Return the statements that deny everyone, whatever else allows it, to mount without an access point or
    TLS."""
    conditions = {
        "NeedsAccessPoint": {"Null": {"elasticfilesystem:AccessPointArn": "true"}},
        "NeedsTls": {"Bool": {"aws:SecureTransport": "false"}},
    }
    return [
        {
            "Sid": f"{SID_PREFIX}{name}",
            "Effect": "Deny",
            "Principal": {"AWS": "*"},
            "Action": [MOUNT, WRITE, ROOT],
            "Resource": file_system_arn,
            "Condition": condition,
        }
        for name, condition in conditions.items()
    ]


def _access_point_condition(access_point_arns: Sequence[str]) -> dict[str, Any]:
    return {"StringEquals": {"elasticfilesystem:AccessPointArn": sorted(access_point_arns)}}


def _is_of_other_cluster(statement: Mapping[str, Any], own_sid: str) -> bool:
    sid = str(statement.get("Sid", ""))
    return sid.startswith(f"{SID_PREFIX}Homes") and sid != own_sid


def _is_about_efs_action(statement: Mapping[str, Any], action: str) -> bool:
    """Whether a statement is about an action of EFS. NotAction counts as every action."""
    patterns = [str(pattern).lower() for pattern in _as_list(statement.get("Action"))]
    return "NotAction" in statement or any(fnmatchcase(action.lower(), pattern) for pattern in patterns)


def _canonical_policy_value(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {
            key: sorted(json.dumps(_canonical_policy_value(item), sort_keys=True) for item in statements(value))
            if key == "Statement"
            else _canonical_policy_value(item)
            for key, item in value.items()
            if key != "Id"
        }
    if isinstance(value, list):
        plain = sorted(
            (_canonical_policy_value(item) for item in value), key=lambda item: json.dumps(item, sort_keys=True)
        )
        if len(plain) == 1:
            return plain[0]
        return plain
    return value


def _as_list(value: Any) -> list[Any]:
    if isinstance(value, list):
        return value
    if value is None:
        return []
    return [value]
