"""One look at all mounts of a cluster, and looking again and again: what validate-mounts shows of it."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, Optional, Sequence

from hyperpod_kit.cli.options import Cluster
from hyperpod_kit.cli.output import bar, console, data, json_line, out, say
from hyperpod_kit.cli.ssh_options import targets_of
from hyperpod_kit.errors import AwsError, ClusterError, Unreachable, UsageError

if TYPE_CHECKING:
    from hyperpod_kit.aws.sagemaker import SageMaker
    from hyperpod_kit.model.mounts import Mount
    from hyperpod_kit.remote.transport import Transport
    from hyperpod_kit.remote.validate_mounts import NodeReport


@dataclass(frozen=True)
class Looked:
    """What one look found. `at`: Unix seconds at its end; `seconds`: how long it took."""

    reports: Sequence[NodeReport]
    at: float
    seconds: float

    @property
    def healthy(self) -> bool:
        return all(report.healthy for report in self.reports)


@dataclass(frozen=True)
class Shown:
    """How it is shown. `each`: a row for each node, however many; `junit`: a file for JUnit XML, None for none."""

    as_json: bool
    each: bool
    junit: Optional[Path]


def look(chosen: Cluster, sagemaker: SageMaker, transport: Transport, max_age: float) -> Looked:
    """Ask AWS for the nodes and the nodes for their mounts. Raises ClusterError, AwsError, Unreachable, UsageError."""
    from hyperpod_kit.remote.validate_mounts import validate_mounts

    began = time.monotonic()
    targets = targets_of(chosen, sagemaker)
    if not targets:
        raise ClusterError(
            f"cluster {chosen.name} has no nodes", hint=f"hyperpod-kit describe-cluster --cluster {chosen.name}"
        )
    with bar(f"asking {len(targets)} nodes {transport.words}", len(targets)) as advance:
        reports = validate_mounts(targets, transport, expected=_expected(chosen), max_age=max_age, progress=advance)
    return Looked(reports, time.time(), time.monotonic() - began)


def show(chosen: Cluster, looked: Looked, shown: Shown) -> None:
    """The whole look: table or JSON on stdout, what is wrong on stderr, the file where one is asked for."""
    from hyperpod_kit.remote import groups, report

    if shown.junit is not None:
        write_junit(chosen, looked, shown.junit)
    if shown.as_json:
        data(report.to_json(chosen.name, looked.reports, looked.at))
    else:
        screen = console()
        if shown.each or len(looked.reports) <= report.FEW:
            screen.print(report.rows(chosen.name, looked.reports, looked.at, screen.width))
        else:
            screen.print(report.counts(chosen.name, looked.reports))
    for line in groups.problems(looked.reports):
        say(line)
    say(groups.summary(looked.reports))


def watch(
    chosen: Cluster, sagemaker: SageMaker, transport: Transport, max_age: float, seconds: float, shown: Shown
) -> NoReturn:
    """Look every `seconds` seconds until Ctrl-C. A look that is not to be had is said, and the next one is taken.

    Raises what the first look raises.
    """
    from hyperpod_kit.remote.changes import changes
    from hyperpod_kit.remote.groups import summary
    from hyperpod_kit.remote.report import to_json

    last: Optional[Looked] = None
    while True:
        due = time.monotonic() + seconds
        try:
            now = look(chosen, sagemaker, transport, max_age)
        except (AwsError, ClusterError, Unreachable) as err:
            if last is None:
                raise
            say(f"{_clock(time.time())}  could not look: {err.message}")
        else:
            if shown.as_json:
                # A line is a whole look, whoever reads them from a pipe.
                json_line(to_json(chosen.name, now.reports, now.at))
                if shown.junit is not None:
                    write_junit(chosen, now, shown.junit)
            elif last is None:
                show(chosen, now, shown)
            else:
                if shown.junit is not None:
                    write_junit(chosen, now, shown.junit)
                for line in changes(last.reports, now.reports):
                    out(f"{_clock(now.at)}  {line}")
                say(f"{_clock(now.at)}  {summary(now.reports)}")
            last = now
        time.sleep(max(0.0, due - time.monotonic()))


def write_junit(chosen: Cluster, looked: Looked, path: Path) -> None:
    """The file, whole or not at all. Raises UsageError when it cannot be written."""
    from hyperpod_kit.remote.junit import to_xml

    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        fresh.write_text(to_xml(chosen.name, looked.reports, looked.at, looked.seconds), encoding="utf-8")
        fresh.replace(path)
    except OSError as err:
        fresh.unlink(missing_ok=True)
        raise UsageError(f"cannot write {path}: {err.strerror}", hint="--junit FILE") from err


def max_age(chosen: Cluster) -> float:
    """Seconds in which a node sends two reports: one every 300 s where nothing changes, by the next check."""
    interval = chosen.settings.node_config().health.interval if chosen.settings is not None else 30.0
    return 2 * (300.0 + interval)


def _expected(chosen: Cluster) -> dict[str, Sequence[Mount]]:
    """Instance group -> the mounts that its nodes must have; empty when only --cluster named the cluster."""
    if chosen.settings is None:
        return {}
    config = chosen.settings.node_config()
    return {group: config.mounts_for(role, group) for group, role in config.roles.items()}


def _clock(at: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(at))
