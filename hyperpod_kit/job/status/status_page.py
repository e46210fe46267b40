"""`job status --html`: one file that needs nothing else, with a picture of steps over time."""

from __future__ import annotations

import html
import time
from typing import List, Optional, Sequence

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

WIDTH, HEIGHT, LEFT_MARGIN, BOTTOM = 960, 320, 64, 40

COLOURS = {**{kind.value: kind.colour for kind in OutcomeKind}, UNFINISHED: "#57606a"}

STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 62rem; padding: 0 1rem; }
table { border-collapse: collapse; width: 100%; font-size: 14px; }
th, td { text-align: left; padding: .3rem .6rem; border-bottom: 1px solid #8884; vertical-align: top; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; }
svg { width: 100%; height: auto; } svg text { fill: currentColor; font: 12px system-ui, sans-serif; }
.key span { display: inline-block; margin-right: 1rem; } .key i { display: inline-block; width: .8em; height: .8em; }
"""


def page(
    title: str,
    attempts: Sequence[JobAttempt],
    sums: Totals,
    now: float,
    more: Sequence[str] = (),
    times: Sequence[JobTime] = (),
) -> str:
    """Return the HTML document.

    `now`: until when an attempt that still runs is drawn, Unix seconds; `more`: further paragraphs; `times`: what the
    time of each job went into.
    """
    rows = "\n".join(_row(attempt, now) for attempt in attempts)
    return f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><style>{STYLE}</style></head>
<body><h1>{html.escape(title)}</h1>
{"".join(f"<p>{html.escape(line)}</p>" for line in (f"As of {_moment(now)}", sentence(sums), *more))}
{_pictures(times, now)}
<h2>Steps over time</h2>
{steps_over_time_svg(attempts, now)}
<p class="key">{_colour_legend(attempts)}</p>
<table><thead><tr><th>attempt</th><th>started</th><th class="n">took</th><th class="n">from step</th>
<th class="n">reached</th><th class="n">lost</th><th>ended as</th><th>then</th></tr></thead>
<tbody>
{rows}
</tbody></table>
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
        parts.append(pictures.waterfall_and_gantt_html(time_of_job))
    return "\n".join(parts)


def steps_over_time_svg(attempts: Sequence[JobAttempt], now: float) -> str:
    """Return a picture of steps over time, "" when no attempt has a step.

    An attempt is a line from the step it resumed to the one it reached, dashed where that is not known.
    """
    ran = [attempt for attempt in attempts if attempt.kind != NONE and attempt.step is not None]
    if not ran:
        return ""
    begin = ran[0].started
    span = max(1e-9, max(_end(attempt, now) for attempt in ran) - begin)
    top = max(1, max(max(attempt.reached or 0, attempt.step or 0) for attempt in ran))

    def x(when: float) -> float:
        return round(LEFT_MARGIN + (when - begin) / span * (WIDTH - LEFT_MARGIN - 16), 1)

    def y(step: int) -> float:
        return round(HEIGHT - BOTTOM - step / top * (HEIGHT - BOTTOM - 16), 1)

    marks: List[str] = []
    for step in sorted({top * part // 4 for part in range(5)}):
        marks.append(
            f'<line x1="{LEFT_MARGIN}" x2="{WIDTH - 16}" y1="{y(step)}" y2="{y(step)}" stroke="#8883"/>'
            f'<text x="{LEFT_MARGIN - 8}" y="{y(step) + 4}" text-anchor="end">{step}</text>'
        )
    for part in range(5):
        when = begin + span * part / 4
        anchor = "middle"
        if part == 4:
            anchor = "end"
        marks.append(
            f'<text x="{x(when)}" y="{HEIGHT - 16}" text-anchor="{anchor}">{describe_duration(when - begin)}</text>'
        )
    for attempt in ran:
        step = attempt.step or 0
        last, dash = step, ' stroke-dasharray="4 4"'
        if attempt.reached is not None:
            last, dash = attempt.reached, ""
        colour = COLOURS.get(attempt.kind, COLOURS[UNFINISHED])
        end = _end(attempt, now)
        marks.append(
            f"<g><title>{html.escape(f'{attempt.name}: {ending(attempt)}')}</title>"
            f'<line x1="{x(attempt.started)}" y1="{y(step)}" x2="{x(end)}" y2="{y(last)}" stroke="{colour}" '
            f'stroke-width="3" stroke-linecap="round"{dash}/>'
            f'<circle cx="{x(end)}" cy="{y(last)}" r="4" fill="{colour}"/></g>'
        )
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="steps over time">{"".join(marks)}'
        f'<text x="{LEFT_MARGIN}" y="12">step</text></svg>'
    )


def _end(attempt: JobAttempt, now: float) -> float:
    if attempt.ended is not None:
        return attempt.ended
    if attempt.kind == UNFINISHED:
        return max(attempt.started, now)
    return attempt.started


def _colour_legend(attempts: Sequence[JobAttempt]) -> str:
    kinds = list(dict.fromkeys(attempt.kind for attempt in attempts if attempt.kind in COLOURS))
    return "".join(f'<span><i style="background:{COLOURS[kind]}"></i> {kind}</span>' for kind in kinds)


def _moment(at: float) -> str:
    """Return a time with its time zone: others read the page elsewhere."""
    return time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(at))


def _row(attempt: JobAttempt, now: float) -> str:
    def cell(value: object, number: bool = False) -> str:
        text = ""
        if value is not None:
            text = html.escape(str(value))
        if number:
            return f'<td class="n">{text}</td>'
        return f"<td>{text}</td>"

    when = _moment(attempt.started)
    duration: Optional[str] = None
    if attempt.seconds is not None:
        duration = describe_duration(attempt.seconds)
    passed = "; ".join(f"passed over {entry.get('attempt')}: {entry.get('why')}" for entry in attempt.rejected)
    return (
        "<tr>"
        + "".join(
            [
                cell(attempt.name),
                cell(when),
                cell(duration, True),
                cell(attempt.step, True),
                cell(reached_step_text(attempt, now), True),
                cell(lost_steps_text(attempt), True),
                cell(ending(attempt)),
                cell("; ".join(text for text in (attempt.hang, attempt.then, passed) if text)),
            ]
        )
        + "</tr>"
    )
