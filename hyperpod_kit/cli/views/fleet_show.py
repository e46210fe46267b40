"""What validate-mounts shows of a look, and of one look after the other."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Iterator, Optional

from hyperpod_kit.cli.terminal.output import print_json, print_json_line, print_table, print_text, print_to_stderr
from hyperpod_kit.remote.reports import groups, junit, report
from hyperpod_kit.remote.reports.changes import describe_changes
from hyperpod_kit.remote.reports.fleet_status import FleetError, FleetStatus


@dataclass(frozen=True)
class Display:
    """How a look is shown. `each`: a row for each node, however many; `junit`, `page`: a file for JUnit XML, one for
    a page to look at, None for none."""

    cluster: str
    as_json: bool
    each: bool
    junit: Optional[Path]
    page: Optional[Path] = None

    def print_and_write_status(self, status: FleetStatus) -> None:
        """Print a status: table or JSON on stdout, problems and summary on stderr; write the files that
        were asked for."""
        self.write_report_files(status)
        if self.as_json:
            print_json("validate-mounts", report.to_json(self.cluster, status.reports, status.at))
        else:
            table = report.mount_counts_table(self.cluster, status.reports)
            if self.each or len(status.reports) <= report.FEW:
                table = report.mount_rows_table(self.cluster, status.reports, status.at)
            print_table(table)
        for line in groups.describe_problems(status.reports):
            print_to_stderr(line)
        print_to_stderr(groups.summarize_mount_health(status.reports))

    def write_report_files(self, status: FleetStatus) -> None:
        """Write the JUnit XML and the HTML page to the files that were asked for. Raises UsageError."""
        if self.junit is not None:
            junit.write_junit_file(self.junit, self.cluster, status.reports, status.at, status.seconds)
        if self.page is not None:
            from hyperpod_kit.cli.views import fleet_page, html_page

            html_page.write_html_page(self.page, fleet_page.render_fleet_page(self.cluster, status))


def print_first_status_then_changes(display: Display, statuses: Iterator[FleetStatus | FleetError]) -> None:
    """Print the first status whole and of each later one what has changed; with --json one line each.

    A poll that failed is reported on stderr.
    """
    last: Optional[FleetStatus] = None
    for now in statuses:
        if not isinstance(now, FleetStatus):
            print_to_stderr(f"{_format_clock_time(time.time())}  could not query the nodes: {now.message}")
            continue
        if display.as_json:
            # A line is a whole look, whoever reads them from a pipe.
            print_json_line("validate-mounts", report.to_json(display.cluster, now.reports, now.at))
            display.write_report_files(now)
        elif last is None:
            display.print_and_write_status(now)
        else:
            display.write_report_files(now)
            for line in describe_changes(last.reports, now.reports):
                print_text(f"{_format_clock_time(now.at)}  {line}")
            print_to_stderr(f"{_format_clock_time(now.at)}  {groups.summarize_mount_health(now.reports)}")
        last = now


def _format_clock_time(at: float) -> str:
    return time.strftime("%H:%M:%SZ", time.gmtime(at))
