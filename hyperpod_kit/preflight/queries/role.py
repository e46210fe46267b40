"""The execution role: whether it is there, who may be it, and what IAM would decide about every need."""

from __future__ import annotations

from typing import Optional

from hyperpod_kit.aws.iam import Decision, Iam
from hyperpod_kit.config.settings import Settings
from hyperpod_kit.preflight.facts import Answer, RoleFacts
from hyperpod_kit.preflight.need import Need
from hyperpod_kit.preflight.placement import RoleOf
from hyperpod_kit.preflight.queries.client import QueryClient


def role(client: QueryClient, settings: Settings, wanted: RoleOf) -> Answer[Optional[RoleFacts]]:
    """An execution role, None when there is no such one."""
    iam = client.service(Iam, settings.cluster.region)

    def found() -> Optional[RoleFacts]:
        described = iam.role(wanted.name)
        return None if described is None else RoleFacts(described["Arn"], described["AssumeRolePolicyDocument"])

    return client.ask("iam:GetRole", wanted.path, "whether the role is there and SageMaker may be it", found)


def decisions(client: QueryClient, settings: Settings, wanted: RoleOf, need: Need) -> Answer[tuple[Decision, ...]]:
    """What IAM would decide about one need, one entry a triple of action, resource and context."""
    iam = client.service(Iam, settings.cluster.region)
    return client.ask(
        "iam:SimulatePrincipalPolicy",
        wanted.path,
        "what the role is allowed",
        lambda: tuple(
            decision
            for context in need.questions()
            for decision in iam.simulate(wanted.arn, need.actions, need.resources, context)
        ),
    )
