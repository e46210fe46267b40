"""Ask every node of a cluster for its mounts, at once, and judge the answers.

A node that does not answer, or does not report a mount that the configuration gives it, is a failure: silence is never
health.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from typing import Any, Callable, Mapping, Optional, Sequence

from hyperpod_kit.errors import HyperpodKitError
from hyperpod_kit.model.mounts import Mount, MountStatus
from hyperpod_kit.remote.fan_out import ask_all, cannot_be_asked
from hyperpod_kit.remote.target import Target
from hyperpod_kit.run import Runner

PROGRAM = "/opt/hyperpod-kit/current/bin/hyperpod-kit"


@dataclass(frozen=True)
class NodeReport:
    """What one node said. `error`: why there is no answer, empty when there is one; `bundle_id`: what it runs."""

    target: Target
    mounts: tuple[MountStatus, ...] = ()
    error: str = ""
    hint: str = ""
    bundle_id: str = ""

    @property
    def healthy(self) -> bool:
        """Whether the node answered and every required mount can be used."""
        return not self.error and all(mount.healthy or not mount.required for mount in self.mounts)

    def to_dict(self) -> dict[str, Any]:
        """JSON form."""
        return {
            **asdict(self.target),
            "healthy": self.healthy,
            "error": self.error,
            "hint": self.hint,
            "bundle_id": self.bundle_id,
            "mounts": [{**asdict(mount), "healthy": mount.healthy} for mount in self.mounts],
        }


def validate_mounts(
    targets: Sequence[Target],
    connect: Callable[[Target], Runner],
    *,
    expected: Mapping[str, Sequence[Mount]],
    timeout: float = 60.0,
    progress: Callable[[NodeReport], None] = lambda report: None,
    clock: Callable[[], float] = time.time,
) -> list[NodeReport]:
    """One report a target, in the order of the targets.

    `expected`: instance group -> mounts that a node of it must report, empty when no configuration is known;
    `timeout`: seconds that a node's own check may take.
    """
    return ask_all(
        targets,
        lambda target: _ask(target, connect, expected.get(target.group, ()), timeout, clock),
        progress,
    )


def _ask(
    target: Target,
    connect: Callable[[Target], Runner],
    expected: Sequence[Mount],
    timeout: float,
    clock: Callable[[], float],
) -> NodeReport:
    silent = cannot_be_asked(target)
    if silent:
        return NodeReport(target, error=silent.error, hint=silent.hint)
    try:
        done = connect(target).run([PROGRAM, "node", "mounts", "--json"], timeout=timeout, check=False)
    except HyperpodKitError as err:
        return NodeReport(target, error=err.message, hint=err.hint or "")
    if done.returncode not in (0, 1):
        return NodeReport(
            target,
            error=_not_installed(done.returncode, done.stderr),
            hint="see /var/log/provision/provisioning.log there",
        )
    answer = _parse(done.stdout)
    if answer is None:
        last = (done.stderr or done.stdout).strip().splitlines()[-1:] or ["nothing"]
        return NodeReport(target, error=f"its answer is not a report: {last[0][:120]}")
    bundle, mounts = answer
    reported = {mount.name for mount in mounts}
    missing = [
        MountStatus(
            mount.name,
            mount.kind,
            mount.path,
            "absent",
            required=mount.required,
            checked_at=clock(),
            detail="the configuration asks for it, the node's bundle does not know it",
        )
        for mount in expected
        if mount.name not in reported
    ]
    return NodeReport(target, (*mounts, *missing), bundle_id=bundle)


def _parse(text: str) -> Optional[tuple[str, list[MountStatus]]]:
    """(bundle id, mounts) of a node's standard output after any login banner; None when it is no report."""
    start = text.find("{")
    if start < 0:
        return None
    try:
        answer = json.loads(text[start:])
        return str(answer.get("bundle_id", "")), [_status(raw) for raw in answer["mounts"]]
    except (AttributeError, KeyError, TypeError, ValueError):
        return None


def _status(raw: Mapping[str, Any]) -> MountStatus:
    """One mount of a report; fields that we do not know are left out, for a node may run a newer bundle."""
    texts = {key: str(raw.get(key, "")) for key in ("source", "detail")}
    return MountStatus(
        str(raw["name"]),
        str(raw["kind"]),
        str(raw["path"]),
        str(raw["state"]),
        latency_ms=float(raw.get("latency_ms", 0)),
        required=bool(raw.get("required", True)),
        checked_at=float(raw.get("checked_at", 0)),
        **texts,
    )


def _not_installed(returncode: int, stderr: str) -> str:
    if returncode in (126, 127):
        return "hyperpod-kit is not installed there: its lifecycle script did not run to the end"
    last = stderr.strip().splitlines()[-1:] or ["no message"]
    return f"the check on the node exited {returncode}: {last[0]}"
