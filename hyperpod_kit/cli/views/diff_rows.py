"""What `diff` found, as rows: pure functions from what was read to a table, an object and an exit code.

State of a row: `same`, `differs` (another bundle), `absent` (none), `damaged` (files are not those of the bundle),
`failed` (the right bundle, but its creation did not succeed), `unknown` (no answer).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Iterator, Mapping, Optional, Sequence

from hyperpod_kit.bundle import manifest
from hyperpod_kit.cli.terminal.output import table_cell
from hyperpod_kit.command_line.tables import Column, TextTable, format_utc
from hyperpod_kit.exit_codes import ExitCode
from hyperpod_kit.untrusted.dataclass_json import dataclass_to_json
from hyperpod_kit.untrusted.text import counted

if TYPE_CHECKING:
    from hyperpod_kit.bundle.compare import BundleDifference
    from hyperpod_kit.bundle.render import Bundle
    from hyperpod_kit.remote.diagnosis.installed_bundles import NodeBundle

STYLES = {"same": "green", "unknown": "yellow"}
SHOWN = 12
"""Files of one difference that people see; --json has all."""


REPLACE = "replace the node, or run the new bundle's entry script on it"


@dataclass(frozen=True)
class DiffRow:
    """One place where a bundle is. `what`: s3, group, node or cluster; `bundle_id`: what is there, "" for none."""

    what: str
    where: str
    bundle_id: str
    state: str
    detail: str = ""
    files: tuple[str, ...] = ()


def bundle_digests(bundle: Bundle) -> dict[str, str]:
    """Place -> hex SHA-256 of every file that SHA256SUMS lists."""
    return manifest.parse_sha256sums(bundle.files[manifest.SUMS])


def is_known_unsupported_format(format: str) -> bool:
    """Whether a bundle is of a format that this release does not support; False where the format is not known."""
    return format not in ("", manifest.FORMAT)


def unanswered_row(what: str, where: str, reason: str) -> DiffRow:
    """Return the row of a place that did not answer."""
    return DiffRow(what, where, "", "unknown", reason)


def s3_row(bundle: Bundle, difference: Optional[BundleDifference]) -> DiffRow:
    """Return the row of the stored bundle.

    `difference`: what an upload would change there, None when nothing is stored.
    """
    if difference is None:
        return DiffRow("s3", bundle.source_s3_uri, "", "absent", "not uploaded: hyperpod-kit upload")
    if not difference:
        return DiffRow("s3", bundle.source_s3_uri, bundle.bundle_id, "same")
    wrong = (
        ("missing", difference.added),
        ("damaged", difference.changed),
        ("not part of this bundle", difference.removed),
    )
    files = tuple(f"{path}: {word}" for word, places in wrong for path in places)
    return DiffRow("s3", bundle.source_s3_uri, bundle.bundle_id, "damaged", _first_and_count(files), files)


def instance_group_row(bundle: Bundle, group: Mapping[str, Any]) -> DiffRow:
    """Return the row of an instance group: which bundle its new nodes would get. `group`: one of
    InstanceGroups of DescribeCluster."""
    uri = (group.get("LifeCycleConfig") or {}).get("SourceS3Uri", "")
    name = str(group["InstanceGroupName"])
    if not uri:
        return DiffRow("group", name, "", "absent", "its nodes run no lifecycle script")
    if uri.rstrip("/") == bundle.source_s3_uri.rstrip("/"):
        return DiffRow("group", name, bundle.bundle_id, "same")
    identity = uri.rstrip("/").rpartition("/")[2]
    same = identity == bundle.bundle_id
    detail = "what new nodes would run"
    if same:
        detail = f"new nodes run {uri}"
    return DiffRow("group", name, identity, "differs", detail)


def node_row(bundle: Bundle, node_bundle: NodeBundle) -> DiffRow:
    """Return the row of a node: which bundle it runs, and whether its files and its creation are right."""
    where = f"{node_bundle.target.instance_id} ({node_bundle.target.group})"
    if node_bundle.error:
        return unanswered_row("node", where, node_bundle.error)
    if not node_bundle.current:
        return DiffRow(
            "node", where, "", "absent", "no bundle is installed: see /var/log/provision/provisioning.log on the node"
        )
    if is_known_unsupported_format(node_bundle.format):
        return DiffRow("node", where, node_bundle.current, "differs", f"runs {node_bundle.format}: {REPLACE}")
    if node_bundle.damaged:
        return DiffRow(
            "node", where, node_bundle.current, "damaged", _first_and_count(node_bundle.damaged), node_bundle.damaged
        )
    if node_bundle.recorded != node_bundle.current:
        last = "no creation has finished"
        if node_bundle.recorded:
            last = f"the last finished creation was of {node_bundle.recorded}"
        return DiffRow("node", where, node_bundle.current, "failed", last)
    if not node_bundle.created_ok:
        return DiffRow("node", where, node_bundle.current, "failed", "its creation failed: see status.json on the node")
    when = f"created {_format_time(node_bundle.finished_at)}"
    state = "differs"
    if node_bundle.current == bundle.bundle_id:
        state = "same"
    return DiffRow("node", where, node_bundle.current, state, when)


def exit_code_for_differing_or_unanswered(rows: Sequence[DiffRow]) -> int:
    """0 all the same, 1 something differs, 3 nothing differs but something is unknown."""
    states = {row.state for row in rows} - {"same"}
    if not states:
        return ExitCode.OK
    if states == {"unknown"}:
        return ExitCode.ABSENT
    return ExitCode.PROBLEM


def to_json(bundle: Bundle, rows: Sequence[DiffRow], changes: Mapping[str, BundleDifference]) -> dict[str, Any]:
    """Return the JSON form of all rows.

    `changes`: other bundle id -> what the configuration's bundle would change in it.
    """
    return {
        "bundle_id": bundle.bundle_id,
        "uri": bundle.source_s3_uri,
        "same": exit_code_for_differing_or_unanswered(rows) == 0,
        "places": [asdict(row) for row in rows],
        "changes": {identity: dataclass_to_json(change) for identity, change in changes.items()},
    }


def build_table(bundle: Bundle, rows: Sequence[DiffRow]) -> TextTable:
    """Build a table with one line for each row."""
    grid = TextTable(
        ("WHERE", "PLACE", "BUNDLE", "STATE", Column("DETAIL", folds=True)),
        f"bundle {bundle.bundle_id} of this configuration",
    )
    for row in rows:
        state = table_cell(row.state, STYLES.get(row.state, "red"))
        grid.add_row(
            table_cell(row.where), table_cell(row.what), table_cell(row.bundle_id or "-"), state, table_cell(row.detail)
        )
    return grid


def change_lines(changes: Mapping[str, BundleDifference]) -> Iterator[str]:
    """Describe for people what lies between each other bundle and this configuration."""
    for identity, change in changes.items():
        yield f"from {identity} to this configuration: {counted(len(change), 'file')}"
        lines = list(change.lines())
        yield from (f"  {line}" for line in lines[:SHOWN])
        if len(lines) > SHOWN:
            yield f"  and {len(lines) - SHOWN} more (--json has all)"


def summary(rows: Sequence[DiffRow]) -> str:
    """Summarise the rows in one sentence."""
    counts = {state: sum(row.state == state for row in rows) for state in dict.fromkeys(row.state for row in rows)}
    if set(counts) == {"same"}:
        return f"the same in all {counted(len(rows), 'place')}"
    return ", ".join(f"{count} {state}" for state, count in counts.items())


def _format_time(seconds: float) -> str:
    """Format Unix seconds in UTC, or as a bare number where a node's clock is out of range."""
    try:
        return format_utc(seconds)
    except (OverflowError, ValueError, OSError):
        return f"at {seconds:g} by the node's clock"


def _first_and_count(files: Sequence[str]) -> str:
    more = ""
    if len(files) > 1:
        more = f" and {len(files) - 1} more"
    return files[0] + more
