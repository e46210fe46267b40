"""`fleet --html`: one file that needs nothing else. A colour is never without a word, a column never without a head."""

from __future__ import annotations

import time
from typing import Iterable, Sequence

from hyperpod_kit.cli.views import html_page
from hyperpod_kit.cli.views.fleet_tables import (
    WORDS,
    describe_checkpoint,
    describe_goodput,
    describe_lost,
    describe_share,
    describe_step,
    describe_unknown_steps,
    summarize,
)
from hyperpod_kit.cli.views.html_page import clean_and_escape_html
from hyperpod_kit.remote.fleet.fleet_view import (
    FleetJob,
    FleetNode,
    FleetStorage,
    FleetView,
    MountCell,
    Severity,
    format_duration,
)

STYLE = """<style>
body { max-width: 96rem; }
td { overflow-wrap: break-word; } td:first-child, .n { white-space: nowrap; } small { opacity: .65; }
.wide { overflow-x: auto; } h2 { margin-bottom: 0; }
.s { display: inline-block; border-radius: 3px; padding: 0 .4em; white-space: nowrap; }
.s { color: #fff; background: #cf222e; }
.s.ok, .s.well { background: #1a7f37; } .s.slow, .s.warning { background: #9a6700; } .s.stale { background: #8250df; }
.s.hung { outline: 2px solid #cf222e; outline-offset: 1px; margin: 0 3px; } .s.full { background: #bc4c00; }
.s.old, .s.silent { background: #57606a; }
.bar { display: inline-block; width: 8em; height: .7em; background: #8883; } .bar i { display: block; height: 100%; }
@media (max-width: 60rem) {
  thead { display: none; } table, tbody, tr, td { display: block; }
  tr { padding: .5rem 0; border-bottom: 1px solid #8888; }
  td, td.n { border: 0; position: relative; padding: .1rem 0 .1rem 9rem; min-height: 1.5em; text-align: left; }
  td:empty { display: none; } td::before { content: attr(data-head); position: absolute; left: 0; opacity: .65; }
}
</style>"""
MOST_PATHS = 12
"""Columns of mounts."""
FEW = 64
"""Nodes that are well, up to which they are shown without a click."""


def render_fleet_html(view: FleetView) -> str:
    """Make the whole document."""
    when = time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(view.at))
    unknown = "".join(f"<li>unknown: {clean_and_escape_html(line)}</li>" for line in view.not_known)
    if unknown:
        unknown = f"<ul>{unknown}</ul>"
    body = (
        f"{STYLE}<p>{clean_and_escape_html(summarize(view))}; as of {when}.</p>{unknown}"
        f"<h2>Nodes</h2>{_nodes_html(view)}<h2>Jobs</h2>{_jobs_html(view)}<h2>Storage</h2>{_storage_html(view)}"
    )
    return html_page.render_html_page(f"Fleet {view.cluster}", body)


def _badge(word: str, kind: str) -> str:
    return f'<span class="s {clean_and_escape_html(kind)}">{clean_and_escape_html(word)}</span>'


def _table_html(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table. `rows`: of HTML made here, in which every foreign text is escaped."""
    head = "".join(f"<th>{clean_and_escape_html(text)}</th>" for text in heads)
    body = "".join(f"<tr>{_cells_html(heads, row)}</tr>\n" for row in rows)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>\n{body}</tbody></table></div>'


def _cells_html(heads: Sequence[str], row: Sequence[str]) -> str:
    """Return the cells of a row; each has the head of its column, which a narrow screen shows beside it."""
    pairs = zip(heads, row)
    return "".join(f'<td data-head="{clean_and_escape_html(head)}">{cell}</td>' for head, cell in pairs)


def _nodes_html(view: FleetView) -> str:
    """Return a table of what is not well, and one of all others, which opens by a click where they are many."""
    sick = [node for node in view.nodes if node.severity is not Severity.WELL]
    well = [node for node in view.nodes if node.severity is Severity.WELL]
    html = ""
    if sick:
        html += _nodes_table_html(sick, view.at)
    if well:
        is_open = ""
        if len(well) <= FEW:
            is_open = " open"
        html += f"<details{is_open}><summary>{len(well)} well</summary>{_nodes_table_html(well, view.at)}</details>"
    return html or "<p>none</p>"


def _nodes_table_html(nodes: Sequence[FleetNode], at: float) -> str:
    paths = list(dict.fromkeys(cell.path for node in nodes for cell in node.mounts))[:MOST_PATHS]
    with_problems = any(node.problems for node in nodes)
    wrong = []
    if with_problems:
        wrong = ["problems"]
    heads = ["node", "state", *wrong, *paths, "devices", "job", "last step", "age", "group"]
    return _table_html(heads, (_node_cells(node, paths, at, with_problems) for node in nodes))


def _node_cells(node: FleetNode, paths: Sequence[str], at: float, with_problems: bool) -> list[str]:
    mounts = {cell.path: cell for cell in node.mounts}
    step, here = "-", "-"
    if node.step is not None:
        step = str(node.step)
    if node.since:
        here = format_duration(at - node.since)
    problems = []
    if with_problems:
        problems = ["<br>".join(map(clean_and_escape_html, node.problems))]
    word = WORDS[node.severity]
    devices = "<br>".join(map(clean_and_escape_html, node.devices)) or "-"
    return [
        f"{clean_and_escape_html(node.title)}<br><small>{clean_and_escape_html(node.instance_id)}</small>",
        _badge(word, word),
        *problems,
        *(_mount_html(mounts.get(path)) for path in paths),
        f'<span class="n">{devices}</span>',
        clean_and_escape_html(", ".join(node.jobs) or "-"),
        step,
        clean_and_escape_html(here),
        clean_and_escape_html(node.group),
    ]


def _mount_html(cell: MountCell | None) -> str:
    if cell is None:
        return "-"
    full = ""
    if cell.share is not None:
        full = f" <small>{int(cell.share * 100)} %</small>"
    return f'<span class="n">{_badge(cell.state, cell.state)}{full}</span>'


def _jobs_html(view: FleetView) -> str:
    heads = ["job", "state", "problems", "last step", "goodput", "lost to", "checkpoint", "nodes", "user", "name"]
    if not view.jobs:
        return "<p>no job is known</p>"
    table = _table_html(heads, (_job_cells(job, view.at) for job in view.jobs))
    unknown = describe_unknown_steps(view)
    if unknown:
        table += f"<p>{clean_and_escape_html(unknown)}</p>"
    return table


def _job_cells(job: FleetJob, at: float) -> list[str]:
    problems = "<br>".join(map(clean_and_escape_html, job.problems)) or "-"
    if job.problems:
        word = WORDS[job.severity]
        problems = f"{_badge(word, word)} {problems}"
    facts = [describe_step(job), describe_goodput(job), describe_lost(job), describe_checkpoint(job, at)]
    owner = [str(len(job.nodes) or "-"), job.user, job.name]
    return [
        clean_and_escape_html(job.id),
        clean_and_escape_html(job.state.lower()),
        problems,
        *map(clean_and_escape_html, (*facts, *owner)),
    ]


def _storage_html(view: FleetView) -> str:
    if not view.storage:
        return "<p>no mount is known</p>"
    return _table_html(["path", "kind", "nodes by state", "used", "", "fullest on"], map(_storage_cells, view.storage))


def _storage_cells(row: FleetStorage) -> list[str]:
    states = " ".join(_badge(f"{count} {state}", state) for state, count in row.states.items())
    bar, fullest = "", "-"
    if row.share is not None:
        colour = "#0969da"
        if row.share >= 0.8:
            colour = "#bc4c00"
        bar = f'<span class="bar"><i style="width:{row.share * 100:.0f}%;background:{colour}"></i></span>'
        fullest = clean_and_escape_html(row.fullest)
    used = clean_and_escape_html(describe_share(row.share, row.used_bytes, row.free_bytes))
    return [clean_and_escape_html(row.path), clean_and_escape_html(row.kind), states, used, bar, fullest]
