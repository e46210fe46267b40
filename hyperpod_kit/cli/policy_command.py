"""policy: the least policies of the nodes' role."""

from __future__ import annotations

from pathlib import Path

import click

from hyperpod_kit.cli.options import config_argument
from hyperpod_kit.cli.output import data, say


@click.command()
@config_argument
@click.option("--trust", "of_trust", is_flag=True, help="Who may be the role, in place of what it may do.")
def policy(config: Path, of_trust: bool) -> None:
    """Print the least policy of the nodes' role, from the configuration.

    One statement for each thing that nodes need: the bundle, each mount, each secret, logs, sessions. `validate --aws`
    has IAM simulate the same list against the role that there is. Asks nobody, changes nothing.

    \b
    Examples:
      hyperpod-kit policy > policy.json
      hyperpod-kit policy --trust > trust.json
      hyperpod-kit policy cluster.yaml
    """
    from hyperpod_kit.config.load import load
    from hyperpod_kit.preflight import needs
    from hyperpod_kit.preflight import policy as policies

    settings = load(config)
    role = settings.cluster.execution_role.rpartition("/")[2]
    if of_trust:
        data(policies.trust())
        say(f"next: aws iam create-role --role-name {role} --assume-role-policy-document file://trust.json")
        return
    wanted = policies.permissions(needs.needs(settings))
    data(wanted)
    length = policies.length(wanted)
    if length > policies.INLINE_LIMIT:
        say(
            f"{length} characters: IAM takes {policies.INLINE_LIMIT} of inline policies; make managed ones of its parts"
        )
    else:
        say(
            f"next: aws iam put-role-policy --role-name {role} --policy-name hyperpod-kit "
            f"--policy-document file://policy.json"
        )
