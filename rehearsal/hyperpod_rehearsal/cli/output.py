"""How `rehearse` shows progress, the fidelity table, the state of the machines and a sandbox run."""

from __future__ import annotations

import shlex
import time
from typing import TYPE_CHECKING, Any, Callable, Iterator, Optional

from hyperpod_kit.cli.terminal.output import make_console, print_table, print_text, table_cell
from hyperpod_kit.command_line.tables import Column, TextTable

if TYPE_CHECKING:
    from rich.status import Status

    from hyperpod_rehearsal.sandbox.sandbox import SandboxResult


class Progress:
    """A context whose value takes the name of each stage: shown with the time so far, on standard error."""

    def __init__(self) -> None:
        self._console = make_console()
        self._status: Optional[Status] = None
        if self._console.is_terminal:
            self._status = self._console.status("")
        self._started = time.monotonic()
        self._last = ""

    def __enter__(self) -> Callable[[str], None]:
        if self._status:
            self._status.start()
        return self._show_stage

    def __exit__(self, *_: object) -> None:
        if self._status:
            self._status.stop()

    def _show_stage(self, text: str) -> None:
        line = f"{time.monotonic() - self._started:5.1f} s  {text}"
        if self._status:
            self._status.update(line)
        elif text != self._last:
            self._console.print(line, soft_wrap=True)
        self._last = text


def print_fidelity_table_and_implemented_calls() -> None:
    """Print what is real, a stand-in, absent, as a table; below it the calls that the endpoint implements."""
    from hyperpod_rehearsal.fidelity import ABSENT, REAL, STAND_IN, TABLE, implemented_calls

    styles = {REAL: "green", STAND_IN: "yellow", ABSENT: "red"}
    table = TextTable(("PART", "IS", Column("IN DETAIL", folds=True)), "what this rehearsal is made of")
    for line in TABLE:
        table.add_row(line.what, table_cell(line.kind, styles[line.kind]), line.detail)
    print_table(table)
    for service, calls in implemented_calls():
        print_text(f"calls of {service}: {', '.join(calls)}")


def print_status(data: dict[str, Any]) -> None:
    """Clusters and machines of a state.json with `machine` added to each node, as tables."""
    print_text(f"rehearsal {data['name']}: {data['endpoint']}, network {data['gateway']}/16")
    for cluster in data["clusters"]:
        table = TextTable(
            ("NODE", "INSTANCE", "HOST", "MACHINE", Column("AGE", may_miss=True), Column("STATUS", folds=True)),
            f"cluster {cluster['name']}: {cluster['status']}",
        )
        for node in sorted(cluster["nodes"], key=lambda node: (node["group"], node["index"])):
            age = "-"
            if node["booted_at"]:
                age = f"{time.time() - node['booted_at']:.0f} s"
            first_line = node["message"].split("\n", 1)[0]
            message_text = ""
            if first_line:
                message_text = f": {first_line}"
            table.add_row(
                *map(
                    table_cell,
                    (
                        node["place"],
                        node["instance_id"],
                        node["host"],
                        node["machine"],
                        age,
                        node["status"] + message_text,
                    ),
                )
            )
        print_table(table)
        if cluster["failure_message"]:
            print_text(cluster["failure_message"], fg="red")
    if not data["clusters"]:
        print_text("no cluster yet: hyperpod-kit create-cluster")


def format_sandbox_result(result: SandboxResult) -> Iterator[str]:
    """A sandbox run for a person: output and recorded commands per role, then what was not exercised."""
    from hyperpod_rehearsal.sandbox.sandbox import is_read_only_command

    for run in result.runs:
        yield f"{result.script} of bundle {result.bundle_id} on a {run.role} node ({run.group}): exit {run.exit_code}"
        yield from (f"  {line}" for line in run.output.splitlines())
        changes = [command for command in run.commands if not is_read_only_command(command)]
        question_count = len(run.commands) - len(changes)
        yield f"  {len(changes)} commands were recorded instead of run (and {question_count} that only ask):"
        yield from (f"    {shlex.join(command)}" for command in changes)
    yield "not exercised:"
    yield from (f"  - {item}" for item in result.not_exercised)
    if result.root:
        yield f"the temporary roots are kept in {result.root}"
