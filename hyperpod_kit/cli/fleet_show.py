"""What validate-mounts shows of a look, and of one look after the other."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Iterator, Optional

from hyperpod_kit.cli.output import console, data, json_line, out, say
from hyperpod_kit.remote import groups, junit, report
from hyperpod_kit.remote.changes import changes
from hyperpod_kit.remote.fleet_status import FleetError, FleetStatus


@dataclass(frozen=True)
class Display:
    """How a look is shown. `each`: a row for each node, however many; `junit`, `page`: a file for JUnit XML, one for
    a page to look at, None for none."""

    cluster: str
    as_json: bool
    each: bool
    junit: Optional[Path]
    page: Optional[Path] = None

    def show(self, status: FleetStatus) -> None:
        """The whole look: table or JSON on stdout, what is wrong on stderr, the file where one is asked for."""
        self.write(status)
        if self.as_json:
            data(report.to_json(self.cluster, status.reports, status.at))
        else:
            screen = console()
            if self.each or len(status.reports) <= report.FEW:
                screen.print(report.rows(self.cluster, status.reports, status.at, screen.width))
            else:
                screen.print(report.counts(self.cluster, status.reports))
        for line in groups.problems(status.reports):
            say(line)
        say(groups.summary(status.reports))

    def write(self, status: FleetStatus) -> None:
        """The files that are asked for. Raises UsageError."""
        if self.junit is not None:
            junit.write(self.junit, self.cluster, status.reports, status.at, status.seconds)
        if self.page is not None:
            from hyperpod_kit.cli import fleet_page, html_page

            html_page.write(self.page, fleet_page.page(self.cluster, status))


def show_each(shown: Display, looks: Iterator[FleetStatus | FleetError]) -> None:
    """The first whole, of the others what has changed; with --json a line each. A look that failed is said."""
    last: Optional[FleetStatus] = None
    for now in looks:
        if not isinstance(now, FleetStatus):
            say(f"{_clock(time.time())}  could not look: {now.message}")
            continue
        if shown.as_json:
            # A line is a whole look, whoever reads them from a pipe.
            json_line(report.to_json(shown.cluster, now.reports, now.at))
            shown.write(now)
        elif last is None:
            shown.show(now)
        else:
            shown.write(now)
            for line in changes(last.reports, now.reports):
                out(f"{_clock(now.at)}  {line}")
            say(f"{_clock(now.at)}  {groups.summary(now.reports)}")
        last = now


def _clock(at: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(at))
