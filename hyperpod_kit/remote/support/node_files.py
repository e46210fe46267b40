"""What a support archive has of one node: its records, the kit's own logs, versions. One question to each node.

A plain shell script, so that a node with any release of the program answers, and one whose program is damaged too.
"""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass
from typing import Callable, Mapping, NamedTuple, Sequence

from hyperpod_kit.errors import HyperpodKitError
from hyperpod_kit.remote.connect.fan_out import query_all, reason_to_skip
from hyperpod_kit.remote.diagnosis.diagnose import LOG, STATUS
from hyperpod_kit.remote.report_parser import last_line_or_nothing_word
from hyperpod_kit.remote.target import NodeTarget
from hyperpod_kit.run import Runner
from hyperpod_kit.slurm.findings import RECORD
from hyperpod_kit.untrusted.text import clean_one_line

RECORD_BYTES, LOG_BYTES = 64 << 10, 128 << 10
SECONDS = 20
"""For each part of a node's answer."""


class NodePart(NamedTuple):
    """A file of the archive for each node. `command`: of a shell there; `tail`: whether the end counts, else the
    beginning."""

    name: str
    command: str
    most: int = RECORD_BYTES
    tail: bool = False


_VERSIONS = """\
grep PRETTY_NAME /etc/os-release; echo "kernel $(uname -r)"; echo "bundle $(readlink /opt/hyperpod-kit/current)"
python3 --version; PATH=$PATH:/opt/slurm/bin:/usr/sbin:/sbin; sinfo --version; mount-s3 --version
dpkg-query -W 'lustre-client*' amazon-efs-utils mount-s3
cat /proc/driver/nvidia/version; uptime; df -h -x tmpfs -x nfs4 -x lustre -x fuse.mountpoint-s3 /"""

PARTS = (
    NodePart("health.json", "cat /run/hyperpod-kit/health.json"),
    NodePart("devices.json", "cat /run/hyperpod-kit/devices.json"),
    NodePart("slurm-guard.json", f"cat {RECORD}"),
    NodePart("status.json", f"cat {STATUS}"),
    NodePart("mounts.json", "hyperpod-kit node mounts --json"),
    NodePart("marks.txt", "ls -l /run/hyperpod-kit /run/hyperpod-kit/degraded /var/lib/hyperpod-kit"),
    NodePart("versions.txt", _VERSIONS),
    NodePart("provisioning.log", f"cat {LOG}", LOG_BYTES, tail=True),
    NodePart(
        "journal.log",
        "j='journalctl --no-pager --quiet -o short-iso -n 1000 -u hyperpod-kit*'; sudo -n $j 2>/dev/null || $j",
        LOG_BYTES,
        tail=True,
    ),
)
"""No log of a script of the cluster's own, and none of a job: what those print is not the kit's to give away."""


@dataclass(frozen=True)
class PartText:
    """What a node answered for one part. `cut`: there was more."""

    text: str
    cut: bool


@dataclass(frozen=True)
class NodeFiles:
    """What one node answered. `error`: why there is nothing of it, "" where there is."""

    target: NodeTarget
    parts: Mapping[str, PartText]
    error: str = ""


def query_node_files(
    targets: Sequence[NodeTarget],
    connect: Callable[[NodeTarget], Runner],
    *,
    timeout: float,
    progress: Callable[[NodeFiles], None] = lambda files: None,
) -> list[NodeFiles]:
    """Query all targets at once, in their order; one that cannot be queried has an error."""

    def query_one(target: NodeTarget) -> NodeFiles:
        skipped = reason_to_skip(target)
        if skipped:
            return NodeFiles(target, {}, skipped.error)
        mark = f"@{os.urandom(16).hex()}@"
        try:
            done = connect(target).run(["/bin/sh", "-c", make_script(mark)], timeout=timeout, check=False)
            return NodeFiles(target, parse_parts(done.stdout, mark))
        except HyperpodKitError as err:
            return NodeFiles(target, {}, err.message)
        except ValueError:
            return NodeFiles(target, {}, f"its answer cannot be read: {last_line_or_nothing_word(done.stdout)}")
        except Exception as err:  # whatever one node says, the others are told of
            return NodeFiles(target, {}, f"its answer cannot be read: {type(err).__name__}: {clean_one_line(err)}")

    return query_all(list(targets), query_one, progress)


def make_script(mark: str) -> str:
    """Return the script. `mark`: a random word that begins each part, so that no file can pass for another."""
    lines = ["export LC_ALL=C"]
    for part in PARTS:
        limit = f"head -c {part.most + 1}"
        if part.tail:
            limit = f"tail -c {part.most + 1}"
        lines.append(f"echo; echo '{mark} {part.name}'")
        lines.append(f"timeout {SECONDS} /bin/sh -c {shlex.quote(part.command)} 2>&1 | {limit}")
    return "\n".join([*lines, f"echo; echo '{mark} end'"])


def parse_parts(text: str, mark: str) -> dict[str, PartText]:
    """Return the parts of an answer by their names. Raises ValueError for what is no answer of the script."""
    pieces = text.split(f"\n{mark} ")
    names = [piece.partition("\n")[0].strip() for piece in pieces[1:]]
    if not names or names[-1] != "end":
        raise ValueError("no end")
    limits = {part.name: part for part in PARTS}
    parts = {}
    for name, piece in zip(names, pieces[1:]):
        if name in limits:
            parts[name] = _bounded(piece.partition("\n")[2].rstrip("\n"), limits[name])
    return parts


def _bounded(text: str, part: NodePart) -> PartText:
    """Return what is kept of a part: whole lines, since half of a secret could not be recognised."""
    if len(text.encode("utf-8", "replace")) <= part.most:
        return PartText(text + "\n", False)
    if part.tail:
        return PartText(text[-part.most :].partition("\n")[2] + "\n", True)
    return PartText(text[: part.most].rpartition("\n")[0] + "\n", True)
