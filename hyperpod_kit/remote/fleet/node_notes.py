"""What a node publishes of itself already: the records of its checks and its file of metrics. One question a node.

A plain shell script that only reads files which everybody on the node may read: it checks nothing anew, needs no rights
and no program of this release. Notes can be kept in files, and read again.
"""

from __future__ import annotations

import os
import shlex
import time
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Callable, Iterator, Mapping, Optional, Sequence

from hyperpod_kit.errors import Absent, HyperpodKitError, Unreachable, UsageError
from hyperpod_kit.remote.connect.fan_out import query_all, reason_to_skip
from hyperpod_kit.remote.diagnosis.diagnose import STATUS
from hyperpod_kit.remote.report_parser import last_line_or_nothing_word
from hyperpod_kit.remote.target import NodeTarget
from hyperpod_kit.run import Runner
from hyperpod_kit.slurm.findings import RECORD
from hyperpod_kit.system import atomic_file
from hyperpod_kit.untrusted import by_descriptor
from hyperpod_kit.untrusted.files import read_small_regular_file
from hyperpod_kit.untrusted.parse import parse_json_object
from hyperpod_kit.untrusted.terminal import json_text_without_nan
from hyperpod_kit.untrusted.text import clean_one_line

FORMAT = "hpk-node-notes/1"
SUFFIX = ".notes.json"
LARGEST = 1 << 20
"""Bytes of one node's notes."""

TEXTFILES = "/var/lib/node_exporter/textfile_collector"
METRICS = "hyperpod_kit.prom"
MOST = 128 << 10
"""Bytes of one file of a node."""


@dataclass(frozen=True)
class NodeNotes:
    """What one node published.

    `launched`: when AWS began it, as AWS says; `read_at`: when it was read, Unix seconds, 0.0 where it was not;
    `files`: name -> text of `clock`, `health`, `devices`, `slurm`, `status`, `metrics`; `error`: why there is nothing.
    """

    target: NodeTarget
    launched: str = ""
    read_at: float = 0.0
    files: Mapping[str, str] = field(default_factory=dict)
    error: str = ""

    def to_json(self) -> dict[str, Any]:
        return {"format": FORMAT, **asdict(self)}

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> NodeNotes:
        """Inverse of `to_json`. Raises KeyError, TypeError, ValueError."""
        if raw["format"] != FORMAT:
            raise ValueError(f"its format is {clean_one_line(raw['format'], 40)}, expected {FORMAT}")
        target = raw["target"]
        texts = {name: str(target[name]) for name in ("instance_id", "group", "role", "address", "status")}
        files = {str(name): str(text) for name, text in raw["files"].items()}
        return cls(NodeTarget(**texts), str(raw["launched"]), float(raw["read_at"]), files, str(raw["error"]))


def make_script(mark: str, textfiles: str) -> str:
    """Return the script. `mark`: a random word that begins each file; `textfiles`: where the metrics lie."""
    metrics = shlex.quote(f"{textfiles}/{METRICS}")
    commands = {
        "clock": "date +%s",
        "health": f"head -c {MOST} /run/hyperpod-kit/health.json",
        "devices": f"head -c {MOST} /run/hyperpod-kit/devices.json",
        "slurm": f"head -c {MOST} {RECORD}",
        "status": f"head -c {MOST} {STATUS}",
        "metrics": f"grep -E '^hyperpod_kit_(job|checkpoint)_' {metrics} | head -c {MOST}",
    }
    parts = [f"echo; echo '{mark} {name}'; {command} 2>/dev/null" for name, command in commands.items()]
    return "\n".join(["export LC_ALL=C", *parts, f"echo; echo '{mark} end'"])


def parse_files(text: str, mark: str) -> dict[str, str]:
    """Return the files of an answer by their names. Raises ValueError for what is no answer of the script."""
    pieces = [piece.partition("\n") for piece in text.split(f"\n{mark} ")[1:]]
    if not pieces or pieces[-1][0].strip() != "end":
        raise ValueError("no end")
    return {name.strip(): content.strip() for name, _, content in pieces[:-1]}


def query_notes(
    targets: Sequence[NodeTarget],
    connect: Callable[[NodeTarget], Runner],
    *,
    launched: Mapping[str, str],
    textfiles: str = TEXTFILES,
    timeout: float,
    progress: Callable[[NodeNotes], None] = lambda notes: None,
) -> list[NodeNotes]:
    """Query all targets at once, in their order. `launched`: instance id -> when AWS began it."""

    def query_one(target: NodeTarget) -> NodeNotes:
        notes = NodeNotes(target, launched.get(target.instance_id, ""))
        skipped = reason_to_skip(target)
        if skipped:
            return replace(notes, error=skipped.error)
        try:
            return replace(notes, files=_query_files(connect(target), textfiles, timeout), read_at=time.time())
        except HyperpodKitError as err:
            return replace(notes, error=err.message)
        except Exception as err:  # whatever one node says, the others are told of
            error = f"its answer cannot be read: {type(err).__name__}: {clean_one_line(err)}"
            return replace(notes, error=error)

    return query_all(list(targets), query_one, progress)


def _query_files(runner: Runner, textfiles: str, timeout: float) -> dict[str, str]:
    """Query one node. Raises Unreachable for what is no answer of the script, RunError, AwsError."""
    mark = f"@{os.urandom(16).hex()}@"
    done = runner.run(["/bin/sh", "-c", make_script(mark, textfiles)], timeout=timeout, check=False)
    try:
        return parse_files(done.stdout, mark)
    except ValueError:
        words = last_line_or_nothing_word(done.stdout, done.stderr)
        raise Unreachable(f"its answer does not match the query: {words}") from None


def save_notes(directory: Path, notes: Sequence[NodeNotes]) -> None:
    """Write a file for each node into a directory, which is made. Raises UsageError."""
    try:
        by_descriptor.make_directories(directory)
        for node_notes in notes:
            name = f"{clean_file_name(node_notes.target.instance_id)}{SUFFIX}"
            atomic_file.write_atomically(directory / name, json_text_without_nan(node_notes.to_json()).encode())
    except OSError as err:
        raise UsageError(f"cannot write notes to {directory}: {err.strerror}", hint="--save DIR") from err


def read_saved_notes(directory: Path) -> Iterator[NodeNotes]:
    """Yield the notes of a directory one after the other, so that all of them are never in memory. Raises Absent."""
    try:
        names = sorted(name for name in os.listdir(directory) if name.endswith(SUFFIX))
    except OSError as err:
        raise Absent(f"cannot read notes in {directory}: {err.strerror}", hint="--notes DIR") from err
    if not names:
        raise Absent(f"{directory} has no notes (*{SUFFIX})", hint="hyperpod-kit fleet --save DIR writes them")
    for name in names:
        yield _read_one(os.path.join(directory, name), name)


def _read_one(path: str, name: str) -> NodeNotes:
    try:
        return NodeNotes.from_json(parse_json_object(read_small_regular_file(path, LARGEST), LARGEST))
    except (HyperpodKitError, OSError, KeyError, TypeError, ValueError, AttributeError) as err:
        unknown = NodeTarget(clean_one_line(name[: -len(SUFFIX)], 60), "", "", "")
        return NodeNotes(unknown, error=f"its notes cannot be read: {clean_one_line(err)}")


def clean_file_name(text: str) -> str:
    """Return a name of AWS's as a file may have it."""
    return "".join(char if char.isalnum() or char in "-_" else "-" for char in text)[:100] or "-"


def object_or_none(text: Optional[str]) -> Optional[dict[str, Any]]:
    """Return the object in a file of a node's; None where there is none."""
    try:
        return parse_json_object(text or "")
    except ValueError:
        return None
