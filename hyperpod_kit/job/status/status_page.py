"""`job status --html`: one file that needs nothing else, with a picture of steps over time."""

from __future__ import annotations

import html
import time
from typing import List, NamedTuple, Optional, Sequence

from hyperpod_kit.job.base import axes
from hyperpod_kit.job.base.durations import describe_duration
from hyperpod_kit.job.decide.outcome_kind import OutcomeKind
from hyperpod_kit.job.goodput import pictures, show
from hyperpod_kit.job.goodput.job_time import JobTime
from hyperpod_kit.job.goodput.time_table import table_of
from hyperpod_kit.job.status.attempt_table import (
    ending,
    lost_steps_text,
    reached_step_text,
    sentence,
)
from hyperpod_kit.job.status.timeline import NONE, UNFINISHED, JobAttempt, Totals
from hyperpod_kit.slurm.hostlist import compress
from hyperpod_kit.untrusted.text import clean_one_line, counted

WIDTH, HEIGHT, LEFT_MARGIN, BOTTOM = 960, 320, 64, 40
LONGEST_NODES = 60
"""Characters of a host list."""

COLOURS = {**{kind.value: kind.colour for kind in OutcomeKind}, UNFINISHED: "#bf3989"}
"""Of the end of an attempt; what was done until then has the colour of steps."""
STEPS, REDONE, IDLE = "#4ac26b", "#cf222e", "#8c959f"
LEAST = 3.0
"""Width and height of what is too short to be seen: a loss that costs little is one all the same."""
LABELLED = 12
"""Attempts with lost steps up to which each has its number beside it."""

STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 62rem; padding: 0 1rem; }
table { border-collapse: collapse; width: 100%; font-size: 14px; }
th, td { text-align: left; padding: .3rem .6rem; border-bottom: 1px solid #8884; vertical-align: top; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; }
.wide { overflow-x: auto; } .wide svg { min-width: 44rem; }
svg { width: 100%; height: auto; } svg text { fill: currentColor; font: 12px system-ui, sans-serif; }
.key span { display: inline-block; margin-right: 1rem; } .key i { display: inline-block; width: .8em; height: .8em; }
@media (max-width: 60rem) {
  thead { display: none; } table, tbody, tr, td { display: block; }
  tr { padding: .5rem 0; border-bottom: 1px solid #8888; }
  td, td.n { border: 0; position: relative; padding: .1rem 0 .1rem 9rem; min-height: 1.5em; text-align: left; }
  td:empty { display: none; } td::before { content: attr(data-head); position: absolute; left: 0; opacity: .65; }
}
"""

HEADS = (
    ("attempt", False),
    ("started", False),
    ("took", True),
    ("nodes", False),
    ("from checkpoint", False),
    ("from step", True),
    ("reached", True),
    ("lost", True),
    ("ended as", False),
    ("then", False),
)
"""Heads of the columns of attempts, and whether a column is of numbers."""


def page(
    title: str,
    attempts: Sequence[JobAttempt],
    sums: Totals,
    now: float,
    more: Sequence[str] = (),
    times: Sequence[JobTime] = (),
    checkpoint: Optional[int] = None,
) -> str:
    """Return the HTML document.

    `now`: until when an attempt that still runs is drawn, Unix seconds; `more`: further paragraphs; `times`: what the
    time of each job went into; `checkpoint`: the step of the newest durable one.
    """
    rows = "\n".join(_row(attempt, now) for attempt in attempts)
    return f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><style>{STYLE}</style></head>
<body><h1>{html.escape(title)}</h1>
{"".join(f"<p>{html.escape(line)}</p>" for line in (f"As of {_moment(now)}", sentence(sums), *more))}
{_pictures(times, now)}
<h2>Steps over time</h2>
<div class="wide">{steps_over_time_svg(attempts, now, checkpoint)}</div>
<p class="key">{_colour_legend(attempts)}</p>
<div class="wide"><table><thead><tr>{"".join(_head(name, number) for name, number in HEADS)}</tr></thead>
<tbody>
{rows}
</tbody></table></div>
<p>Lost: steps that the next attempt did again. Goodput: the part of the GPU time that the job held in which steps were
done that lasted.</p>
</body></html>
"""


def _pictures(times: Sequence[JobTime], now: float) -> str:
    """Return a heading for each job, and pictures of what its time went into."""
    parts = []
    for time_of_job in times:
        headline = ""
        if time_of_job.pieces:
            headline = show.goodput_sentence(time_of_job, table_of(time_of_job.pieces))
        parts.append(f"<h2>{html.escape(time_of_job.job)}: {html.escape(headline)}</h2>")
        if time_of_job.current is not None:
            current = time_of_job.current
            for line in (show.now_at(current, now), show.newest_memory_capture_sentence(current, now)):
                parts.append(f"<p>{html.escape(line)}</p>")
        parts.append(f'<div class="wide">{pictures.waterfall_and_gantt_html(time_of_job)}</div>')
    return "\n".join(parts)


class _Scale(NamedTuple):
    """Places in the picture of a time and of a step. `span`: seconds from `begin`; `top`: the highest step."""

    begin: float
    span: float
    top: int

    def x(self, when: float) -> float:
        return round(LEFT_MARGIN + (when - self.begin) / self.span * (WIDTH - LEFT_MARGIN - 16), 1)

    def y(self, step: int) -> float:
        return round(HEIGHT - BOTTOM - step / self.top * (HEIGHT - BOTTOM - 24), 1)


def steps_over_time_svg(attempts: Sequence[JobAttempt], now: float, checkpoint: Optional[int] = None) -> str:
    """Return a picture of steps over time, "" when no attempt has a step.

    An attempt is a line from the step it resumed to the one it reached, dashed where that is not known; the dot at its
    end has the colour of how it ended. Below it stand the steps that were done again, and between two the time without
    an attempt.
    """
    ran = [attempt for attempt in attempts if attempt.kind != NONE and attempt.step is not None]
    if not ran:
        return ""
    begin = ran[0].started
    span = max(1e-9, max(_end(attempt, now) for attempt in ran) - begin)
    steps = [max(attempt.reached or 0, attempt.step or 0) for attempt in ran]
    scale = _Scale(begin, span, max(1, checkpoint or 0, *steps))
    marks = _axis_marks(scale)
    marks += [_idle_mark(scale, before, after, now) for before, after in zip(ran, ran[1:])]
    if checkpoint is not None:
        y = scale.y(checkpoint)
        marks.append(
            f'<line x1="{LEFT_MARGIN}" x2="{WIDTH - 16}" y1="{y}" y2="{y}" stroke="#0969da" stroke-dasharray="2 4"/>'
            f'<text x="{WIDTH - 16}" y="{y - 5}" text-anchor="end">newest checkpoint: step {checkpoint}</text>'
        )
    has_labels = sum(1 for attempt in ran if attempt.lost) <= LABELLED
    marks += [_attempt_mark(scale, attempt, now, has_labels) for attempt in ran]
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="steps over time">{"".join(marks)}'
        f'<text x="{LEFT_MARGIN}" y="12">step</text></svg>'
    )


def _axis_marks(scale: _Scale) -> List[str]:
    marks = []
    for step in axes.number_ticks(scale.top):
        y = scale.y(step)
        marks.append(
            f'<line x1="{LEFT_MARGIN}" x2="{WIDTH - 16}" y1="{y}" y2="{y}" stroke="#8883"/>'
            f'<text x="{LEFT_MARGIN - 8}" y="{y + 4}" text-anchor="end">{step}</text>'
        )
    for at, label in axes.clock_ticks(scale.begin, scale.begin + scale.span):
        x = scale.x(at)
        marks.append(
            f'<line x1="{x}" x2="{x}" y1="{HEIGHT - BOTTOM}" y2="{HEIGHT - BOTTOM + 5}" stroke="#888"/>'
            f'<text x="{x}" y="{HEIGHT - 16}" text-anchor="{axes.anchor(x, WIDTH)}">{label}</text>'
        )
    return marks


def _idle_mark(scale: _Scale, before: JobAttempt, after: JobAttempt, now: float) -> str:
    """Return the time between two attempts, as wide as can be seen; "" where there is none."""
    end = _end(before, now)
    if before.ended is None or after.started <= end:
        return ""
    x = scale.x(end)
    width = max(LEAST, scale.x(after.started) - x)
    return (
        f'<rect x="{x}" y="24" width="{width:.1f}" height="{HEIGHT - BOTTOM - 24}" fill="{IDLE}" fill-opacity="0.4">'
        f"<title>no attempt: {describe_duration(after.started - end)}</title></rect>"
    )


def _attempt_mark(scale: _Scale, attempt: JobAttempt, now: float, has_label: bool) -> str:
    step = attempt.step or 0
    last, dash = step, ' stroke-dasharray="4 4"'
    if attempt.reached is not None:
        last, dash = attempt.reached, ""
    end = _end(attempt, now)
    x, y = scale.x(end), scale.y(last)
    tooltip = f"{attempt.name}: {ending(attempt)}; on {_nodes_text(attempt) or 'unknown nodes'}"
    lost = ""
    if attempt.lost:
        height = max(LEAST, scale.y(max(0, last - attempt.lost)) - y)
        lost = (
            f'<rect x="{x - LEAST / 2}" y="{y}" width="{LEAST}" height="{height:.1f}" fill="{REDONE}">'
            f"<title>{counted(attempt.lost, 'step')} done again</title></rect>"
        )
        if has_label:
            lost += f'<text x="{x}" y="{y - 8}" text-anchor="{axes.anchor(x, WIDTH)}">-{attempt.lost}</text>'
    return (
        f"<g><title>{html.escape(tooltip)}</title>"
        f'<line x1="{scale.x(attempt.started)}" y1="{scale.y(step)}" x2="{x}" y2="{y}" stroke="{STEPS}" '
        f'stroke-width="3" stroke-linecap="round"{dash}/>{lost}'
        f'<circle cx="{x}" cy="{y}" r="4" fill="{COLOURS.get(attempt.kind, COLOURS[UNFINISHED])}"/></g>'
    )


def _nodes_text(attempt: JobAttempt) -> str:
    """Return the nodes of an attempt as a host list, with those that were lost."""
    text = clean_one_line(compress(attempt.nodes), LONGEST_NODES)
    if attempt.nodes_lost:
        text += f"; lost {clean_one_line(compress(attempt.nodes_lost), LONGEST_NODES)}"
    return text


def _end(attempt: JobAttempt, now: float) -> float:
    if attempt.ended is not None:
        return attempt.ended
    if attempt.kind == UNFINISHED:
        return max(attempt.started, now)
    return attempt.started


def _colour_legend(attempts: Sequence[JobAttempt]) -> str:
    """Return what the colours mean: of lines, and of the dots at their ends."""
    shown = [("steps", STEPS)]
    if any(attempt.lost for attempt in attempts):
        shown.append(("steps done again", REDONE))
    if any(attempt.gap for attempt in attempts):
        shown.append(("no attempt", IDLE))
    kinds = dict.fromkeys(attempt.kind for attempt in attempts if attempt.kind in COLOURS)
    shown += [(f"ended as {kind}" if kind != UNFINISHED else kind, COLOURS[kind]) for kind in kinds]
    return "".join(f'<span><i style="background:{colour}"></i> {name}</span>' for name, colour in shown)


def _moment(at: float) -> str:
    """Return a time with its time zone: others read the page elsewhere."""
    return time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(at))


def _source_text(attempt: JobAttempt) -> str:
    """Return the checkpoint that an attempt started from, and where its ranks had it."""
    if attempt.source and attempt.tier:
        return f"{attempt.source} ({attempt.tier})"
    return attempt.source or ""


def _head(name: str, is_number: bool) -> str:
    if is_number:
        return f'<th class="n">{name}</th>'
    return f"<th>{name}</th>"


def _row(attempt: JobAttempt, now: float) -> str:
    """Return the row of an attempt; each cell has the head of its column, which a narrow screen shows beside it."""
    duration = ""
    if attempt.seconds is not None:
        duration = describe_duration(attempt.seconds)
    step = ""
    if attempt.step is not None:
        step = str(attempt.step)
    passed = "; ".join(f"passed over {entry.get('attempt')}: {entry.get('why')}" for entry in attempt.rejected)
    values = (
        attempt.name,
        _moment(attempt.started),
        duration,
        _nodes_text(attempt),
        _source_text(attempt),
        step,
        reached_step_text(attempt, now),
        lost_steps_text(attempt),
        ending(attempt),
        "; ".join(text for text in (attempt.hang, attempt.then, passed) if text),
    )
    cells = (_cell(name, is_number, value) for (name, is_number), value in zip(HEADS, values))
    return f"<tr>{''.join(cells)}</tr>"


def _cell(head: str, is_number: bool, text: str) -> str:
    kind = ""
    if is_number:
        kind = ' class="n"'
    return f'<td data-head="{head}"{kind}>{html.escape(text)}</td>'
