"""The nodes' roles, with the policies that `hyperpod-kit policy` prints: ids that the template makes are references."""

from __future__ import annotations

import re
from typing import Any, Mapping

from hyperpod_kit.config.settings import Settings
from hyperpod_kit.infra.part import TemplatePart, attribute, ref, resource
from hyperpod_kit.preflight import role_policy
from hyperpod_kit.preflight.placement import roles
from hyperpod_kit.preflight.required_permissions import required_permissions


def logical_ids(settings: Settings) -> dict[str, str]:
    """ARN of each role -> its logical id."""
    return {role.arn: f"Role{number}" for number, role in enumerate(roles(settings), 1)}


def parts(settings: Settings, made: Mapping[str, str]) -> list[TemplatePart]:
    """Make one part a role. `made`: ids of the configuration -> logical ids of what is made in their place."""
    return [
        TemplatePart(
            f"role {role.name}",
            (role.path,),
            {
                logical: resource(
                    "AWS::IAM::Role",
                    {"RoleName": role.name, "Path": _path(role.arn), "AssumeRolePolicyDocument": role_policy.trust()},
                ),
                # A resource of its own: file systems' policies name the role, and its own names file systems.
                f"{logical}Policy": resource(
                    "AWS::IAM::RolePolicy",
                    {
                        "RoleName": ref(logical),
                        "PolicyName": "hyperpod-kit",
                        "PolicyDocument": _references(
                            role_policy.permissions(
                                required_permissions(settings, role), role_policy.bundle_denied(settings, role)
                            ),
                            _replacements(role.arn, made),
                        ),
                    },
                ),
            },
            {},
            {role.path: attribute("Arn", logical)},
        )
        for role, logical in ((role, logical_ids(settings)[role.arn]) for role in roles(settings))
    ]


def _path(arn: str) -> str:
    """`/` or `/team/` of `arn:aws:iam::1:role/team/name`."""
    middle = arn.partition(":role/")[2].rpartition("/")[0]
    if middle:
        return f"/{middle}/"
    return "/"


def _replacements(arn: str, made: Mapping[str, str]) -> dict[str, str]:
    """Map what is replaced in the text of a policy to what replaces it."""
    fields = (arn.split(":") + [""] * 5)[:5]
    return {
        f"arn:{fields[1]}:": "arn:${AWS::Partition}:",
        f":{fields[4]}:": ":${AWS::AccountId}:",
        **{old: f"${{{name}}}" for old, name in made.items()},
    }


def _references(value: Any, replacements: Mapping[str, str]) -> Any:
    """The value with every text that has one of the words as an `Fn::Sub`."""
    if isinstance(value, Mapping):
        return {key: _references(item, replacements) for key, item in value.items()}
    if isinstance(value, list):
        return [_references(item, replacements) for item in value]
    if not isinstance(value, str):
        return value
    text = re.sub("|".join(map(re.escape, replacements)), lambda match: replacements[match[0]], value)
    if text == value:
        return value
    return {"Fn::Sub": text}
