"""init."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from hyperpod_kit.cli.options import config_argument
from hyperpod_kit.cli.output import say
from hyperpod_kit.errors import UsageError
from hyperpod_kit.model.cluster import LIFECYCLE_MODES

NEEDED = {
    "name": "--name",
    "region": "--region",
    "execution_role": "--execution-role",
    "security_groups": "--security-group",
    "subnets": "--subnet",
}


@click.command()
@config_argument
@click.option("--from-example", is_flag=True, help="Write the complete example as it is; it is what `rehearse` uses.")
@click.option("--force", is_flag=True, help="Write over an existing file.")
@click.option("--name", help="Name of the cluster.")
@click.option("--region", envvar="AWS_DEFAULT_REGION", help="AWS region.", show_envvar=True)
@click.option("--execution-role", metavar="ARN", help="IAM role of the nodes.")
@click.option(
    "--security-group", "security_groups", multiple=True, metavar="SG", help="Security group; may be repeated."
)
@click.option("--subnet", "subnets", multiple=True, metavar="SUBNET", help="Subnet; may be repeated.")
@click.option("--bucket", help="Bucket for the bundle; default: SageMaker's own, sagemaker-REGION-ACCOUNT.")
@click.option(
    "--lifecycle-mode",
    type=click.Choice(LIFECYCLE_MODES),
    default="on_init_complete",
    show_default=True,
    help="What HyperPod starts on a new node: our script last, our script alone, or none.",
)
@click.option("--controller-type", default="ml.c5.xlarge", show_default=True, metavar="TYPE", help="Of the controller.")
@click.option("--worker-type", default="ml.p5.48xlarge", show_default=True, metavar="TYPE", help="Of the workers.")
@click.option("--workers", default=1, show_default=True, type=click.IntRange(0), help="Number of compute nodes.")
@click.option("--efs", metavar="FS", help="EFS file system, mounted at /efs.")
@click.option("--efs-access-point", metavar="FSAP", help="Its access point.")
@click.option("--data-bucket", help="Bucket with training data, mounted read-only at /mnt/data.")
@click.option("--data-prefix", default="", metavar="PREFIX/", help="Only this prefix of it.")
@click.option("--fsx-dns-name", metavar="DNS", help="FSx for Lustre file system, mounted at /fsx.")
@click.option("--fsx-mountname", metavar="NAME", help="Its mount name.")
@click.option("--homes", metavar="FS", help="EFS file system with a home for each user; see `users apply`.")
@click.option("--user", "users", multiple=True, metavar="NAME:UID", help="Account on every node; may be repeated.")
def init(config: Path, from_example: bool, force: bool, users: tuple[str, ...], **answers: Any) -> None:
    """Write a configuration to start from.

    With --from-example no other flag is needed. The file is never overwritten without --force.

    \b
    Examples:
      hyperpod-kit init --from-example
      hyperpod-kit init --name ml --region us-west-2 --execution-role arn:aws:iam::111122223333:role/HyperPod \\
        --subnet subnet-0123456789abcdef0 --security-group sg-0123456789abcdef0 --workers 16
    """
    from hyperpod_kit.bundle.sources import example
    from hyperpod_kit.config import starter
    from hyperpod_kit.config.findings import errors
    from hyperpod_kit.config.load import check

    values = example()
    if not from_example:
        missing = [flag for key, flag in NEEDED.items() if not answers[key]]
        if missing:
            raise UsageError(
                f"init needs {', '.join(missing)}",
                hint="give them, or start from the example: hyperpod-kit init --from-example",
            )
        accounts = tuple(_account(user) for user in users)
        values = starter.fill(values, starter.Answers(users=accounts, **answers))
    starter.write(config, values, force=force)
    checked = check(config)
    findings = checked.findings
    for finding in findings:
        say(finding.render())
    say(f"wrote {config}" + (", which has findings" if findings else ""))
    verb = "validate" if findings else "upload"
    if checked.settings.homeless and not errors(findings):
        verb = "users apply"
    say(f"next: hyperpod-kit {verb} {config}")


def _account(text: str) -> tuple[str, int]:
    name, _, uid = text.partition(":")
    if not name or not uid.isdigit():
        raise UsageError(f"--user {text}: expected NAME:UID", hint="--user trainer:2001")
    return name, int(uid)
