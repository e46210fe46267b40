"""The execution role: whether it is there, who may be it, and what IAM would decide about every need."""

from __future__ import annotations

from typing import Optional

from hyperpod_kit.aws.iam import Decision, Iam
from hyperpod_kit.config.settings import Settings
from hyperpod_kit.preflight.facts import Answer, Role
from hyperpod_kit.preflight.look.asker import Asker
from hyperpod_kit.preflight.needs import AT, Need


def name_of(arn: str) -> str:
    """A role's name; its ARN has the path in front of it."""
    return arn.rpartition("/")[2]


def role(asker: Asker, settings: Settings) -> Answer[Optional[Role]]:
    """The execution role, None when there is no such one."""
    arn = settings.cluster.execution_role
    iam = asker.client(Iam, settings.cluster.region)

    def found() -> Optional[Role]:
        described = iam.role(name_of(arn))
        return None if described is None else Role(described["Arn"], described["AssumeRolePolicyDocument"])

    return asker.ask("iam:GetRole", AT, "whether the role is there and SageMaker may be it", found)


def decisions(asker: Asker, settings: Settings, need: Need) -> Answer[tuple[Decision, ...]]:
    """What IAM would decide about one need, one entry a triple of action, resource and context."""
    arn = settings.cluster.execution_role
    iam = asker.client(Iam, settings.cluster.region)
    return asker.ask(
        "iam:SimulatePrincipalPolicy",
        AT,
        "what the role is allowed",
        lambda: tuple(
            decision
            for context in need.questions()
            for decision in iam.simulate(arn, need.actions, need.resources, context)
        ),
    )
