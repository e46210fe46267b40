"""The execution role: whether it is there, who may be it, and what IAM would decide about every need."""

from __future__ import annotations

from typing import Optional

from hyperpod_kit.aws.iam import Decision, Iam
from hyperpod_kit.config.settings.settings import Settings
from hyperpod_kit.preflight.client import QueryClient
from hyperpod_kit.preflight.facts import Queried, RoleFacts
from hyperpod_kit.preflight.permission import Permission
from hyperpod_kit.preflight.placement import NodeRole


def fetch_role(client: QueryClient, settings: Settings, node_role: NodeRole) -> Queried[Optional[RoleFacts]]:
    """Describe an execution role, None when there is no such one."""
    iam = client.service_client(Iam, settings.cluster.region)

    def fetch() -> Optional[RoleFacts]:
        described = iam.role(node_role.name)
        if described is None:
            return None
        return RoleFacts(described["Arn"], described["AssumeRolePolicyDocument"])

    return client.query_or_record_failure(
        "iam:GetRole", node_role.path, "whether the role exists and trusts SageMaker", fetch
    )


def simulate_decisions(
    client: QueryClient, settings: Settings, node_role: NodeRole, permission: Permission
) -> Queried[tuple[Decision, ...]]:
    """Simulate what IAM decides about one permission, one entry a triple of action, resource and context."""
    iam = client.service_client(Iam, settings.cluster.region)
    return client.query_or_record_failure(
        "iam:SimulatePrincipalPolicy",
        node_role.path,
        "what the role allows",
        lambda: tuple(
            decision
            for context in permission.simulation_contexts()
            for decision in iam.simulate_role_decisions(
                node_role.arn, permission.actions, permission.resources, context
            )
        ),
    )
