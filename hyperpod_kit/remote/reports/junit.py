"""Mount reports as JUnit XML, which CI systems show: a suite a group, a case for each mount of each node."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Sequence
from xml.etree import ElementTree as Xml

from hyperpod_kit.errors import UsageError
from hyperpod_kit.model.mount_status import MountStatus
from hyperpod_kit.remote.reports.node_report import NodeReport
from hyperpod_kit.system import atomic_file
from hyperpod_kit.untrusted.text import replace_unprintable


def to_xml(cluster: str, reports: Sequence[NodeReport], checked_at: float, seconds: float) -> str:
    """Return the JUnit document. A required mount that does not serve is a failure, a node without an answer an
    error.

    `checked_at`: Unix seconds; `seconds`: how long all of it took.
    """
    root = Xml.Element("testsuites", name=f"mounts of cluster {cluster}", time=f"{seconds:.3f}")
    groups: dict[str, list[NodeReport]] = {}
    for report in reports:
        groups.setdefault(report.target.group, []).append(report)
    when = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(checked_at))
    for group, members in sorted(groups.items()):
        suite = Xml.SubElement(root, "testsuite", name=group, timestamp=when, time=f"{seconds:.3f}")
        for report in members:
            _add_node_cases(suite, report)
        _set_counts(suite, suite)
    _set_counts(root, root)
    for element in root.iter():
        # XML has no way to write most control characters.
        element.attrib.update({name: replace_unprintable(value) for name, value in element.attrib.items()})
        if element.text:
            element.text = replace_unprintable(element.text)
    Xml.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + Xml.tostring(root, encoding="unicode") + "\n"


def _add_node_cases(suite: Xml.Element, report: NodeReport) -> None:
    if report.error or not report.mounts:
        case = _add_case(suite, report, "answers", 0.0)
        if report.error:
            error = Xml.SubElement(case, "error", type="no answer", message=report.error)
            error.text = report.hint
    for mount in report.mounts:
        _add_mount_case(suite, report, mount)
    for finding in report.slurm:
        if finding.fault:
            failure = Xml.SubElement(_add_case(suite, report, "Slurm", 0.0), "failure", type=finding.code)
            failure.set("message", finding.detail)
            failure.text = finding.remedy


def _add_mount_case(suite: Xml.Element, report: NodeReport, mount: MountStatus) -> None:
    case = _add_case(suite, report, f"{mount.name} at {mount.path}", mount.latency_ms / 1000)
    detail = ""
    if mount.detail:
        detail = f": {mount.detail}"
    message = f"{mount.name} is {mount.state}" + detail
    if mount.healthy:
        return
    if mount.required:
        Xml.SubElement(case, "failure", type=mount.state, message=message)
    else:
        Xml.SubElement(case, "skipped", message=f"{message} (optional)")


def _add_case(suite: Xml.Element, report: NodeReport, name: str, seconds: float) -> Xml.Element:
    node = report.target
    return Xml.SubElement(
        suite, "testcase", classname=f"{node.group}.{node.instance_id}", name=name, time=f"{max(0.0, seconds):.3f}"
    )


def _set_counts(element: Xml.Element, below: Xml.Element) -> None:
    for attribute, tag in (
        ("tests", "testcase"),
        ("failures", "failure"),
        ("errors", "error"),
        ("skipped", "skipped"),
    ):
        element.set(attribute, str(sum(1 for _ in below.iter(tag))))


def write_junit_file(
    path: Path, cluster: str, reports: Sequence[NodeReport], checked_at: float, seconds: float
) -> None:
    """Write the JUnit document to a file, whole or not at all. Raises UsageError when it cannot be written."""
    try:
        atomic_file.write_atomically(path, to_xml(cluster, reports, checked_at, seconds).encode())
    except OSError as err:
        raise UsageError(f"cannot write {path}: {err.strerror}", hint="--junit FILE") from err
