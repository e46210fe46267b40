"""Collects what a support archive has in it: from this machine, from AWS, from the nodes, from checkpoint roots.

Each node is asked one question, by a plain shell script, so that one with any release of the program answers, and one
whose program is damaged too.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shlex
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Callable, Mapping, NamedTuple, Optional, Sequence

from hyperpod_kit.cluster.events import list_events
from hyperpod_kit.cluster.nodes import list_nodes
from hyperpod_kit.config import effective
from hyperpod_kit.config.load import check
from hyperpod_kit.config.reading import document
from hyperpod_kit.errors import ConfigError, HyperpodKitError
from hyperpod_kit.remote.connect.fan_out import query_all, reason_to_skip
from hyperpod_kit.remote.diagnosis.diagnose import LOG, STATUS
from hyperpod_kit.remote.job_records import query_root
from hyperpod_kit.remote.live_cluster import LiveCluster
from hyperpod_kit.remote.report_parser import last_line_or_nothing_word, parse_json_after_banner
from hyperpod_kit.remote.support.archive import SupportArchive
from hyperpod_kit.remote.target import NodeTarget
from hyperpod_kit.run import Runner
from hyperpod_kit.slurm.findings import RECORD
from hyperpod_kit.untrusted.text import clean_one_line

MOST_NODES = 32
"""Nodes that are asked where none is named: the first of each instance group in turn."""
MOST_EVENTS = 200
PACKAGES = ("boto3", "botocore", "click", "jinja2", "paramiko", "PyYAML", "rich", "torch")

ALWAYS_LEFT_OUT: Mapping[str, str] = {
    "environments of processes and jobs": "they contain keys and tokens",
    "logs of jobs and of scripts of the cluster's own": "their content is not the kit's to share",
    "checkpoints, data, secrets on nodes": "never read",
}

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


def add_versions(archive: SupportArchive, kit_version: str) -> None:
    """Add the versions of this machine's programs."""
    versions = {"hyperpod-kit": kit_version, "python": platform.python_version(), "system": platform.platform()}
    for package in PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = "not installed"
    archive.add_value("admin/versions.json", versions, "this machine")


def add_configuration(archive: SupportArchive, path: Path) -> None:
    """Add the effective configuration, or what can be read of it, and the findings of `validate`."""
    try:
        checked = check(path)
    except (HyperpodKitError, OSError) as err:
        archive.leave_out(f"configuration {path}", str(err))
        return
    archive.add_value("admin/findings.json", [asdict(finding) for finding in checked.findings], f"validate {path}")
    try:
        values, _ = effective.load_effective_values(path)
        archive.add_value("admin/configuration.json", values, f"config show {path}")
    except ConfigError:
        values = document.read_document(path).values
        archive.add_value("admin/configuration.json", values, f"{path}, unchanged: it has errors")


def add_aws(archive: SupportArchive, cluster: LiveCluster) -> bool:
    """Add what AWS tells of the cluster. Return whether it answered; without events of a cluster that has none it
    did."""
    try:
        archive.add_value("aws/describe-cluster.json", cluster.sagemaker.describe_cluster(cluster.name), "AWS")
        nodes = list_nodes(cluster.sagemaker, cluster.name)
        archive.add_value("aws/nodes.json", [asdict(node) for node in nodes], "AWS")
    except HyperpodKitError as err:
        archive.leave_out("what AWS reports about the cluster and its nodes", err.message)
        return False
    try:
        events = list_events(cluster.sagemaker, cluster.name, newest=MOST_EVENTS)
        archive.add_value("aws/events.json", [event.to_dict() for event in events], f"AWS, the newest {MOST_EVENTS}")
    except HyperpodKitError as err:
        archive.leave_out("events", err.message)
    return True


def choose_nodes(targets: Sequence[NodeTarget]) -> list[NodeTarget]:
    """Return MOST_NODES nodes, the first of each instance group in turn."""
    places: dict[str, int] = {}
    turns = []
    for number, target in enumerate(targets):
        turn = places.get(target.group, 0)
        places[target.group] = turn + 1
        turns.append((turn, number))
    chosen = sorted(turns)[:MOST_NODES]
    return [targets[number] for _, number in sorted(chosen, key=lambda entry: entry[1])]


def add_nodes(
    archive: SupportArchive,
    targets: Sequence[NodeTarget],
    connect: Callable[[NodeTarget], Runner],
    *,
    timeout: float,
    progress: Callable[[NodeFiles], None],
) -> list[NodeTarget]:
    """Add what each node answers; return those that are silent."""
    silent = []
    for files in query_node_files(targets, connect, timeout=timeout, progress=progress):
        name = f"{files.target.group}/{files.target.instance_id}"
        if files.error:
            silent.append(files.target)
            archive.leave_out(f"node {name}", files.error)
        for part_name, part in files.parts.items():
            archive_name = f"nodes/{_file_name(files.target.group)}/{_file_name(files.target.instance_id)}/{part_name}"
            source = f"node {name}"
            value = None
            if part_name.endswith(".json"):
                value = _object_or_none(part.text)
            if value is None:
                archive.add_text(archive_name, part.text, source, cut=part.cut)
            else:
                archive.add_value(archive_name, value, source)
    return silent


def add_job_records(archive: SupportArchive, number: int, root: str, on_a_node: Optional[Runner]) -> None:
    """Add what `job status` tells of a checkpoint root: from here, or from a node where it is not to be had here."""
    reasons: list[str] = []
    status = query_root(root, on_a_node, reasons)
    if status is None:
        archive.leave_out(f"jobs on {root}", "; ".join(reasons))
    else:
        archive.add_value(f"jobs/root-{number}.json", status, f"job status --root {root}")


def add_what_is_always_left_out(archive: SupportArchive) -> None:
    for what, reason in ALWAYS_LEFT_OUT.items():
        archive.leave_out(what, reason)


def _object_or_none(text: str) -> Optional[object]:
    try:
        return parse_json_after_banner(text)
    except ValueError:
        return None


def _file_name(text: str) -> str:
    """Return a name of AWS's as a file of an archive may have it."""
    return "".join(char if char.isalnum() or char in "-_" else "-" for char in text)[:100] or "-"


# --- The question to each node ----------------------------------------------------------------------------------------


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
