"""policy: the least policies of the nodes' role, and of the admin."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Optional

import click

from hyperpod_kit.cli.terminal.options import config_argument
from hyperpod_kit.cli.terminal.output import print_document, print_to_stderr
from hyperpod_kit.errors import Absent, UsageError

if TYPE_CHECKING:
    from hyperpod_kit.config.settings.settings import Settings
    from hyperpod_kit.preflight.placement import NodeRole


@click.command()
@config_argument
@click.option(
    "--group", metavar="NAME", help="Print the policy for the role of this instance group; default: the cluster's role."
)
@click.option("--trust", "of_trust", is_flag=True, help="Print the trust policy instead of the permissions.")
@click.option("--admin", "of_admin", is_flag=True, help="Print the policy for admins of the clusters.")
def policy(config: Path, group: Optional[str], of_trust: bool, of_admin: bool) -> None:
    """Print the minimal IAM policy for the nodes' role, or for admins.

    The policy has one statement for each thing that nodes need (the bundle, each mount, each secret, logs, sessions),
    and a Deny for writing to the bundle's prefix. `validate --aws` has IAM simulate the same statements against the
    existing role. With --admin it has every call that a command makes about clusters, iam:PassRole for the nodes' roles
    and for SageMaker alone, the bundle, sessions, logs and, where there are homes, their access points. This command is
    offline and changes nothing.

    \b
    Examples:
      hyperpod-kit policy > policy.json
      hyperpod-kit policy --trust > trust.json
      hyperpod-kit policy --admin > admin.json
      hyperpod-kit policy cluster.yaml --group workers  # where groups have roles of their own
    """
    from hyperpod_kit.config.load import load
    from hyperpod_kit.preflight import admin_policy, role_policy
    from hyperpod_kit.preflight.checks import required_permissions

    settings = load(config)
    if of_admin:
        if of_trust or group is not None:
            raise UsageError("--admin is about people, --trust and --group are about the nodes' roles: choose one")
        print_document(admin_policy.admin_policy(settings))
        print_to_stderr("whoever may write to the bundle's prefix has root's rights on every node created afterwards")
        return
    role = _role_of_group_or_first(settings, group)
    if of_trust:
        print_document(role_policy.trust_policy())
        print_to_stderr(
            f"next: write this to a file (> trust.json), then aws iam create-role --role-name {role.name} "
            f"--assume-role-policy-document file://trust.json"
        )
        return
    document = role_policy.permissions_policy(
        required_permissions.required_permissions(settings, role), role_policy.bundle_write_denials(settings, role)
    )
    print_document(document)
    if settings.metadata_users is None:
        print_to_stderr(
            "every process of every user on these nodes has these permissions: the metadata service is open to all"
        )
        print_to_stderr("hyperpod_kit.metadata_service closes it; --group prints the policy for the role of one group")
    else:
        print_to_stderr(
            f"on the nodes only root{''.join(f', {name}' for name in settings.metadata_users)} can use these "
            "permissions"
        )
    length = role_policy.policy_length(document)
    limit = role_policy.INLINE_LIMIT
    if length > limit:
        print_to_stderr(
            f"the policy has {length} characters, and IAM allows {limit} for inline policies: split it into managed "
            "policies"
        )
    else:
        print_to_stderr(
            f"next: write this to a file (> policy.json), then aws iam put-role-policy --role-name {role.name} "
            f"--policy-name hyperpod-kit --policy-document file://policy.json"
        )


def _role_of_group_or_first(settings: Settings, group: Optional[str]) -> NodeRole:
    """The role of a group, or the first one. Raises UsageError."""
    from hyperpod_kit.preflight.placement import execution_roles

    for role in execution_roles(settings):
        if group is None or any(member.name == group for member in role.groups):
            return role
    raise Absent(
        f"there is no instance group {group}",
        hint=f"instance groups are: {', '.join(member.name for member in settings.cluster.groups)}",
    )
