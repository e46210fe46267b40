"""The nodes' role: it is there, SageMaker may be it, and it may do what the configuration needs."""

from __future__ import annotations

from typing import Iterator, Optional, Sequence

from hyperpod_kit.aws.iam import ALLOWED, Decision
from hyperpod_kit.aws.policies import lets_in
from hyperpod_kit.config.findings import ERROR, WARNING, Finding
from hyperpod_kit.config.settings import Settings
from hyperpod_kit.model.mounts.efs import EfsMount
from hyperpod_kit.preflight.facts import UNKNOWN, AccountFacts, NotQueried, RoleFacts, known
from hyperpod_kit.preflight.need import Need
from hyperpod_kit.preflight.needs import needs
from hyperpod_kit.preflight.placement import RoleOf, roles
from hyperpod_kit.preflight.role_policy import SERVICE, trusts_sagemaker


def there(settings: Settings, facts: AccountFacts) -> Iterator[Finding]:
    """Every role exists in the caller's account, and its trust policy names SageMaker."""
    for role in roles(settings):
        if role.account and role.account != facts.caller.account:
            yield Finding(
                "HPK-V201",
                role.path,
                f"the role is in account {role.account}, you are {facts.caller.arn}: roles are not passed between "
                f"accounts",
                "Use a role of your account, or credentials of the role's",
            )
            continue
        found = facts.roles.get(role.arn, UNKNOWN)
        if isinstance(found, NotQueried):
            continue
        if found is None or found.arn != role.arn:
            only = f", only {found.arn}" if found else ""
            yield Finding(
                "HPK-V202",
                role.path,
                f"there is no role {role.arn}{only}",
                "hyperpod-kit policy --trust prints who may be it: aws iam create-role takes that",
            )
        elif not trusts_sagemaker(found.trust, role.account):
            yield Finding(
                "HPK-V203",
                role.path,
                f"{SERVICE} may not become {role.arn}",
                "hyperpod-kit policy --trust prints the trust policy: aws iam update-assume-role-policy takes that",
            )


def allowed(settings: Settings, facts: AccountFacts) -> Iterator[Finding]:
    """IAM would allow every action that the nodes need."""
    for role in roles(settings):
        found = facts.roles.get(role.arn)
        if found is None or (isinstance(found, RoleFacts) and found.arn != role.arn):
            continue  # no role, another one than the one that was simulated, or no ARN at all
        for need in needs(settings, role):
            decisions = known(facts.decisions.get((role.arn, need.sid)))
            refused = [one for one in decisions or () if one.decision != ALLOWED]
            if not refused or _let_in_by_the_file_system(facts, role, need, refused):
                continue
            yield Finding(
                "HPK-V204",
                need.path,
                f"role {role.name} may not {_actions(refused)} on {_resources(refused)}, and without that there is no "
                f"{need.why}{_because(refused)}",
                "hyperpod-kit policy prints the least policy that the role needs: aws iam put-role-policy takes that",
                WARNING if need.optional else ERROR,
            )


def _let_in_by_the_file_system(facts: AccountFacts, role: RoleOf, need: Need, refused: Sequence[Decision]) -> bool:
    """Whether the policy of an EFS file system allows what the role's own does not: one of the two is enough.

    Without a policy EFS lets every client in; a policy that could not be read is given the benefit of the doubt.
    """
    denied = any(one.decision == "explicitDeny" for one in refused)
    if denied or not need.actions[0].startswith("elasticfilesystem:Client"):
        return False
    region, file_system_id = need.resources[0].split(":")[3], need.resources[0].rpartition("/")[2]
    system = known(facts.file_systems.get(EfsMount.kind, {}).get((region, file_system_id)))
    if system is None or isinstance(system.policy, NotQueried):
        return True
    return system.policy is None or all(lets_in(system.policy, role.arn, one.action) for one in refused)


def _actions(refused: Sequence[Decision]) -> str:
    return ", ".join(sorted({one.action for one in refused}))


def _resources(refused: Sequence[Decision]) -> str:
    return ", ".join(sorted({one.resource for one in refused}))


def _because(refused: Sequence[Decision]) -> str:
    """What besides a missing Allow forbids it: another Allow would not help then."""
    limits = sorted({limit for one in refused for limit in one.limits})
    words: Optional[str] = " and ".join(limits) or None
    if any(one.decision == "explicitDeny" for one in refused):
        words = f"{words}, and a statement denies it" if words else "a statement denies it"
    return f" ({words})" if words else ""
