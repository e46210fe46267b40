"""The nodes' roles, with the policies that `hyperpod-kit policy` prints: ids that the template makes are references."""

from __future__ import annotations

import re
from typing import Any, Mapping

from hyperpod_kit.config.settings.settings import Settings
from hyperpod_kit.infra.part import TemplatePart, get_att, ref, resource
from hyperpod_kit.preflight import role_policy
from hyperpod_kit.preflight.checks.required_permissions import required_permissions
from hyperpod_kit.preflight.placement import execution_roles


def role_logical_ids(settings: Settings) -> dict[str, str]:
    """Return ARN of each role -> its logical id."""
    return {role.arn: f"Role{number}" for number, role in enumerate(execution_roles(settings), 1)}


def role_parts(settings: Settings, logical_ids_by_id: Mapping[str, str]) -> list[TemplatePart]:
    """Return one part for each role.

    `logical_ids_by_id`: ids of the configuration -> logical ids of what is made in their place.
    """
    return [
        TemplatePart(
            f"role {role.name}",
            (role.path,),
            {
                logical: resource(
                    "AWS::IAM::Role",
                    {
                        "RoleName": role.name,
                        "Path": _iam_path(role.arn),
                        "AssumeRolePolicyDocument": role_policy.trust_policy(),
                    },
                ),
                # A resource of its own: file systems' policies name the role, and its own names file systems.
                f"{logical}Policy": resource(
                    "AWS::IAM::RolePolicy",
                    {
                        "RoleName": ref(logical),
                        "PolicyName": "hyperpod-kit",
                        "PolicyDocument": _with_fn_sub(
                            role_policy.permissions_policy(
                                required_permissions(settings, role), role_policy.bundle_write_denials(settings, role)
                            ),
                            _text_replacements(role.arn, logical_ids_by_id),
                        ),
                    },
                ),
            },
            {},
            {role.path: get_att("Arn", logical)},
        )
        for role, logical in ((role, role_logical_ids(settings)[role.arn]) for role in execution_roles(settings))
    ]


def _iam_path(arn: str) -> str:
    """Return `/` or `/team/`, the path of `arn:aws:iam::1:role/team/name`."""
    middle = arn.partition(":role/")[2].rpartition("/")[0]
    if middle:
        return f"/{middle}/"
    return "/"


def _text_replacements(arn: str, logical_ids_by_id: Mapping[str, str]) -> dict[str, str]:
    """Return text in a policy -> the reference that replaces it."""
    fields = (arn.split(":") + [""] * 5)[:5]
    return {
        f"arn:{fields[1]}:": "arn:${AWS::Partition}:",
        f":{fields[4]}:": ":${AWS::AccountId}:",
        **{old: f"${{{name}}}" for old, name in logical_ids_by_id.items()},
    }


def _with_fn_sub(value: Any, replacements: Mapping[str, str]) -> Any:
    """Return the value with every text that contains one of the keys of `replacements` as an `Fn::Sub`."""
    if isinstance(value, Mapping):
        return {key: _with_fn_sub(item, replacements) for key, item in value.items()}
    if isinstance(value, list):
        return [_with_fn_sub(item, replacements) for item in value]
    if not isinstance(value, str):
        return value
    text = re.sub("|".join(map(re.escape, replacements)), lambda match: replacements[match[0]], value)
    if text == value:
        return value
    return {"Fn::Sub": text}
