"""`hyperpod-kit node actions`: what was done here with root's rights to what is another's (audit.py), from the journal.

Anybody may write to the journal, with any fields. So what counts is what the journal itself says of the writer: a
Python program of root's, or one in the unit that runs as SlurmUser. The writer's uid alone would not do: a program that
is setuid (sudo) says what its caller wants on a socket that its caller has chosen for its standard error.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import re
import sys
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Iterable, List, Mapping, NamedTuple

from hyperpod_kit import audit
from hyperpod_kit.command_line.documents import document
from hyperpod_kit.errors import NodeError, Unreachable, UsageError
from hyperpod_kit.exit_codes import ExitCode
from hyperpod_kit.model.actions import LONGEST, MOST, Action
from hyperpod_kit.model.units import SWEEP_UNIT
from hyperpod_kit.run import Runner
from hyperpod_kit.untrusted import terminal
from hyperpod_kit.untrusted.parse import parse_json_object
from hyperpod_kit.untrusted.text import clean_one_line, counted

if TYPE_CHECKING:
    import argparse

SECONDS = 40.0

FIELDS = (
    "HYPERPOD_KIT_ACTION",
    "HYPERPOD_KIT_ON",
    "HYPERPOD_KIT_OWNER",
    "HYPERPOD_KIT_WHY",
    "HYPERPOD_KIT_ASKED_BY",
    "MESSAGE_ID",
    "_UID",
    "_EXE",
    "_SYSTEMD_UNIT",
    "_TRANSPORT",
)

NOT_PERMITTED = "not seeing messages from other users"
"""What journalctl says to somebody who may not read the system's journal."""

NO_JOURNAL = "No journal files were found"
"""What journalctl says where there is none."""

_DISK_USAGE = "journalctl --disk-usage"
_AGO = {"s": 1, "m": 60, "h": 3600, "d": 86400}


class ReadActions(NamedTuple):
    """The newest MOST, oldest first. `problem`: why there may be more, "" where the journal was read whole."""

    actions: List[Action]
    problem: str = ""


def read_audited_actions_from_journal(runner: Runner, since: float) -> ReadActions:
    """Read from the journal which actions were recorded since that time. Raises NodeError, Unreachable,
    RunError."""
    matches = [f"MESSAGE_ID={audit.MESSAGE_ID}", "_TRANSPORT=journal"]
    done = runner.run(
        [
            "journalctl",
            "--no-pager",
            "--output=json",
            f"--output-fields={','.join(FIELDS)}",
            f"--since=@{int(since)}",
            f"--lines={MOST}",
            *matches,
            "_UID=0",
            "+",
            *matches,
            f"_SYSTEMD_UNIT={SWEEP_UNIT}",
        ],
        timeout=SECONDS,
        check=False,
    )
    if NOT_PERMITTED in done.stderr:
        raise NodeError("this user may not read the journal", hint="sudo hyperpod-kit node actions")
    if NO_JOURNAL in done.stderr:
        raise Unreachable("this machine has no journal: earlier actions are unknown", hint=_DISK_USAGE)
    problem = ""
    if done.returncode != 0:
        problem = f"journalctl: {clean_one_line(done.stderr) or f'exit code {done.returncode}'}"
        if not done.stdout:
            raise Unreachable(problem, hint=_DISK_USAGE)
    return ReadActions(list(parse_audited_actions(done.stdout.splitlines())), problem)


def parse_audited_actions(lines: Iterable[str]) -> Iterable[Action]:
    """The actions among lines of journalctl's JSON; what is none, or whose writer does not count, is left out."""
    for line in lines:
        try:
            entry = parse_json_object(line, 64 * LONGEST)
            at = int(entry.get("__REALTIME_TIMESTAMP", 0)) / 1e6
        except (ValueError, TypeError):
            continue
        if is_action_entry_written_by_kit(entry):
            yield Action(at, *(_cleaned_text_field_or_empty(entry, name) for name in (*FIELDS[:5], "_SYSTEMD_UNIT")))


def is_action_entry_written_by_kit(entry: Mapping[str, Any]) -> bool:
    """Whether the journal says that a program of ours has written this. Its own fields begin with `_`, which no writer
    can give; a field that was given more than once is a list."""
    if entry.get("MESSAGE_ID") != audit.MESSAGE_ID or entry.get("_TRANSPORT") != "journal":
        return False
    if not isinstance(entry.get("HYPERPOD_KIT_ACTION"), str):
        return False
    program = str(entry.get("_EXE", "")).rpartition("/")[2]
    python = re.fullmatch(r"python3?(\.[0-9]+)?", program) is not None
    return python and (entry.get("_UID") == "0" or entry.get("_SYSTEMD_UNIT") == SWEEP_UNIT)


def _cleaned_text_field_or_empty(entry: Mapping[str, Any], name: str) -> str:
    value = entry.get(name)
    if isinstance(value, str):
        return clean_one_line(value, LONGEST)
    return ""


def parse_since(text: str, now: float) -> float:
    """Unix time of `45s`, `30m`, `2h`, `3d` ago or of `@SECONDS`. Raises UsageError."""
    ago = re.fullmatch(r"([0-9]{1,9})([smhd])", text)
    if ago:
        return max(0.0, now - int(ago[1]) * _AGO[ago[2]])
    exact = re.fullmatch(r"@([0-9]{1,11})", text)
    if exact:
        return float(exact[1])
    raise UsageError(f"--since {clean_one_line(text)}: expected something like 45s, 30m, 2h, 3d or @1800000000")


def print_audited_actions_command(args: argparse.Namespace) -> int:
    """Print the actions since `--since`. Exit code 0, whatever was done; 1 when the journal was read in part;
    raises where it cannot be read (exit code 3)."""

    from hyperpod_kit.node.machine.context import read_config
    from hyperpod_kit.node.machine.paths import NodePaths
    from hyperpod_kit.run import LocalRunner

    since = parse_since(args.since, time.time())
    read_config(NodePaths.from_environment())
    journal = read_audited_actions_from_journal(LocalRunner(), since)
    actions, code = journal.actions, ExitCode.OK
    if journal.problem:
        code = ExitCode.PROBLEM
    if journal.problem:
        print(f"warning: {journal.problem}: the list may be incomplete", file=sys.stderr)
    if args.json:
        rows = [asdict(action) for action in actions]
        fields = {"since": since, "most": MOST, "actions": rows, "problem": journal.problem}
        terminal.print_json(document("node actions", fields))
        return code
    for action in actions:
        print(action.to_line())
    when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(since))
    more = ""
    if len(actions) >= MOST:
        more = f"; only the newest {MOST} are shown"
    print(f"{counted(len(actions), 'action')} since {when}{more}", file=sys.stderr)
    return code
