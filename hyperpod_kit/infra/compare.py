"""What of a template there is in the account, by the ids that the configuration has now: pure, from facts to rows.

The facts and the verdicts are the preflight's, so `infra template --check` and `validate --aws` cannot disagree; what a
template does better than it must (the way to S3 that costs nothing) is a note.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Iterable, Iterator, Sequence

from hyperpod_kit.config.settings.findings import Finding
from hyperpod_kit.config.settings.settings import Settings
from hyperpod_kit.infra.part import TemplatePart
from hyperpod_kit.preflight.facts import AccountFacts
from hyperpod_kit.preflight.run.check import run_all_preflight_checks

OK, MISSING, DIFFERS, NOT_CHECKED = "ok", "missing", "differs", "unknown"

ABSENT = ("HPK-V101", "HPK-V202", "HPK-V301", "HPK-V302", "HPK-V401", "HPK-V406", "HPK-V501")
"""Findings that say that something is not there at all."""
NOT_QUERIED_CODES = ("HPK-V001", "HPK-V002")


@dataclass(frozen=True)
class PartState:
    """One part of the template. `state`: ok, missing, differs or unknown; `details`: code and sentence each."""

    title: str
    state: str
    details: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """JSON form."""
        return {"part": self.title, "state": self.state, "details": list(self.details)}


def part_states_and_unrelated_finding_count(
    settings: Settings, parts: Sequence[TemplatePart], facts: AccountFacts
) -> tuple[list[PartState], int]:
    """Return the state of each part in the account, and the number of findings that are about none of the parts."""
    findings = run_all_preflight_checks(settings, facts)
    rows, used = [], 0
    for part in parts:
        part_findings = [finding for finding in findings if _is_about_part(part, finding)]
        used += len(part_findings)
        details = [f"{finding.code}: {finding.message}" for finding in part_findings]
        rows.append(
            PartState(
                part.title, _state_from_findings(part_findings), (*details, *_missing_s3_endpoint_notes(part, facts))
            )
        )
    return rows, len(findings) - used


def _is_about_part(part: TemplatePart, finding: Finding) -> bool:
    """Whether a finding is about the part; one about a role's permissions is about the role, wherever its path
    is."""
    if finding.code.startswith("HPK-V2"):
        return any(resource["Type"] == "AWS::IAM::Role" for resource in part.resources.values())
    return any(finding.path == path or finding.path.startswith((f"{path}.", f"{path}[")) for path in part.paths)


def _state_from_findings(findings: Iterable[Finding]) -> str:
    codes = {finding.code for finding in findings}
    if codes & set(ABSENT):
        return MISSING
    if codes - set(NOT_QUERIED_CODES):
        return DIFFERS
    if codes:
        return NOT_CHECKED
    return OK


def _missing_s3_endpoint_notes(part: TemplatePart, facts: AccountFacts) -> Iterator[str]:
    """Yield a note for each VPC that has no endpoint of S3, where the template would make one."""
    endpoints = facts.known_endpoints
    subnets = facts.known_subnets
    if "S3Endpoint" in part.resources and endpoints is not None and subnets:
        vpcs = {subnet.vpc_id for subnet in subnets}
        for vpc in sorted(vpcs - {endpoint.vpc_id for endpoint in endpoints if endpoint.service == "s3"}):
            yield (
                f"{vpc} has no S3 endpoint: all traffic to and from S3 passes the NAT gateway, which is billed by "
                "the byte"
            )
