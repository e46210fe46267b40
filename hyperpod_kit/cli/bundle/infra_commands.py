"""infra template: what the configuration stands on, for CloudFormation or Terraform, and how the account compares."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Optional

import click

from hyperpod_kit.cli.terminal.lazy import SummaryGroup
from hyperpod_kit.cli.terminal.options import config_argument, json_option
from hyperpod_kit.cli.terminal.output import (
    live_status,
    print_json,
    print_table,
    print_to_stderr,
    print_unchanged_unless_terminal,
    table_cell,
)
from hyperpod_kit.command_line.tables import Column, TextTable
from hyperpod_kit.errors import Absent
from hyperpod_kit.exit_codes import ExitCode
from hyperpod_kit.untrusted import by_descriptor
from hyperpod_kit.untrusted.text import counted

if TYPE_CHECKING:
    from hyperpod_kit.config.settings.settings import Settings
    from hyperpod_kit.infra.part import TemplatePart

STYLES = {"ok": "green", "missing": "red", "differs": "yellow", "unknown": "yellow"}


@click.group(cls=SummaryGroup)
def infra() -> None:
    """Generate the network, security groups, file systems, buckets and roles that a cluster needs."""


@infra.command()
@config_argument
@click.option(
    "--format",
    "form",
    type=click.Choice(["cloudformation", "terraform"]),
    default="cloudformation",
    show_default=True,
    help="Template language.",
)
@click.option(
    "--out",
    "output",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write to FILE instead of stdout.",
)
@click.option(
    "--check", "checked", is_flag=True, help="Compare the account with the template instead of printing it. Read-only."
)
@json_option
def template(config: Path, form: str, output: Optional[Path], checked: bool, as_json: bool) -> int:
    """Print a template of everything that `validate --aws` checks.

    The template has a VPC with private subnets, a NAT gateway and an S3 endpoint; security groups with the ports of
    the mounts; EFS with mount targets, access points and a policy; FSx; buckets; and the nodes' roles. Resource ids in
    the configuration are placeholders: the outputs of the stack say which value belongs where. The command is offline
    and creates nothing.

    --check compares the account with the template, by the ids that the configuration has now. The exit code is 1 when
    something is missing or differs, and 3 when AWS did not answer.

    \b
    Examples:
      hyperpod-kit infra template --out infra.yaml
      hyperpod-kit infra template --format terraform --out main.tf.json
      hyperpod-kit infra template --check
      hyperpod-kit infra template cluster.yaml --check --json
    """
    from hyperpod_kit.config.load import load
    from hyperpod_kit.infra.template import build_template_parts, describe_omissions

    settings = load(config)
    template_parts = build_template_parts(settings)
    if checked:
        return _compare_account_and_print(settings, template_parts, as_json)
    text = _render_template(settings, template_parts, form, as_json)
    if output is None:
        print_unchanged_unless_terminal(text)
    else:
        try:
            by_descriptor.write_text(output, text)
        except OSError as err:
            raise Absent(f"cannot write {output}: {err.strerror}") from err
        print_to_stderr(f"wrote {output}: {counted(sum(len(part.resources) for part in template_parts), 'resource')}")
    for sentence in describe_omissions(settings):
        print_to_stderr(sentence)
    print_to_stderr(_sentence_with_deploy_command(settings, template_parts, form, output))
    return 0


def _render_template(settings: Settings, template_parts: list[TemplatePart], form: str, as_json: bool) -> str:
    from hyperpod_kit.infra.template import cloudformation_template, to_yaml_without_aliases
    from hyperpod_kit.infra.terraform import terraform_configuration

    if form == "terraform":
        return json.dumps(terraform_configuration(settings.cluster.region, template_parts), indent=2) + "\n"
    made = cloudformation_template(settings, template_parts)
    if as_json:
        return json.dumps(made, indent=2) + "\n"
    return to_yaml_without_aliases(made)


def _sentence_with_deploy_command(
    settings: Settings, template_parts: list[TemplatePart], form: str, output: Optional[Path]
) -> str:
    """Return the sentence that names the command that deploys the template, with its parameters."""
    parameters = [name for part in template_parts for name in part.parameters]
    zones = [name for name in parameters if name.startswith("Zone")]
    if form == "terraform":
        variables = " ".join(f"-var {name.lower()}=ZONE" for name in zones)
        return f"next, in the directory of the file: terraform init && terraform apply {variables}"
    overrides = " ".join(f"{name}=ZONE" for name in zones)
    return (
        f"next: aws cloudformation deploy --region {settings.cluster.region} --stack-name {settings.cluster.name} "
        f"--template-file {output or 'FILE'} --capabilities CAPABILITY_NAMED_IAM --parameter-overrides "
        f"{overrides}"
    )


def _compare_account_and_print(settings: Settings, template_parts: list[TemplatePart], as_json: bool) -> int:
    from hyperpod_kit.infra.compare import DIFFERS, MISSING, NOT_CHECKED, part_states_and_unrelated_finding_count
    from hyperpod_kit.preflight.run.gather import gather_account_facts

    with live_status():
        facts = gather_account_facts(settings)
    rows, other_findings = part_states_and_unrelated_finding_count(settings, template_parts, facts)
    if as_json:
        print_json(
            "infra template",
            {
                "cluster": settings.cluster.name,
                "account": facts.caller.account,
                "parts": [row.to_dict() for row in rows],
                "other_findings": other_findings,
            },
        )
    else:
        grid = TextTable(("PART", "STATE", Column("DETAIL", folds=True)))
        for row in rows:
            for index, line in enumerate(row.details or ("",)):
                if index == 0:
                    head = (row.title, row.state)
                else:
                    head = ("", "")
                grid.add_row(table_cell(head[0]), table_cell(head[1], STYLES.get(head[1], "")), table_cell(line))
        print_table(grid)
        if other_findings:
            print_to_stderr(
                f"{counted(other_findings, 'more finding concerns', 'more findings concern')} other resources: see "
                "hyperpod-kit validate --aws"
            )
    states = {row.state for row in rows}
    if states & {MISSING, DIFFERS}:
        return ExitCode.PROBLEM
    if NOT_CHECKED in states:
        return ExitCode.ABSENT
    return ExitCode.OK
