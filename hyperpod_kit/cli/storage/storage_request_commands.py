"""storage request, of a user, and storage requests, of an admin."""

from __future__ import annotations

import os
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Optional

import click

from hyperpod_kit.cli.terminal.lazy import SummaryGroup
from hyperpod_kit.cli.terminal.options import json_option
from hyperpod_kit.command_line.tables import Column, TextTable
from hyperpod_kit.errors import HyperpodKitError, UsageError
from hyperpod_kit.untrusted.text import counted

if TYPE_CHECKING:
    from hyperpod_kit.storage.quota.request_box import PendingRequest
    from hyperpod_kit.storage.quota.requests import QuotaDecision

SHOWN = 20
"""Decisions of a table, the newest; --json has more."""
_bytes = click.option("--bytes", "hard", metavar="SIZE", default="0B", help="New limit in bytes.")
_files = click.option("--files", metavar="COUNT", default="0", help="New limit on the number of files (Lustre).")
_root_argument = click.argument("root", metavar="PLACE", type=click.Path(resolve_path=True, file_okay=False))
_dry = click.option("--dry-run", is_flag=True, help="Show what would be done, and change nothing.")


@click.command()
@click.argument("directory", type=click.Path(resolve_path=True))
@_bytes
@_files
@click.option("--why", "reason", default="", metavar="TEXT", help="Reason, for the admin.")
@_dry
@json_option
def request(directory: str, hard: str, files: str, reason: str, dry_run: bool, as_json: bool) -> int:
    """Request another limit for DIRECTORY, which belongs to you or your group.

    The request is a file beside the directories that have limits, so it can be written when your directory is full. An
    admin sees and answers it with `hyperpod-kit storage requests`, whose list shows the answer too. Limits that you do
    not name stay as they are. Remove the file to withdraw the request.

    \b
    Examples:
      hyperpod-kit storage request /fsx/alice --bytes 20TiB --why "two more runs until March"
    """
    import time

    from hyperpod_kit.cli.terminal.output import print_json, print_text
    from hyperpod_kit.storage.plan import facts
    from hyperpod_kit.storage.quota import request_box, requests

    sizes = int(facts.parse_size(hard)), int(facts.parse_count(files))
    quota_request = requests.QuotaRequest(directory, *sizes, reason, round(time.time(), 3))
    try:
        requests.decode_request(requests.encode_request(quota_request))
    except ValueError as err:
        raise UsageError(
            f"invalid request: {err}", hint="specify --bytes SIZE or --files COUNT, and a short --why"
        ) from err
    with closing(request_box.RequestBox(request_box.nearest_directory_with_box(directory))) as box:
        requests.require_requestable_directory(box.parent, directory, os.geteuid())
        if dry_run:
            filed = None
        else:
            filed = box.add_request(quota_request)
        written = {"dry_run": dry_run, "id": filed and filed.id, "file": filed and os.path.join(box.path, filed.file)}
        if as_json:
            print_json("storage request", {**vars(quota_request), **written})
            return 0
        if filed is None:
            report = f"would file a request in {box.path}"
        else:
            report = f"request {filed.id}: {written['file']}"
        print_text(report)
        print_text(f"to find what can be deleted meanwhile: hyperpod-kit storage usage {directory}")
        print_text(f"to see the answer: hyperpod-kit storage requests list {box.parent} --all")
    return 0


@click.group(cls=SummaryGroup)
def requests() -> None:
    """List, approve and deny users' requests for other limits."""


@requests.command("open")
@_root_argument
@_dry
@json_option
def create_request_box(root: str, dry_run: bool, as_json: bool) -> int:
    """Let users request other limits for directories below PLACE.

    Run as root. The command creates the directory `.hyperpod-kit-requests` (mode 1777), where everybody can add a
    request and nobody can change those of others.

    \b
    Examples:
      hyperpod-kit storage requests open /fsx
    """
    from hyperpod_kit.cli.terminal.output import print_json, print_text
    from hyperpod_kit.storage.quota import request_box

    if dry_run:
        path = os.path.join(root, request_box.NAME)
    else:
        path = request_box.make_request_box(root)
    if as_json:
        print_json("storage requests open", {"box": path, "dry_run": dry_run})
    else:
        verb = "created"
        if dry_run:
            verb = "would create"
        print_text(f"{verb}: {path}")
    return 0


@requests.command("list")
@_root_argument
@click.option("--all", "every", is_flag=True, help="Include requests that were answered.")
@json_option
def list_requests(root: str, every: bool, as_json: bool) -> int:
    """List the requests that wait for an answer. Users see their own requests, and every answer.

    The exit code is 1 when the directory has a file that is not a request.

    \b
    Examples:
      hyperpod-kit storage requests list /fsx
      hyperpod-kit storage requests list /fsx --all --json
    """
    from hyperpod_kit.cli.terminal.output import print_json, print_to_stderr
    from hyperpod_kit.storage.quota.request_box import RequestBox

    with closing(RequestBox(root)) as box:
        waiting, refused = box.list_pending_and_refusal_reasons()
        if every:
            decided = box.read_decisions()
        else:
            decided = []
    rows = [_pending_request_row_with_usage(pending, root) for pending in waiting]
    if as_json:
        print_json(
            "storage requests list",
            {"waiting": rows, "decided": [decision.to_json() for decision in decided], "refused": refused},
        )
    else:
        _print_requests(rows, decided)
    for line in refused:
        print_to_stderr(f"not accepted: {line}")
    if refused:
        return 1
    return 0


@requests.command("approve")
@_root_argument
@click.argument("request_id", metavar="ID")
@_bytes
@_files
@_dry
@json_option
def approve_request(root: str, request_id: str, hard: str, files: str, dry_run: bool, as_json: bool) -> int:
    """Approve a request: set the requested limits, or those of --bytes and --files, and record the decision.

    Run as root where the file system is mounted. The limits are set as by `storage quota set`; limits that the request
    does not name are kept. The user must own the directory or be in the group that shares it. An ID stands for one
    text: if the user changes the request after you have read it, it has another ID.

    \b
    Examples:
      hyperpod-kit storage requests approve /fsx 8d6f1c6e3c1b4f4e9f3a8f4f0f0b4f6d --dry-run
      hyperpod-kit storage requests approve /fsx 8d6f1c6e3c1b4f4e9f3a8f4f0f0b4f6d --bytes 12TiB
    """
    from hyperpod_kit.cli.terminal.output import print_json, print_text
    from hyperpod_kit.run import LocalRunner
    from hyperpod_kit.storage.plan import facts
    from hyperpod_kit.storage.quota import decision as quota_decision
    from hyperpod_kit.storage.quota.request_box import RequestBox

    sizes = {"hard_bytes": int(facts.parse_size(hard)), "hard_files": int(facts.parse_count(files))}
    with closing(RequestBox(root)) as box:
        decision, commands = quota_decision.approve_and_set_limits(
            box, request_id, LocalRunner(), **sizes, dry_run=dry_run
        )
    if as_json:
        print_json("storage requests approve", {**decision.to_json(), "dry_run": dry_run, "commands": commands})
        return 0
    prefix, tense = "ran: ", ""
    if dry_run:
        prefix, tense = "would run: ", "would be "
    for argv in commands:
        print_text(prefix + " ".join(argv))
    print_text(f"{request_id}: {tense}approved")
    return 0


@requests.command("deny")
@_root_argument
@click.argument("request_id", metavar="ID")
@click.option("--why", "reason", required=True, metavar="TEXT", help="Reason, for the user and the record.")
@_dry
@json_option
def deny_request(root: str, request_id: str, reason: str, dry_run: bool, as_json: bool) -> int:
    """Deny a request, and record the decision.

    \b
    Examples:
      hyperpod-kit storage requests deny /fsx 8d6f1c6e3c1b4f4e9f3a8f4f0f0b4f6d --why "3 TiB of old checkpoints first"
    """
    from hyperpod_kit.cli.terminal.output import print_json, print_text
    from hyperpod_kit.storage.quota import decision as quota_decision
    from hyperpod_kit.storage.quota.request_box import RequestBox

    with closing(RequestBox(root)) as box:
        decision = quota_decision.record_denial(box, request_id, reason, dry_run=dry_run)
    if as_json:
        print_json("storage requests deny", {**decision.to_json(), "dry_run": dry_run})
    else:
        tense = ""
        if dry_run:
            tense = "would be "
        print_text(f"{request_id}: {tense}denied")
    return 0


def _pending_request_row_with_usage(pending: PendingRequest, root: str) -> dict[str, Any]:
    """Return a pending request as a row, with the directory's present usage; `error`: why it would be
    refused."""
    from hyperpod_kit.run import LocalRunner
    from hyperpod_kit.storage.quota import backends, requests

    error: Optional[str] = None
    now = None
    try:
        handle = requests.open_requestable_directory(root, pending.request.directory, pending.uid)
        try:
            target = backends.QuotaDirectory(pending.request.directory, handle)
            used = backends.choose_backend(target, LocalRunner()).read_usage(target.proc_fd_path)
        finally:
            os.close(handle)
        now = replace(used, directory=pending.request.directory).to_json()
    except (HyperpodKitError, OSError) as err:
        error = str(err)
    who = requests.user_name_or_uid(pending.uid)
    return {"id": pending.id, "uid": pending.uid, "user": who, **vars(pending.request), "now": now, "error": error}


def _print_requests(waiting: list[dict[str, Any]], decided: list[QuotaDecision]) -> None:
    from hyperpod_kit.cli.terminal.output import print_table, table_cell
    from hyperpod_kit.cli.views.storage_usage_show import format_size
    from hyperpod_kit.storage.quota.requests import user_name_or_uid

    def limits(amounts: tuple[int, int]) -> str:
        hard, files = amounts
        parts = []
        if hard:
            parts.append(format_size(hard))
        if files:
            parts.append(counted(files, "file", spec=","))
        return ", ".join(parts) or "no limit"

    grid = TextTable(
        (
            "ID",
            "WHO",
            Column("DIRECTORY", folds=True),
            Column("USED", may_miss=True),
            Column("LIMIT", may_miss=True),
            Column("REQUESTED", folds=True),
            Column("WHY", folds=True, may_miss=True),
            Column("ANSWER", folds=True),
        )
    )
    for row in waiting:
        now, asks = row["now"], limits((row["bytes"], row["files"]))
        usage = ("?", "?")
        if now is not None:
            usage = (format_size(now["bytes"]), limits(_hard_limits(now["limits"])))
        decision_text = "pending"
        if row["error"]:
            decision_text = f"pending; {row['error']}"
        grid.add_row(
            *map(table_cell, (row["id"], row["user"], row["directory"], *usage, asks, row["why"], decision_text))
        )
    for decision in decided[:SHOWN]:
        requested = decision.request
        decision_text, now = f"denied by {decision.by}: {decision.why}", ""
        if decision.approved:
            decision_text, now = f"approved by {decision.by}", limits((decision.bytes, decision.files))
        asks = limits((requested["bytes"], requested["files"]))
        values = (
            decision.id,
            user_name_or_uid(decision.uid),
            requested["directory"],
            "",
            now,
            asks,
            requested["why"],
            decision_text,
        )
        grid.add_row(*map(table_cell, values))
    print_table(grid)


def _hard_limits(limits: dict[str, int]) -> tuple[int, int]:
    return limits["hard_bytes"], limits["hard_files"]
