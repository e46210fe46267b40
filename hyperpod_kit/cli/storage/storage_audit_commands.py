"""storage audit: import, jobs, query, verify, retain."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Iterator, Optional

import click

from hyperpod_kit.cli.terminal.lazy import SummaryGroup
from hyperpod_kit.cli.terminal.options import alert_options, json_option
from hyperpod_kit.command_line.tables import Column, TextTable, format_utc
from hyperpod_kit.errors import Absent, RunError, Unreachable, UsageError
from hyperpod_kit.untrusted.text import counted

if TYPE_CHECKING:
    from hyperpod_kit.storage.alerts.outbox import AlertReport
    from hyperpod_kit.storage.audit.ledger import AuditLedger, ChainVerdict
    from hyperpod_kit.storage.audit.query import AuditResult

KINDS = ("node", "cloudtrail", "s3-access-log", "changelog")
_ledger = click.option(
    "--ledger",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("audit.sqlite"),
    show_default=True,
    metavar="FILE",
    help="Ledger file.",
)


@click.group(cls=SummaryGroup)
def audit() -> None:
    """Record and query who did what to which file, from which job."""


@audit.command(name="import")
@click.argument("kind", type=click.Choice(KINDS))
@click.argument("places", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="FILE|DIRECTORY…")
@_ledger
@json_option
def import_(kind: str, places: tuple[Path, ...], ledger: Path, as_json: bool) -> int:
    """Add logs to the ledger; records that it has already are skipped.

    node: output of `hyperpod-kit node audit`. cloudtrail: S3 data events, as CloudTrail delivers them. s3-access-log:
    server access logs of S3. changelog: output of `lfs changelog`. Files may be compressed with gzip.

    \b
    Examples:
      hyperpod-kit storage audit import node node-logs/
      hyperpod-kit storage audit import cloudtrail AWSLogs/111122223333/CloudTrail/
      hyperpod-kit storage audit import s3-access-log access-logs/ --json
    """
    from hyperpod_kit.cli.terminal.output import print_json, print_text, progress_bar
    from hyperpod_kit.storage.audit import sources

    log_files = sources.list_files(places)
    records = gaps = again = 0
    with _open_ledger(ledger, create=True) as kept, progress_bar("files", len(log_files)) as advance:
        for path in log_files:
            added = kept.add_entries(sources.read_entries_marking_damage(kind, path))
            records, gaps, again = records + added.records, gaps + added.gaps, again + added.duplicates
            advance(1)
    if as_json:
        print_json("storage audit import", {"files": len(log_files), "records": records, "gaps": gaps, "again": again})
    else:
        print_text(
            f"{counted(len(log_files), 'file', spec=',')}: {counted(records, 'new record', spec=',')}, "
            f"{counted(gaps, 'new gap', spec=',')}, {counted(again, 'record', spec=',')} already present"
        )
    return 0


@audit.command()
@click.option(
    "--from",
    "given",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Output of sacct, in a file.",
)
@click.option(
    "--since", default="30d", show_default=True, metavar="TIME", help="Period to read from sacct, such as 7d."
)
@_ledger
@json_option
def jobs(given: Optional[Path], since: str, ledger: Path, as_json: bool) -> int:
    """Add Slurm's accounting: which job of which user ran where and when.

    \b
    Examples:
      hyperpod-kit storage audit jobs --since 7d
      hyperpod-kit storage audit jobs --from sacct.txt
    """
    from hyperpod_kit.cli.terminal.output import print_json, print_text
    from hyperpod_kit.run import LocalRunner
    from hyperpod_kit.storage.audit import accounting
    from hyperpod_kit.storage.plan import facts
    from hyperpod_kit.untrusted import files

    if given is not None:
        try:
            text = files.read_file_or_pipe(str(given), 1 << 30).decode("utf-8", "replace")
        except OSError as err:
            raise Absent(f"cannot read {given}: {err.strerror}") from err
    else:
        start = f"now-{int(facts.parse_seconds(since))}seconds"
        argv = [*accounting.COMMAND, "-S", start]
        try:
            text = LocalRunner().run(argv, timeout=300.0, env={"SLURM_TIME_FORMAT": "%s"}).stdout
        except RunError as err:
            raise Unreachable(
                f"cannot query Slurm's accounting: {err}", hint="run sacct to see its error message"
            ) from err
    with _open_ledger(ledger, create=True) as kept:
        count = kept.add_or_replace_jobs(accounting.parse_sacct_jobs_per_node(text.splitlines()))
    if as_json:
        print_json("storage audit jobs", {"jobs": count})
    else:
        print_text(counted(count, "pair of job and node", "pairs of job and node", spec=","))
    return 0


@audit.command()
@click.option("--path", default="", metavar="PATH", help="Only this file, or everything below this directory.")
@click.option("--user", default="", metavar="NAME|UID", help="Only this user.")
@click.option("--job", default="", metavar="ID", help="Only this job.")
@click.option(
    "--op",
    "operation",
    default="",
    metavar="WORD",
    help="Only this operation: read, write, create, delete, rename or list.",
)
@click.option("--since", metavar="TIME", help="Only newer records: 2h, 3d.")
@click.option(
    "--limit", type=click.IntRange(1, 100_000), default=1000, show_default=True, help="Maximum number of rows."
)
@_ledger
@json_option
def query(
    path: str, user: str, job: str, operation: str, since: Optional[str], limit: int, ledger: Path, as_json: bool
) -> int:
    """Show who did what. Gaps in the logs are reported: no row does not prove that nothing happened.

    \b
    Examples:
      hyperpod-kit storage audit query --path /fsx/corpus --op delete --since 3d
      hyperpod-kit storage audit query --user alice --json
      hyperpod-kit storage audit query --job 4711
    """
    import time

    from hyperpod_kit.storage.audit.query import AuditQuery, run_query
    from hyperpod_kit.storage.plan import facts

    earliest = 0.0
    if since:
        earliest = time.time() - facts.parse_seconds(since)
    with _open_ledger(ledger) as kept:
        matches = run_query(kept, AuditQuery(path, user, job, operation, earliest, limit=limit))
    _print_audit_rows_and_gaps(matches, as_json)
    return 0


@audit.command()
@_ledger
@alert_options
@json_option
def verify(ledger: Path, alerts: Optional[Path], alerts_state: Optional[Path], as_json: bool) -> int:
    """Verify that no row was changed or removed. The exit code is 1 when one was, or when an alert about it has not
    been accepted yet.

    Keep the last digest elsewhere: whoever can write the whole file can write a new chain.

    \b
    Examples:
      hyperpod-kit storage audit verify
      hyperpod-kit storage audit verify --json
      hyperpod-kit storage audit verify --alerts /etc/hyperpod-kit/quotas.json
    """
    from hyperpod_kit.cli.terminal.output import print_json, print_text, print_to_stderr

    with _open_ledger(ledger) as kept:
        verdict = kept.verify_chain()
    if alerts is None:
        sent = None
    else:
        sent = _check_and_send_tamper_alert(ledger.absolute(), verdict, alerts, alerts_state)
    if as_json:
        if sent is None:
            report = {}
        else:
            report = {"alerts": {**sent.to_json(), "failed": sent.failed}}
        print_json("storage audit verify", {**verdict._asdict(), "ok": verdict.broken is None, **report})
    elif verdict.broken is None:
        print_text(
            f"{counted(verdict.rows, 'row is', 'rows are', spec=',')} intact; "
            f"{counted(verdict.removed, 'older row was', 'older rows were', spec=',')} removed by `retain`; "
            f"last digest {verdict.last}"
        )
    else:
        print_to_stderr(
            f"row {verdict.broken} does not follow from the previous row: rows were changed or removed there"
        )
    waits = sent is not None and bool(sent.waiting or sent.failed)
    if verdict.broken is None and not waits:
        return 0
    return 1


def _check_and_send_tamper_alert(
    ledger: Path, verdict: ChainVerdict, alerts_config: Path, outbox_path: Optional[Path]
) -> AlertReport:
    from hyperpod_kit.cli.terminal import alerts_show
    from hyperpod_kit.storage.alerts.alert import Alert

    alert = None
    if verdict.broken is not None:
        alert = Alert(
            str(ledger),
            f"the audit ledger {ledger.name} was changed",
            f"Row {verdict.broken} of {ledger} does not follow from the previous row: rows were changed or removed "
            f"there. Compare it with a copy of its last digest: hyperpod-kit storage audit verify --ledger {ledger}",
        )
    return alerts_show.check_send_and_print_alerts(
        alerts_config, outbox_path, "audit", [str(ledger)], lambda key, stood: alert
    )


@audit.command()
@click.option("--older-than", required=True, metavar="TIME", help="Remove records older than this: 90d.")
@click.option("--dry-run", is_flag=True, help="Show how many records would be removed.")
@_ledger
@json_option
def retain(older_than: str, dry_run: bool, ledger: Path, as_json: bool) -> int:
    """Remove old records. The remaining ones can still be verified.

    \b
    Examples:
      hyperpod-kit storage audit retain --older-than 90d --dry-run
      hyperpod-kit storage audit retain --older-than 365d
    """
    import time

    from hyperpod_kit.cli.terminal.output import print_json, print_text
    from hyperpod_kit.storage.plan import facts

    with _open_ledger(ledger) as kept:
        count = kept.delete_older_records_gaps_and_jobs(time.time() - facts.parse_seconds(older_than), dry_run=dry_run)
    if as_json:
        print_json("storage audit retain", {"removed": count, "dry_run": dry_run})
    else:
        verb = "removed"
        if dry_run:
            verb = "would be removed"
        print_text(f"{counted(count, 'record', spec=',')} {verb}")
    return 0


@contextmanager
def _open_ledger(path: Path, create: bool = False) -> Iterator[AuditLedger]:
    import sqlite3

    from hyperpod_kit.storage.audit.ledger import AuditLedger

    try:
        kept = AuditLedger(path, create=create)
        try:
            yield kept
        finally:
            kept.close()
    except sqlite3.Error as err:
        raise UsageError(f"{path}: {err}") from err


def _print_audit_rows_and_gaps(matches: AuditResult, as_json: bool) -> None:

    from hyperpod_kit.cli.terminal.output import print_json, print_table, print_to_stderr, table_cell

    if as_json:
        print_json(
            "storage audit query",
            {"rows": matches.rows, "gaps": [vars(gap) for gap in matches.gaps], "more": matches.more},
        )
        return
    columns = (
        "WHEN",
        "WHO",
        "WHAT",
        Column("PATH", folds=True),
        "JOB",
        Column("FROM", may_miss=True),
        Column("NOTE", folds=True, may_miss=True),
    )
    grid = TextTable(columns)
    for row in matches.rows:
        when = format_utc(row["time"])
        who = row["user"] or (str(row["uid"]) if row["uid"] >= 0 else "unknown")
        job = ""
        if row["job"]:
            job = f"{row['job']} ({row['by']})"
        if row["new_path"]:
            path = f"{row['path']} -> {row['new_path']}"
        else:
            path = row["path"]
        if row["result"]:
            what = f"{row['op']} ({row['result']})"
        else:
            what = row["op"]
        grid.add_row(*map(table_cell, (when, who, what, path, job, row["host"], row["note"])))
    print_table(grid)
    for gap in matches.gaps[:20]:
        print_to_stderr(f"gap: {gap.host + ': ' if gap.host else ''}{gap.why}")
    if len(matches.gaps) > 20:
        print_to_stderr(f"and {counted(len(matches.gaps) - 20, 'more gap', spec=',')}; --json lists them")
    if matches.more:
        print_to_stderr("there are more rows: increase --limit")
