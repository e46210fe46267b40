"""The nodes' role: it is there, SageMaker may be it, and it may do what the configuration needs."""

from __future__ import annotations

from typing import Iterator, Optional, Sequence

from hyperpod_kit.aws.iam import ALLOWED, Decision
from hyperpod_kit.aws.policies import lets_in
from hyperpod_kit.config.findings import ERROR, WARNING, Finding
from hyperpod_kit.config.settings import Settings
from hyperpod_kit.preflight.facts import Facts, Unasked, known
from hyperpod_kit.preflight.needs import AT, Need, account_of, needs
from hyperpod_kit.preflight.policy import SERVICE, trusts_sagemaker


def there(settings: Settings, facts: Facts) -> Iterator[Finding]:
    """The role exists in the caller's account, and its trust policy names SageMaker."""
    if not settings.cluster.execution_role.startswith("arn:"):
        return
    account, arn = account_of(settings).number, settings.cluster.execution_role
    if account != facts.caller.account:
        yield Finding(
            "HPK-V201",
            AT,
            f"the role is in account {account}, you are {facts.caller.arn}: roles are not passed between accounts",
            "Use a role of your account, or credentials of the role's",
        )
        return
    if isinstance(facts.role, Unasked):
        return
    if facts.role is None or facts.role.arn != arn:
        found = f", only {facts.role.arn}" if facts.role else ""
        yield Finding(
            "HPK-V202",
            AT,
            f"there is no role {arn}{found}",
            "hyperpod-kit policy --trust prints who may be it: aws iam create-role takes that",
        )
    elif not trusts_sagemaker(facts.role.trust, account):
        yield Finding(
            "HPK-V203",
            AT,
            f"{SERVICE} may not become {arn}",
            "hyperpod-kit policy --trust prints the trust policy: aws iam update-assume-role-policy takes that",
        )


def allowed(settings: Settings, facts: Facts) -> Iterator[Finding]:
    """IAM would allow every action that the nodes need."""
    if known(facts.role) is None or account_of(settings).number != facts.caller.account:
        return
    for need in needs(settings):
        decisions = known(facts.decisions.get(need.sid))
        refused = [one for one in decisions or () if one.decision != ALLOWED]
        if not refused or _let_in_by_the_file_system(facts, need, refused):
            continue
        yield Finding(
            "HPK-V204",
            need.path,
            f"the role may not {_actions(refused)} on {_resources(refused)}, and without that there is no {need.why}"
            + _because(refused),
            "hyperpod-kit policy prints the least policy that the role needs: aws iam put-role-policy takes that",
            WARNING if need.optional else ERROR,
        )


def _let_in_by_the_file_system(facts: Facts, need: Need, refused: Sequence[Decision]) -> bool:
    """Whether the policy of an EFS file system allows what the role's own does not: one of the two is enough.

    Without a policy EFS lets every client in; a policy that could not be read is given the benefit of the doubt.
    """
    denied = any(one.decision == "explicitDeny" for one in refused)
    if denied or not need.actions[0].startswith("elasticfilesystem:Client"):
        return False
    role = known(facts.role)
    assert role is not None
    region, file_system_id = need.resources[0].split(":")[3], need.resources[0].rpartition("/")[2]
    system = known(facts.efs.get((region, file_system_id)))
    if system is None or isinstance(system.policy, Unasked):
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
