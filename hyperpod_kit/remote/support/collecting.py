"""Collects what a support archive has in it: from this machine, from AWS, from the nodes, from checkpoint roots."""

from __future__ import annotations

import importlib.metadata
import platform
from dataclasses import asdict
from pathlib import Path
from typing import Callable, Mapping, Optional, Sequence

from hyperpod_kit.cluster.events import list_events
from hyperpod_kit.cluster.nodes import list_nodes
from hyperpod_kit.config import effective
from hyperpod_kit.config.load import check
from hyperpod_kit.config.reading import document
from hyperpod_kit.errors import ConfigError, HyperpodKitError
from hyperpod_kit.remote.job_records import query_root
from hyperpod_kit.remote.live_cluster import LiveCluster
from hyperpod_kit.remote.report_parser import parse_json_after_banner
from hyperpod_kit.remote.support.archive import SupportArchive
from hyperpod_kit.remote.support.node_files import NodeFiles, query_node_files
from hyperpod_kit.remote.target import NodeTarget
from hyperpod_kit.run import Runner

MOST_NODES = 32
"""Nodes that are asked where none is named: the first of each instance group in turn."""
MOST_EVENTS = 200
PACKAGES = ("boto3", "botocore", "click", "jinja2", "paramiko", "PyYAML", "rich", "torch")

ALWAYS_LEFT_OUT: Mapping[str, str] = {
    "environments of processes and jobs": "they have keys and tokens in them",
    "logs of jobs and of scripts of the cluster's own": "what those print is not the kit's to give away",
    "checkpoints, data, secrets on nodes": "never read",
}

Query = Callable[[], None]


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
    archive.add_value("admin/findings.json", [finding.to_dict() for finding in checked.findings], f"validate {path}")
    try:
        values, _ = effective.load_effective_values(path)
        archive.add_value("admin/configuration.json", values, f"config show {path}")
    except ConfigError:
        values = document.read_document(path).values
        archive.add_value("admin/configuration.json", values, f"{path}, as it is written: it has errors")


def add_aws(archive: SupportArchive, cluster: LiveCluster) -> bool:
    """Add what AWS tells of the cluster. Return whether it answered; without events of a cluster that has none it
    did."""
    try:
        archive.add_value("aws/describe-cluster.json", cluster.sagemaker.describe_cluster(cluster.name), "AWS")
        nodes = list_nodes(cluster.sagemaker, cluster.name)
        archive.add_value("aws/nodes.json", [asdict(node) for node in nodes], "AWS")
    except HyperpodKitError as err:
        archive.leave_out("what AWS tells of the cluster and its nodes", err.message)
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
