"""validate: the rules, and with --aws what only AWS can answer."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Optional, Sequence

import click

from hyperpod_kit.cli.terminal.options import config_argument, json_option
from hyperpod_kit.cli.terminal.output import live_status, print_json, print_text, print_to_stderr
from hyperpod_kit.command_line.explaining import print_explain_line
from hyperpod_kit.errors import UsageError
from hyperpod_kit.exit_codes import ExitCode
from hyperpod_kit.untrusted.dataclass_json import dataclass_to_json
from hyperpod_kit.untrusted.text import counted

if TYPE_CHECKING:
    from hyperpod_kit.config.load import Checked
    from hyperpod_kit.config.settings.findings import Finding
    from hyperpod_kit.preflight.facts import AccountFacts

CODE = re.compile(r"HPK-[A-Z]\d{3}")
COLOURS = {"error": "red", "warning": "yellow", "info": "cyan"}


@click.command()
@config_argument
@click.option("--aws", "live", is_flag=True, help="Check the AWS account too. Read-only.")
@click.option(
    "--suppress", "suppressed", multiple=True, metavar="CODE", help="Ignore findings with this code; repeatable."
)
@click.option(
    "--fail-on",
    type=click.Choice(["error", "warning", "info"]),
    default="error",
    show_default=True,
    help="Lowest severity for which the exit code is 1.",
)
@json_option
def validate(config: Path, live: bool, suppressed: tuple[str, ...], fail_on: str, as_json: bool) -> int:
    """Check a configuration and report all findings.

    The check is offline. With --aws it also covers the account: bucket, role, network, file systems and quotas. The
    exit code is 1 when a finding is at least as severe as --fail-on, otherwise 3 when AWS did not answer a query. A
    query that your own role is not allowed to make is a warning.

    \b
    Examples:
      hyperpod-kit validate
      hyperpod-kit validate cluster.yaml --json
      hyperpod-kit validate --aws
      hyperpod-kit validate --aws --fail-on warning --suppress HPK-V508
    """
    from hyperpod_kit.config.load import check
    from hyperpod_kit.config.settings.findings import select_at_least

    for code in suppressed:
        if not CODE.fullmatch(code):
            raise UsageError(f"--suppress {code}: expected a code", hint="--suppress HPK-V508")
    checked = check(config)
    facts = None
    if live:
        facts = _query_account_facts_unless_region_wrong(checked)
    findings = _all_findings(checked, facts)
    shown = [finding for finding in findings if finding.code not in suppressed]
    hidden = [finding for finding in findings if finding.code in suppressed]
    failing = select_at_least(shown, fail_on)
    if facts:
        unanswered = [query for query in facts.not_queried if not query.denied]
    else:
        unanswered = []
    if as_json:
        report: dict[str, object] = {
            "config": str(config),
            "ok": not failing,
            "findings": [dataclass_to_json(finding) for finding in shown],
            "suppressed": [dataclass_to_json(finding) for finding in hidden],
        }
        if facts is not None:
            report["aws"] = {
                "account": facts.caller.account,
                "caller": facts.caller.arn,
                "not_checked": [query.to_dict() for query in facts.not_queried],
            }
        print_json("validate", report)
    else:
        _print_findings(config, shown)
        print_text(_summary_line(checked, shown, len(hidden), facts))
        print_explain_line(finding.code for finding in shown)
    if failing:
        return ExitCode.PROBLEM
    if unanswered:
        return ExitCode.ABSENT
    return ExitCode.OK


def _query_account_facts_unless_region_wrong(checked: Checked) -> Optional[AccountFacts]:
    """Ask AWS for the facts of the account, with progress on stderr; None when the region is wrong, so
    that nothing can be asked."""
    from hyperpod_kit.preflight.run.gather import gather_account_facts

    if not checked.has_no_error_in_or_around("hyperpod_kit.cluster.region"):
        print_to_stderr("the AWS checks were not run: correct hyperpod_kit.cluster.region first")
        return None
    with live_status():
        return gather_account_facts(checked.settings, checked.has_no_error_in_or_around)


def _all_findings(checked: Checked, facts: Optional[AccountFacts]) -> Sequence[Finding]:
    """List the findings of the rules, of the files that it names and of the preflight, in the order of the file."""
    from hyperpod_kit.bundle import requirements, scripts

    settings = checked.settings
    file_findings = [
        finding
        for finding in (
            *scripts.find_custom_script_problems(settings),
            *requirements.find_requirement_problems(settings),
        )
        if checked.has_no_error_in_or_around(finding.path)
    ]
    if facts is None:
        return checked.with_positions_in_file_order([*checked.findings, *file_findings])
    from hyperpod_kit.preflight.run.check import run_all_preflight_checks

    # Where a rule has found an error, what AWS says about the value is an echo of it.
    live = [
        finding
        for finding in run_all_preflight_checks(checked.settings, facts)
        if checked.has_no_error_in_or_around(finding.path)
    ]
    return checked.with_positions_in_file_order([*checked.findings, *file_findings, *live])


def _print_findings(config: Path, findings: Sequence[Finding]) -> None:
    for finding in findings:
        position = ""
        if finding.line:
            position = f":{finding.line}:{finding.column}"
        print_text(f"{finding.severity} {finding.code}", fg=COLOURS[finding.severity], nl=False)
        print_text(f"  {config}{position}  {finding.path}")
        print_text(f"    {finding.message}\n    {finding.hint}")


def _summary_line(checked: Checked, shown: Sequence[Finding], hidden: int, facts: Optional[AccountFacts]) -> str:
    """The last line: how many findings, or what the configuration is."""
    counts = {level: sum(finding.severity == level for finding in shown) for level in COLOURS}
    numbers = [counted(counts["error"], "error"), counted(counts["warning"], "warning")]
    if counts["info"]:
        numbers += [f"{counts['info']} info"]
    if hidden:
        numbers += [f"{hidden} suppressed"]
    caller_text = ""
    if facts:
        caller_text = f" (checked as {facts.caller.arn})"
    if counts["error"]:
        return f"{checked.path}: {', '.join(numbers)}{caller_text}"
    cluster = checked.settings.cluster
    notes = [number for number in numbers if not number.startswith("0 ")]
    nodes = sum(group.count for group in cluster.groups)
    notes_text = ""
    if notes:
        notes_text = f"; {', '.join(notes)}"
    return (
        f"{checked.path} is valid: cluster {cluster.name}, {counted(nodes, 'node')} in "
        f"{counted(len(cluster.groups), 'group')}, {counted(len(checked.settings.mounts), 'mount')}, "
        f"{cluster.lifecycle_mode}{caller_text}" + notes_text
    )
