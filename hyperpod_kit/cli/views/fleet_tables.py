"""`fleet` on a terminal: what is wrong, then nodes, jobs and storage as tables, the worst rows first."""

from __future__ import annotations

from collections import Counter
from typing import Optional, Sequence

from hyperpod_kit.cli.terminal.output import table_cell
from hyperpod_kit.command_line.tables import CELL, Cell, Column, TextTable, format_utc
from hyperpod_kit.model.states import MountState
from hyperpod_kit.remote.fleet.fleet_view import (
    OLD_STATE,
    FleetJob,
    FleetNode,
    FleetView,
    Severity,
    format_duration,
)
from hyperpod_kit.remote.reports.groups import format_shortened_hostlist
from hyperpod_kit.untrusted.text import counted, shortened

FEW = 12
"""Nodes that have a row each; of more, those of one group that are alike have one row."""
MOST_ROWS = 40
"""Rows of one table; what is wrong stands first, and --json and --html have all."""
STYLES = {Severity.FAULT: "bold red", Severity.SILENT: "bold magenta", Severity.WARNING: "yellow", Severity.WELL: ""}
STATE_STYLES = {
    MountState.OK: "green",
    MountState.SLOW: "yellow",
    MountState.HUNG: "bold red",
    MountState.STALE: "bold magenta",
    OLD_STATE: "dim",
}
WORDS = {Severity.FAULT: "fault", Severity.SILENT: "silent", Severity.WARNING: "warning", Severity.WELL: "well"}


def build_fleet_tables(view: FleetView, each: bool) -> list[TextTable]:
    """Return the tables, from top to bottom. `each`: a row for every node, however many."""
    tables = [_nodes_table(view, each)]
    if view.jobs:
        tables.append(_jobs_table(view))
    if view.storage:
        tables.append(_storage_table(view))
    return tables


def describe_gaps(view: FleetView) -> list[str]:
    """Return a line for each thing that is not known, and for the steps of jobs how to know them."""
    unknown_steps = describe_unknown_steps(view)
    return [*filter(None, [unknown_steps]), *(f"unknown: {line}" for line in view.not_known)]


def summarize(view: FleetView) -> str:
    """Return `3 nodes: 1 fault, 1 silent; 2 jobs: 1 with a fault`."""
    counts = {severity: sum(node.severity is severity for node in view.nodes) for severity in Severity}
    found = ", ".join(f"{count} {WORDS[severity]}" for severity, count in counts.items() if count)
    sick = sum(job.severity is Severity.FAULT for job in view.jobs)
    wrong = f", {sick} with a fault" if sick else ""
    nodes, jobs = len(view.nodes), len(view.jobs)
    return f"{counted(nodes, 'node')}: {found or 'none'}; {counted(jobs, 'job')}{wrong}"


def _lines_cell(lines: Sequence[str], style: str = "") -> list[Cell]:
    """Return a cell with a line for each text."""
    return [table_cell(line, style) for line in lines]


def _nodes_table(view: FleetView, each: bool) -> TextTable:
    grid = TextTable(
        ("NODE", Column("PROBLEMS", folds=True), "MOUNTS", "DEVICES", "JOB", "AGE"),
        f"nodes of {view.cluster}, {format_utc(view.at)}",
    )
    rows = _rows_of_nodes(view.nodes, each)
    for nodes in rows[:MOST_ROWS]:
        _add_node_row(grid, nodes, view.at)
    if len(rows) > MOST_ROWS:
        rest = sum(len(nodes) for nodes in rows[MOST_ROWS:])
        grid.add_row(table_cell(f"{rest} more", "dim"), table_cell("--json and --html have all", "dim"), "", "", "", "")
    return grid


def _rows_of_nodes(nodes: Sequence[FleetNode], each: bool) -> list[list[FleetNode]]:
    """Return the nodes of each row, in the view's order: one, or all that are alike."""
    if each or len(nodes) <= FEW:
        return [[node] for node in nodes]
    rows: dict[tuple[object, ...], list[FleetNode]] = {}
    for node in nodes:
        states = tuple(sorted((cell.path, cell.state) for cell in node.mounts))
        problems = tuple("".join(char for char in line if not char.isdigit()) for line in node.problems)
        rows.setdefault((node.group, node.severity, states, problems, node.devices), []).append(node)
    return list(rows.values())


def _add_node_row(grid: TextTable, nodes: Sequence[FleetNode], at: float) -> None:
    """Add a row for nodes that are alike."""
    node = nodes[0]
    names = [node.title, node.instance_id]
    problems = list(node.problems) or ["-"]
    if len(nodes) > 1:
        names = [f"{len(nodes)} nodes", node.group]
        problems.append(format_shortened_hostlist(member.title for member in nodes))
    title = [table_cell(names[0], STYLES[node.severity])]
    if names[1] != names[0]:
        title.append(table_cell(names[1], "dim"))
    jobs = list(dict.fromkeys(job for member in nodes for job in member.jobs))
    job_lines = jobs[:3]
    if len(jobs) > 3:
        job_lines.append(f"{len(jobs) - 3} more")
    if node.step is not None and len(jobs) == 1:
        job_lines.append(f"step {node.step}")
    here = "-"
    if node.since:
        here = format_duration(at - node.since)
    devices = "-"
    if node.devices:
        devices = "\n".join(node.devices)
    grid.add_row(
        title,
        _lines_cell(problems, STYLES[node.severity]),
        _mounts_cell(node),
        _lines_cell(devices.split("\n")),
        _lines_cell(job_lines or ["-"]),
        here,
    )


def _mounts_cell(node: FleetNode) -> list[Cell]:
    """Return how many mounts are in which state, those that do not serve first."""
    counts = Counter(cell.state for cell in node.mounts)
    states = sorted(counts, key=lambda state: state == MountState.OK)
    lines = [table_cell(f"{counts[state]} {state}", STATE_STYLES.get(state, "bold red")) for state in states]
    return lines or [Cell("-")]


def _jobs_table(view: FleetView) -> TextTable:
    columns = (
        "JOB",
        Column("PROBLEMS", folds=True),
        "STEP",
        Column("GOODPUT", is_number=True),
        Column("LOST TO", folds=True),
        "CHECKPOINT",
    )
    grid = TextTable(columns, "jobs")
    for job in view.jobs[:MOST_ROWS]:
        title = [
            table_cell(job.id, STYLES[job.severity]),
            table_cell(shortened(f"{job.user} {job.name}".strip(), 18), "dim"),
        ]
        wrong = "; ".join(job.problems) or job.state.lower() or "-"
        grid.add_row(
            title,
            table_cell(wrong, STYLES[job.severity]),
            _lines_cell(describe_step(job).split(", ")),
            table_cell(describe_goodput(job)),
            table_cell(describe_lost(job)),
            _lines_cell(describe_checkpoint(job, view.at).split(", ")),
        )
    if len(view.jobs) > MOST_ROWS:
        grid.add_row(table_cell(f"{len(view.jobs) - MOST_ROWS} more", "dim"), "", "", "", "", "")
    return grid


def describe_step(job: FleetJob) -> str:
    """Return the step, and what one takes."""
    if job.step is None:
        return "unknown"
    if job.step_seconds is None:
        return str(job.step)
    return f"{job.step}, {job.step_seconds:.3g} s each"


def describe_unknown_steps(view: FleetView) -> str:
    """Return how to know the steps of jobs at work that have none, "" where there is no such job.

    Nodes publish the step of the newest durable checkpoint, and not the one that a job is at.
    """
    jobs = [job.id for job in view.jobs if job.step is None and job.has_nodes]
    if not jobs:
        return ""
    some = ", ".join(jobs[:3])
    if len(jobs) > 3:
        some += f" and {len(jobs) - 3} more"
    return f"step of {some} unknown: --root ROOT reads it from the job's checkpoint root, where `job run` records it"


def describe_goodput(job: FleetJob) -> str:
    if job.goodput is None:
        return "?"
    return f"{job.goodput:.1%}"


def describe_lost(job: FleetJob) -> str:
    """Return the three causes that cost most, in hours of a GPU, and how many steps were done twice."""
    causes = sorted(job.lost.items(), key=lambda entry: -entry[1])[:3]
    parts = [f"{cause} {seconds / 3600:.1f} h" for cause, seconds in causes if seconds >= 180]
    if job.lost_steps:
        parts.append(counted(job.lost_steps, "step"))
    return ", ".join(parts) or "-"


def describe_checkpoint(job: FleetJob, at: float) -> str:
    if job.checkpoint_step is None:
        return "?"
    if job.checkpoint_at is None:
        return f"step {job.checkpoint_step}"
    return f"step {job.checkpoint_step}, {format_duration(at - job.checkpoint_at)} ago"


def _storage_table(view: FleetView) -> TextTable:
    grid = TextTable(("PATH", "KIND", Column("NODES", folds=True), "USED", "FULLEST ON"), "storage")
    for row in view.storage[:MOST_ROWS]:
        states = ", ".join(f"{count} {state}" for state, count in row.states.items())
        grid.add_row(
            table_cell(shortened(row.path, CELL), STYLES[row.severity]),
            table_cell(row.kind),
            table_cell(states),
            table_cell(describe_share(row.share, row.used_bytes, row.free_bytes)),
            table_cell(row.fullest if row.share is not None else "-"),
        )
    return grid


def describe_share(share: Optional[float], used: int, free: int) -> str:
    """Return `84 % of 1.2 TiB`."""
    if share is None:
        return "?"
    return f"{int(share * 100)} % of {format_bytes(used + free)}"


def format_bytes(count: int) -> str:
    value, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB", "PiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{value:.3g} {unit}"
