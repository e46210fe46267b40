"""`hyperpod-kit fan-out SRC DST`, inside a job: starts a task on each node, connects the tasks, prints the progress.

Standard library only, Python 3.8: this file is part of the bundle.

Exit codes: 0 every node has all of it · 1 some node has not · 2 usage · 3 the source is not there or cannot be read,
or this is no job.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import secrets
import subprocess
import threading
import time
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, List, Optional, Sequence

from hyperpod_kit.command_line.documents import document
from hyperpod_kit.command_line.program import parse_command
from hyperpod_kit.command_line.specs import ArgumentSpec, CommandSpec, OptionSpec
from hyperpod_kit.errors import JobError, NotInAJob, Unreachable, UsageError
from hyperpod_kit.job.fan_out import listing
from hyperpod_kit.job.step import bare_step
from hyperpod_kit.slurm.environment import JobEnvironment
from hyperpod_kit.untrusted import parse, source_owner, terminal
from hyperpod_kit.untrusted.text import counted

SILENCE = 20.0
"""Seconds without a message after which a task counts as lost."""

_ROWS = 1000
_EVERY = 10.0
"""Seconds between two lines about the progress."""


FAN_OUT = CommandSpec(
    "fan-out",
    "Copy files from shared storage to the local disk of every node of this job. Each byte is read from storage "
    "once and forwarded from node to node; every chunk is verified. If interrupted, repeat the command to continue.",
    "hyperpod_kit.job.fan_out.command:main",
    arguments=(
        ArgumentSpec("source", "SRC", "Directory or file; links to files are followed."),
        ArgumentSpec(
            "target",
            "DST",
            "Directory on each node's local disk; a variable in single quotes ('$SLURMD_NODENAME') is expanded on "
            "each node.",
        ),
    ),
    options=(
        OptionSpec("--dry-run", "Show what would be copied, and copy nothing."),
        OptionSpec("--json", "Print JSON on stdout."),
        OptionSpec("--srun", "", "SRUN", default="srun", is_hidden=True),
        OptionSpec("--part", "", is_hidden=True),
    ),
    examples=("/fsx/models/llama-70b /opt/dlami/nvme/llama-70b",),
)


def main(argv: Sequence[str]) -> int:
    """Run the command and return its exit code. Raises HyperpodKitError."""
    args = parse_command(FAN_OUT, argv, "hyperpod-kit fan-out")
    source = os.path.abspath(args.source)
    if args.part:
        from hyperpod_kit.job.fan_out import task

        return task.main(source, args.target, os.environ)
    try:
        nodes = JobEnvironment.read(os.environ).nodes
    except NotInAJob as err:
        raise NotInAJob(
            "fan-out copies to the nodes of a job, and this shell is not in a job",
            hint="run it inside a batch script or salloc",
        ) from err
    with source_owner.opening_sources_as_owner_of([source]):
        files = listing.listed(source)
    if not files:
        raise UsageError(f"{source} has no files")
    size = sum(file.size for file in files)
    if args.dry_run and args.json:
        terminal.print_json(document("fan-out", {"files": len(files), "bytes": size, "nodes": list(nodes)}))
        return 0
    if args.dry_run:
        terminal.print_stdout(
            f"{counted(len(files), 'file')}, {size / 1e9:.2f} GB, would be copied to {args.target} of "
            f"{counted(len(nodes), 'node')}"
        )
        return 0
    started_at = time.monotonic()
    try:
        process = bare_step.start_kit_program_on_nodes(
            args.srun, "fan-out", nodes, ("fan-out", "--part", source, args.target), os.environ, with_stdin_pipe=True
        )
    except OSError as err:
        raise Unreachable(f"cannot start {args.srun}: {err.strerror}") from err
    return lead_copy_tasks_and_print_result(process, files, nodes, as_json=args.json, started_at=started_at)


def lead_copy_tasks_and_print_result(
    process: subprocess.Popen[bytes],
    files: Sequence[listing.CopiedFile],
    nodes: Sequence[str],
    *,
    as_json: bool,
    started_at: float,
) -> int:
    """Lead the tasks of a started step until all are over, print the outcome and return the exit code.

    Raises JobError where some node does not have all of the files.
    """
    tasks = Tasks(process, nodes, SILENCE)
    try:
        rows = listing.as_json(files)
        for at in range(0, len(rows), _ROWS):
            _send_message_to_tasks(process, op="files", rows=rows[at : at + _ROWS])
        _send_message_to_tasks(process, op="key", key=secrets.token_hex(16), others=list(nodes))
        tasks.until(lambda task: task.places is not None)
        _send_message_to_tasks(process, op="table", rows=[task.places for task in tasks.all])
        size = sum(file.size for file in files)
        while not tasks.until(lambda task: task.done, within=_EVERY):
            least = min((task.bytes_on_node for task in tasks.all if not task.over), default=0)
            done_count = len([task for task in tasks.all if task.done])
            terminal.print_stderr(
                f"{done_count} of {len(nodes)} nodes have all files, each of the others at least {least / 1e9:.2f} of "
                f"{size / 1e9:.2f} GB"
            )
        _send_message_to_tasks(process, op="bye")
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            assert process.stdin is not None
            process.stdin.close()
            process.wait(10.0)
    finally:
        bare_step.end(process)
    return _print_result_or_raise_if_incomplete(tasks, files, as_json, time.monotonic() - started_at)


def _send_message_to_tasks(process: subprocess.Popen[bytes], **message: Any) -> None:
    assert process.stdin is not None
    try:
        process.stdin.write(json.dumps(message).encode() + b"\n")
        process.stdin.flush()
    except OSError:
        pass  # the step has ended: the messages of its tasks up to then are evaluated


def _print_result_or_raise_if_incomplete(
    tasks: Tasks, files: Sequence[listing.CopiedFile], as_json: bool, seconds: float
) -> int:
    size = sum(file.size for file in files)
    read = sum(task.read for task in tasks.all)
    failed = [task for task in tasks.all if not task.done]
    if as_json:
        rows: List[Dict[str, Any]] = [task.to_dict() for task in tasks.all]
        terminal.print_json(
            document(
                "fan-out",
                {"files": len(files), "bytes": size, "bytes_read": read, "seconds": round(seconds, 3), "nodes": rows},
            )
        )
    elif not failed:
        terminal.print_stdout(
            f"{counted(len(files), 'file')}, {size / 1e9:.2f} GB, on {counted(len(tasks.all), 'node')} "
            f"in {seconds:.1f} s; {read / 1e9:.2f} GB were read from storage"
        )
    for task in tasks.all:
        for warning in task.warnings:
            terminal.print_stderr(f"{task.node}: {warning}")
    if failed:
        first = failed[0]
        more = ""
        if len(failed) > 1:
            more = f" and {len(failed) - 1} more"
        reason = first.failure_reason or "the node stopped reporting"
        raise JobError(
            f"not every node has all files: {first.node}: {reason}{more}",
            hint=first.hint or "repeat the command to continue",
        )
    return 0


# The states of the tasks of a fan-out, which the command that started them follows by their messages.

_LONGEST = 1 << 16


@dataclass
class TaskState:
    """The state of one node's task.

    `failure_reason`: why it failed, "" while it has not; `warnings`: problems with other nodes that did not stop it.
    """

    node: str
    last_message_at: float
    places: Optional[List[Any]] = None
    done: bool = False
    is_lost: bool = False
    failure_reason: str = ""
    hint: Optional[str] = None
    read: int = 0
    received: int = 0
    resumed_bytes: int = 0
    warnings: List[str] = field(default_factory=list)

    @property
    def over(self) -> bool:
        """Whether no more progress is expected of the task."""
        return self.done or self.is_lost or bool(self.failure_reason)

    @property
    def bytes_on_node(self) -> int:
        """The number of bytes that the node has."""
        return self.read + self.received + self.resumed_bytes

    def to_dict(self) -> Dict[str, Any]:
        """Return the row of the node for --json."""
        row: Dict[str, Any] = {
            "node": self.node,
            "done": self.done,
            "read": self.read,
            "received": self.received,
            "found": self.resumed_bytes,
        }
        if not self.done:
            row["why"] = self.failure_reason or "lost"
        return row


class Tasks:
    """All tasks of a step, by their numbers. A task without a message for `silence` seconds counts as lost."""

    def __init__(self, process: subprocess.Popen[bytes], nodes: Sequence[str], silence: float) -> None:
        now = time.monotonic()
        self.all = [TaskState(node, now) for node in nodes]
        self._silence = silence
        self._has_first_message = False
        self._lines: queue.Queue[Optional[bytes]] = queue.Queue()
        self._ended = False
        threading.Thread(target=self._read, args=(process,), daemon=True).start()

    def _read(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        for line in iter(lambda: process.stdout.readline(_LONGEST), b""):  # type: ignore[union-attr]
            self._lines.put(line)
        self._lines.put(None)

    def until(self, condition: Callable[[TaskState], bool], within: Optional[float] = None) -> bool:
        """Wait until the condition holds for every task that is not over, and return True.

        Return False where that takes more than `within` seconds; None waits without a limit.
        """
        end: Optional[float] = None
        if within is not None:
            end = time.monotonic() + within
        while not all(task.over or condition(task) for task in self.all):
            if end is not None and time.monotonic() > end:
                return False
            try:
                line = self._lines.get(timeout=0.5)
            except queue.Empty:
                line = b""
            if line is None:
                self._ended = True
            elif line:
                self._apply_message_line(line)
            self._mark_silent_tasks_lost()
        return True

    def _mark_silent_tasks_lost(self) -> None:
        """Mark the tasks that have sent nothing for too long, and all that are not over once the step has ended.

        Silence does not count before the first message of any task: a step may wait for its nodes.
        """
        limit = time.monotonic() - self._silence
        for task in self.all:
            if task.over:
                continue
            is_silent = self._has_first_message and task.last_message_at < limit
            if self._ended or is_silent:
                task.is_lost = True

    def _apply_message_line(self, line: bytes) -> None:
        try:
            message = parse.parse_json_object(line, _LONGEST)
            task = message["task"]
            if type(task) is not int or not 0 <= task < len(self.all):
                return
            counts = [message.get(key, 0) for key in ("read", "received", "found")]
            if any(type(count) is not int or not 0 <= count < 1 << 63 for count in counts):
                return
        except (ValueError, KeyError):
            return  # output of a Prolog or of a library
        now = time.monotonic()
        if not self._has_first_message:
            self._has_first_message = True
            for task_state in self.all:
                task_state.last_message_at = now
        task_state = self.all[task]
        task_state.last_message_at = now
        _apply_message(task_state, message, counts)


def _apply_message(task_state: TaskState, message: Dict[str, Any], counts: Sequence[int]) -> None:
    """Take over what a message says into the state of its task; one of an unknown kind changes nothing."""
    kind = message.get("op")
    if kind == "hello" and isinstance(message.get("places"), list):
        task_state.places = message["places"]
        task_state.node = str(message.get("node") or task_state.node)
    elif kind in ("far", "done"):
        task_state.read, task_state.received, task_state.resumed_bytes = counts
        if kind == "done":
            task_state.done = True
    elif kind == "failed":
        hint = message.get("hint")
        task_state.failure_reason = str(message.get("why"))
        task_state.hint = None
        if isinstance(hint, str):
            task_state.hint = hint
    elif kind == "peer":
        task_state.warnings.append(str(message.get("why")))
