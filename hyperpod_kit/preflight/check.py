"""All checks, in the order in which their findings are reported. docs/preflight.md has the table of codes."""

from __future__ import annotations

from typing import Callable, Iterable

from hyperpod_kit.config.findings import Finding
from hyperpod_kit.config.settings import Settings
from hyperpod_kit.preflight.checks import buckets, fsx, groups, limits, network, not_queried, role, shared
from hyperpod_kit.preflight.facts import AccountFacts
from hyperpod_kit.preflight.mounts.registry import INQUIRIES

Check = Callable[[Settings, AccountFacts], Iterable[Finding]]

CHECKS: tuple[Check, ...] = (
    not_queried.not_checked,  # HPK-V0  what could not be asked
    buckets.there,  # HPK-V1  buckets
    buckets.region,
    buckets.zone,
    buckets.something_to_read,
    role.there,  # HPK-V2  the nodes' role
    role.allowed,
    network.there,  # HPK-V3  network
    network.one_vpc,
    network.seen,
    network.private,
    network.way_to_s3,
    network.closed,
    network.names,
    network.room,
    network.zones,
    groups.fabric,
    groups.each_other,
    groups.s3,
    shared.there,  # HPK-V4  EFS, S3 Files
    shared.targets,
    shared.port,
    shared.access_points,
    *(check for its in INQUIRIES.values() for check in its.checks),  # each kind's own, preflight/mounts/
    fsx.there,  # HPK-V5  FSx
    fsx.names,
    fsx.place,
    fsx.fabric,
    fsx.seen,
    fsx.ports,
    limits.quotas,  # HPK-V6  quotas
    limits.not_yet,
    limits.secrets,  # HPK-V7  secrets
)


def preflight(settings: Settings, facts: AccountFacts) -> list[Finding]:
    """Everything that the checks find, each once."""
    return list(dict.fromkeys(finding for check in CHECKS for finding in check(settings, facts)))
