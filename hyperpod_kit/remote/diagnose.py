"""Why a node is not what it should be: its own records, what AWS says of it, and what is known of such failures.

A node that cannot be asked has left its log with AWS: HyperPod ships it while the lifecycle script runs.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from typing import Any, Callable, NamedTuple, Sequence

from hyperpod_kit.errors import HyperpodKitError
from hyperpod_kit.remote.causes import Known, recognise
from hyperpod_kit.remote.fan_out import ask_all
from hyperpod_kit.remote.target import Target
from hyperpod_kit.run import Runner

LOG = "/var/log/provision/provisioning.log"
STATUS = "/var/lib/hyperpod-kit/status.json"
TAIL = 60
"""Lines of the log that are looked at."""

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

    log: the last lines of its provisioning log, oldest first. sick: mounts that are not healthy, `name is state: why`.
    lifecycle: how far AWS says that its lifecycle script is, "" when it does not.
    """

    target: Target
    message: str
    unreachable: str = ""
    finished: bool = False
    failures: tuple[Failure, ...] = ()
    sick: tuple[str, ...] = ()
    log: tuple[str, ...] = ()
    known: tuple[Known, ...] = ()
    lifecycle: str = ""

    @property
    def healthy(self) -> bool:
        """Whether nothing speaks against the node."""
        return self.finished and not (self.unreachable or self.failures or self.sick or self.message)

    def to_dict(self) -> dict[str, Any]:
        """JSON form."""
        known = [{**asdict(one.cause), "words": one.words} for one in self.known]
        return {**asdict(self), "known": known, "healthy": self.healthy}


class Told(NamedTuple):
    """What AWS says of a node: its message, "" without one, and how far its lifecycle script is."""

    message: str = ""
    lifecycle: str = ""


Shipped = Callable[[Target], Sequence[str]]
"""The last lines of a node's log as AWS has them; raises HyperpodKitError."""


def diagnose(
    targets: Sequence[tuple[Target, Told]],
    connect: Callable[[Target], Runner],
    *,
    shipped: Shipped = lambda target: [],
    timeout: float = 60.0,
    progress: Callable[[Diagnosis], None] = lambda diagnosis: None,
) -> list[Diagnosis]:
    """Ask each node at once; of those that do not answer, read what they have shipped."""
    told = {target.instance_id: said for target, said in targets}

    def ask(target: Target) -> Diagnosis:
        found = _ask(target, told[target.instance_id].message, connect, timeout)
        if found.unreachable:
            found = _with_shipped(found, shipped)
        return judge(replace(found, lifecycle=told[target.instance_id].lifecycle))

    return ask_all([target for target, _ in targets], ask, progress)


def _with_shipped(found: Diagnosis, shipped: Shipped) -> Diagnosis:
    try:
        log = [line for line in shipped(found.target) if MOUNTS_LINE not in line][-TAIL:]
    except HyperpodKitError as err:
        return replace(found, unreachable=f"{found.unreachable}; nor is its log to be had: {err.message}")
    return replace(found, log=tuple(log), failures=tuple(_failures({}, log)))


def _ask(target: Target, message: str, connect: Callable[[Target], Runner], timeout: float) -> Diagnosis:
    if not target.address:
        return Diagnosis(target, message, unreachable="AWS tells no address of it yet")
    try:
        runner = connect(target)
        log = runner.run(["/bin/sh", "-c", READ_LOG], timeout=timeout, check=False).stdout.splitlines()
        status = runner.run(["cat", STATUS], timeout=timeout, check=False).stdout
        mounts = runner.run(["hyperpod-kit", "node", "mounts", "--json"], timeout=timeout, check=False).stdout
    except HyperpodKitError as err:
        return Diagnosis(target, message, unreachable=err.message)
    record = _object(status)
    return Diagnosis(
        target,
        message,
        finished=bool(record.get("ok")),
        failures=tuple(_failures(record, log)),
        sick=tuple(_sick(_object(mounts))),
        log=tuple(log),
    )


def judge(found: Diagnosis) -> Diagnosis:
    """With the causes that its texts show. The log speaks only where no step does: it holds earlier runs too."""
    texts = [found.message, *(f"{one.error}\n{one.hint}" for one in found.failures), *found.sick]
    if not found.finished and not found.failures:
        texts += found.log
    return replace(found, known=tuple(recognise("\n".join(texts))))


def _failures(record: dict[str, Any], log: Sequence[str]) -> list[Failure]:
    """The failed steps of the last run: from its record, or from the log when it came to no record."""
    steps = record.get("steps") or []
    if not steps:
        lines = [_object(line) for line in log]
        begin = max((n for n, one in enumerate(lines) if one.get("step") == "verify-bundle"), default=0)
        steps = lines[begin:]
    return [
        Failure(str(one.get("step", "")), str(one.get("error", "")), str(one.get("hint", "")))
        for one in steps
        if one.get("status") == "failed"
    ]


def _sick(answer: dict[str, Any]) -> list[str]:
    good = ("ok", "slow")
    return [
        f"{mount.get('name')} is {mount.get('state')}: {mount.get('detail') or mount.get('source') or 'no detail'}"
        for mount in answer.get("mounts") or []
        if mount.get("state") not in good and mount.get("required", True)
    ]


def _object(text: str) -> dict[str, Any]:
    """A JSON object behind any login banner; {} for anything else."""
    begin = text.find("{")
    try:
        value = json.loads(text[begin:]) if begin >= 0 else {}
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
