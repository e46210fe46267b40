"""Secrets: where they are kept, never what they are."""

from __future__ import annotations

from typing import Iterator

from hyperpod_kit.config.fields.fields import fits_field_pattern_if_any
from hyperpod_kit.config.settings.findings import WARNING, Finding
from hyperpod_kit.config.settings.settings import Settings
from hyperpod_kit.model.states import ROLES

AT = "hyperpod_kit.secrets"


def check_names_unique_and_node_roles(settings: Settings) -> Iterator[Finding]:
    """Each has a name of its own and a role that fetches it."""
    first: dict[str, int] = {}
    for index, secret in enumerate(settings.secrets):
        at = f"{AT}[{index}]"
        if secret.name in first and fits_field_pattern_if_any(f"{AT}[].name", secret.name):
            yield Finding(
                "HPK-A002", f"{at}.name", f"`{secret.name}` is {AT}[{first[secret.name]}] too", "Rename one of them"
            )
        first.setdefault(secret.name, index)
        invalid_roles = [role for role in secret.roles if role not in ROLES]
        if invalid_roles or not secret.roles:
            path, problem = f"{at}.roles", "no role fetches this secret"
            if invalid_roles:
                path = f"{path}[{secret.roles.index(invalid_roles[0])}]"
                problem = f"`{invalid_roles[0]}` is not a role"
            yield Finding(
                "HPK-A005",
                path,
                problem,
                f"Use some of {', '.join(ROLES)}, or remove the key",
            )


def check_secrets_isolated_by_execution_role(settings: Settings) -> Iterator[Finding]:
    """A secret for some roles is not open to the processes of other groups, which have the same execution role."""
    if settings.metadata_users is not None:
        return
    cluster = settings.cluster
    for index, secret in enumerate(settings.secrets):
        roles = [(group, group.execution_role or cluster.execution_role) for group in cluster.groups]
        reading = {role for group, role in roles if group.role in secret.roles}
        exposed_groups = [group.name for group, role in roles if group.role not in secret.roles and role in reading]
        if exposed_groups:
            yield Finding(
                "HPK-A006",
                f"{AT}[{index}].roles",
                f"`{secret.name}` is for {', '.join(secret.roles)} only, but every process of "
                f"{', '.join(exposed_groups)} can fetch it: these groups have the same execution role",
                "Give the groups roles of their own, or close the nodes' role with hyperpod_kit.metadata_service",
                WARNING,
            )
