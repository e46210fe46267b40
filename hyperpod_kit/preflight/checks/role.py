"""The nodes' role: it is there, SageMaker may be it, and it may do what the configuration needs."""

from __future__ import annotations

from typing import Iterator, Optional, Sequence

from hyperpod_kit.aws.iam import ALLOWED, Decision
from hyperpod_kit.aws.policies import has_allow_statement
from hyperpod_kit.config.settings.findings import ERROR, WARNING, Finding
from hyperpod_kit.config.settings.settings import Settings
from hyperpod_kit.model.mounts.efs import EfsMount
from hyperpod_kit.preflight.checks.required_permissions import required_permissions
from hyperpod_kit.preflight.facts import NOT_QUERIED, AccountFacts, NotQueried, RoleFacts, value_or_none
from hyperpod_kit.preflight.permission import Permission
from hyperpod_kit.preflight.placement import NodeRole, execution_roles
from hyperpod_kit.preflight.role_policy import SERVICE, trusts_sagemaker


def check_roles_exist_and_trust_sagemaker(settings: Settings, facts: AccountFacts) -> Iterator[Finding]:
    """Every role exists in the caller's account, and its trust policy names SageMaker."""
    for role in execution_roles(settings):
        if role.account and role.account != facts.caller.account:
            yield Finding(
                "HPK-V201",
                role.path,
                f"the role is in account {role.account}, but you are {facts.caller.arn}: a role cannot be "
                "passed to another account",
                "Use a role in your account, or credentials of the role's account",
            )
            continue
        role_facts = facts.roles.get(role.arn, NOT_QUERIED)
        if isinstance(role_facts, NotQueried):
            continue
        if role_facts is None or role_facts.arn != role.arn:
            only = ""
            if role_facts:
                only = f", only {role_facts.arn}"
            yield Finding(
                "HPK-V202",
                role.path,
                f"role {role.arn} does not exist{only}",
                "create it with aws iam create-role and the output of hyperpod-kit policy --trust",
            )
        elif not trusts_sagemaker(role_facts.trust, role.account):
            yield Finding(
                "HPK-V203",
                role.path,
                f"{SERVICE} may not assume {role.arn}",
                "hyperpod-kit policy --trust prints the trust policy: set it with aws iam update-assume-role-policy",
            )


def check_permissions(settings: Settings, facts: AccountFacts) -> Iterator[Finding]:
    """IAM would allow every action that the nodes need."""
    for role in execution_roles(settings):
        role_facts = facts.roles.get(role.arn)
        if role_facts is None or (isinstance(role_facts, RoleFacts) and role_facts.arn != role.arn):
            continue  # no role, another one than the one that was simulated, or no ARN at all
        for permission in required_permissions(settings, role):
            decisions = value_or_none(facts.decisions.get((role.arn, permission.sid)))
            refused = [decision for decision in decisions or () if decision.decision != ALLOWED]
            if not refused or _may_be_allowed_by_efs_policy(facts, role, permission, refused):
                continue
            severity = ERROR
            if permission.optional:
                severity = WARNING
            yield Finding(
                "HPK-V204",
                permission.path,
                f"role {role.name} may not {_denied_actions_text(refused)} on "
                f"{_denied_resources_text(refused)}, which is needed for: {permission.purpose}"
                f"{_extra_denial_reason_or_empty(refused)}",
                "set the output of hyperpod-kit policy with aws iam put-role-policy",
                severity,
            )


def _may_be_allowed_by_efs_policy(
    facts: AccountFacts, role: NodeRole, permission: Permission, refused: Sequence[Decision]
) -> bool:
    """Whether the policy of an EFS file system allows what the role's own does not: one of the two is enough.

    Without a policy EFS lets every client in; a policy that could not be read is given the benefit of the doubt.
    """
    denied = any(decision.decision == "explicitDeny" for decision in refused)
    if denied or not permission.actions[0].startswith("elasticfilesystem:Client"):
        return False
    region, file_system_id = permission.resources[0].split(":")[3], permission.resources[0].rpartition("/")[2]
    system = value_or_none(facts.file_systems.get(EfsMount.kind, {}).get((region, file_system_id)))
    if system is None or isinstance(system.policy, NotQueried):
        return True
    return system.policy is None or all(
        has_allow_statement(system.policy, role.arn, decision.action) for decision in refused
    )


def _denied_actions_text(refused: Sequence[Decision]) -> str:
    return ", ".join(sorted({decision.action for decision in refused}))


def _denied_resources_text(refused: Sequence[Decision]) -> str:
    return ", ".join(sorted({decision.resource for decision in refused}))


def _extra_denial_reason_or_empty(refused: Sequence[Decision]) -> str:
    """Say what besides a missing Allow forbids it: another Allow would not help then."""
    limits = sorted({limit for decision in refused for limit in decision.limits})
    reason: Optional[str] = " and ".join(limits) or None
    if any(decision.decision == "explicitDeny" for decision in refused):
        if reason:
            reason = f"{reason}, and a statement denies it"
        else:
            reason = "a statement denies it"
    if reason:
        return f" ({reason})"
    return ""
