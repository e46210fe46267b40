"""Why a node is not what it should be: its own records, what AWS says of it, and what is known of such failures.

A node that cannot be asked has left its log with AWS: HyperPod ships it while the lifecycle script runs.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, Callable, Iterator, NamedTuple, Sequence

from hyperpod_kit.errors import HyperpodKitError
from hyperpod_kit.model.states import SERVES
from hyperpod_kit.remote.connect.fan_out import query_all
from hyperpod_kit.remote.diagnosis.known_issues import RecognisedCause, recognise
from hyperpod_kit.remote.report_parser import parse_json_after_banner, parse_slurm_findings
from hyperpod_kit.remote.reports.node_report import NodeReport
from hyperpod_kit.remote.target import NodeTarget
from hyperpod_kit.run import Runner
from hyperpod_kit.slurm.findings import SlurmFinding
from hyperpod_kit.untrusted.terminal import indent_continuation_lines
from hyperpod_kit.untrusted.text import clean_one_line

LOG = "/var/log/provision/provisioning.log"
STATUS = "/var/lib/hyperpod-kit/status.json"
TAIL = 60
"""Lines of the log that are looked at."""

LONGEST_LINE = 4096
"""Characters of a line of it."""

MOST_STEPS = 200
"""Steps and mounts of one node that are looked at; a node has some tens."""

MOUNTS_LINE = '"step": "mounts"'
READ_LOG = f"grep -v '{MOUNTS_LINE}' {LOG} | tail -n {TAIL}"
"""Without what the timer says of the mounts every few minutes: the mounts are asked for themselves."""


@dataclass(frozen=True)
class Failure:
    """A step of the node's creation that failed."""

    step: str
    error: str
    hint: str


@dataclass(frozen=True)
class Diagnosis:
    """One node. `unreachable`: why it could not be asked, "" when it was; `finished`: its creation ran to the end.

    odd: what of its answers could not be understood, and why.
    log: the last lines of its provisioning log, oldest first. sick: mounts that are not healthy, `name is state: why`.
    lifecycle: how far AWS says that its lifecycle script is, "" when it does not. sent_at: when the node has sent what
    is told here, in Unix seconds; 0.0 when it was asked. slurm: what its guard has seen of Slurm.
    """

    target: NodeTarget
    message: str
    unreachable: str = ""
    finished: bool = False
    failures: tuple[Failure, ...] = ()
    sick: tuple[str, ...] = ()
    log: tuple[str, ...] = ()
    known: tuple[RecognisedCause, ...] = ()
    lifecycle: str = ""
    odd: tuple[str, ...] = ()
    sent_at: float = 0.0
    slurm: tuple[SlurmFinding, ...] = ()

    @property
    def healthy(self) -> bool:
        """Whether nothing speaks against the node."""
        if any(finding.fault for finding in self.slurm):
            return False
        return self.finished and not (self.unreachable or self.failures or self.sick or self.message or self.odd)

    def to_dict(self) -> dict[str, Any]:
        """JSON form."""
        causes = [{**asdict(recognised.cause), "words": recognised.evidence} for recognised in self.known]
        return {**asdict(self), "known": causes, "healthy": self.healthy}


class AwsNodeStatus(NamedTuple):
    """What AWS says of a node: its message, "" without one, and how far its lifecycle script is."""

    message: str = ""
    lifecycle: str = ""


Shipped = Callable[[NodeTarget], Sequence[str]]
"""The last lines of a node's log as AWS has them; raises HyperpodKitError."""


def diagnose(
    targets: Sequence[tuple[NodeTarget, AwsNodeStatus]],
    connect: Callable[[NodeTarget], Runner],
    *,
    shipped: Shipped = lambda target: [],
    timeout: float = 60.0,
    progress: Callable[[Diagnosis], None] = lambda diagnosis: None,
) -> list[Diagnosis]:
    """Diagnose all nodes at once; of those that do not answer, read the log that they have shipped."""
    status_by_node = {target.instance_id: status for target, status in targets}

    def diagnose_one(target: NodeTarget) -> Diagnosis:
        status = status_by_node[target.instance_id]
        try:
            diagnosis = _query_node(target, status.message, connect, timeout)
            if diagnosis.unreachable:
                diagnosis = _with_shipped_log(diagnosis, shipped)
            return with_known_causes(replace(diagnosis, lifecycle=status.lifecycle))
        except Exception as err:  # whatever one node says, the others are told of
            odd = f"its answers cannot be read: {type(err).__name__}: {clean_one_line(err)}"
            return Diagnosis(target, status.message, lifecycle=status.lifecycle, odd=(odd,))

    return query_all([target for target, _ in targets], diagnose_one, progress)


def _with_shipped_log(diagnosis: Diagnosis, shipped: Shipped) -> Diagnosis:
    try:
        log = _last_lines_shortened([line for line in shipped(diagnosis.target) if MOUNTS_LINE not in line])
    except HyperpodKitError as err:
        return replace(
            diagnosis, unreachable=f"{diagnosis.unreachable}; its log is not available either: {err.message}"
        )
    return replace(diagnosis, log=tuple(log), failures=tuple(_failed_steps({}, log, [])))


def _query_node(target: NodeTarget, message: str, connect: Callable[[NodeTarget], Runner], timeout: float) -> Diagnosis:
    if not target.address:
        return Diagnosis(target, message, unreachable="AWS reports no address for it yet")
    try:
        runner = connect(target)
        log = runner.run(["/bin/sh", "-c", READ_LOG], timeout=timeout, check=False).stdout.splitlines()
        status = runner.run(["cat", STATUS], timeout=timeout, check=False).stdout
        mounts = runner.run(["hyperpod-kit", "node", "mounts", "--json"], timeout=timeout, check=False).stdout
    except HyperpodKitError as err:
        return Diagnosis(target, message, unreachable=err.message)
    log = _last_lines_shortened(log)
    odd: list[str] = []
    record = _parse_object_or_empty(status, "the record of its creation", odd)
    mount_report = _parse_object_or_empty(mounts, "its report on its mounts", odd)
    failures = _failed_steps(record, log, odd)
    sick = _unhealthy_required_mounts(mount_report, odd)
    return Diagnosis(
        target,
        message,
        finished=record.get("ok") is True,
        failures=tuple(failures),
        sick=tuple(sick),
        log=tuple(log),
        odd=tuple(odd),
        slurm=parse_slurm_findings(mount_report.get("slurm")),
    )


def apply_sent_report(diagnosis: Diagnosis, report: NodeReport) -> Diagnosis:
    """Fill in the diagnosis of a node that could not be queried from the report that it sent.

    The log's end may hold no line of the creation any more; AWS lets only a node run whose creation came to an end.
    """
    sick = [
        f"{mount.name} is {mount.state}: {mount.detail or mount.source or 'no detail'}"
        for mount in report.mounts
        if mount.required and not mount.healthy
    ]
    finished = not diagnosis.failures and diagnosis.target.status == "Running"
    return with_known_causes(
        replace(
            diagnosis, unreachable="", finished=finished, sick=tuple(sick), sent_at=report.said_at, slurm=report.slurm
        )
    )


def _last_lines_shortened(log: Sequence[str]) -> list[str]:
    """Return the last lines, each cut to what can be read: `tail` may be another program by now."""
    return [line[:LONGEST_LINE] for line in log[-TAIL:]]


def with_known_causes(diagnosis: Diagnosis) -> Diagnosis:
    """Add the known causes that the texts show. The log counts only where no step failed: it holds earlier runs
    too."""
    texts = [
        diagnosis.message,
        *(f"{failure.error}\n{failure.hint}" for failure in diagnosis.failures),
        *diagnosis.sick,
    ]
    if not diagnosis.finished and not diagnosis.failures:
        texts += diagnosis.log
    return replace(diagnosis, known=tuple(recognise("\n".join(texts))))


def describe_diagnosis(diagnosis: Diagnosis) -> Iterator[str]:
    """Describe what is wrong with a node, for a person; of a healthy one what its guard says of Slurm, if
    anything."""
    if diagnosis.healthy and not diagnosis.slurm:
        return
    where = f"{diagnosis.target.group} {diagnosis.target.instance_id}"
    yield f"{where}{f' ({diagnosis.target.address})' if diagnosis.target.address else ''}: {diagnosis.target.status}"
    if diagnosis.message:
        yield indent_continuation_lines(f"  AWS reports: {diagnosis.message}")
    if diagnosis.unreachable:
        yield indent_continuation_lines(f"  cannot be reached: {diagnosis.unreachable}")
    if diagnosis.lifecycle:
        yield indent_continuation_lines(f"  lifecycle script: {diagnosis.lifecycle}")
    for failure in diagnosis.failures:
        yield indent_continuation_lines(f"  step {failure.step} failed: {failure.error}")
        if failure.hint:
            yield indent_continuation_lines(f"    do: {failure.hint}")
    if not diagnosis.unreachable and not diagnosis.finished and not diagnosis.failures and not diagnosis.odd:
        yield "  its creation has not ended yet"
    for mount in diagnosis.sick:
        yield f"  mount {mount}"
    for finding in diagnosis.slurm:
        yield f"  Slurm, {finding.code}: {finding.detail}"
        if finding.remedy:
            yield f"    do: {finding.remedy}"
    for odd in diagnosis.odd:
        yield f"  odd: {odd}"
    for recognised in diagnosis.known:
        yield f"  {recognised.cause.code}: {recognised.cause.meaning}"
        yield f"    because: {recognised.evidence}"
        yield f"    do: {recognised.cause.remedy}"


def _failed_steps(record: dict[str, Any], log: Sequence[str], oddities_out: list[str]) -> list[Failure]:
    """Return the failed steps of the last run: from its record, or from the log when there is no record."""
    steps = _objects_under_key(record, "steps", oddities_out)
    if not steps:
        # A line of the log that is no object is a line like another: scripts write there too.
        lines = [_parse_object_or_empty(line, "", []) for line in log]
        begin = max((n for n, entry in enumerate(lines) if entry.get("step") == "verify-bundle"), default=0)
        steps = lines[begin:]
    return [
        Failure(
            clean_one_line(step.get("step", "")),
            _bounded_text(step.get("error", "")),
            _bounded_text(step.get("hint", "")),
        )
        for step in steps
        if step.get("status") == "failed"
    ]


def _bounded_text(value: object) -> str:
    """A text of a node, lines and all, of a length that may be searched and shown."""
    return str(value)[:LONGEST_LINE]


def _unhealthy_required_mounts(report: dict[str, Any], oddities_out: list[str]) -> list[str]:
    serves = tuple(SERVES)  # a node may say anything, also what a set cannot be asked for
    return [
        clean_one_line(
            f"{clean_one_line(mount.get('name'))} is {clean_one_line(mount.get('state'))}: "
            f"{mount.get('detail') or mount.get('source') or 'no detail'}",
            LONGEST_LINE,
        )
        for mount in _objects_under_key(report, "mounts", oddities_out)
        if mount.get("state") not in serves and mount.get("required", True)
    ]


def _objects_under_key(record: dict[str, Any], key: str, oddities_out: list[str]) -> list[dict[str, Any]]:
    """Return the list of objects under `key`; what is no object is left out, and noted in `oddities_out`."""
    value = record.get(key) or []
    if not isinstance(value, list):
        oddities_out.append(f"its {key} are of type {type(value).__name__}, expected a list")
        return []
    good = [entry for entry in value if isinstance(entry, dict)]
    if len(good) < len(value):
        oddities_out.append(f"{len(value) - len(good)} of its {len(value)} {key} are not objects")
    if len(good) > MOST_STEPS:
        oddities_out.append(f"it has {len(good)} {key}; only the last {MOST_STEPS} are evaluated")
    return good[-MOST_STEPS:]


def _parse_object_or_empty(text: str, what: str, oddities_out: list[str]) -> dict[str, Any]:
    """A JSON object behind any login banner; {} for anything else, which is noted in `odd` when it begins like one."""
    if "{" not in text:
        return {}
    try:
        return parse_json_after_banner(text)
    except ValueError as err:
        oddities_out.append(f"{what} cannot be read: {clean_one_line(err)}")
        return {}
