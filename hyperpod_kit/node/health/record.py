"""What the checks of one mount found so far, kept from one run of its timer to the next.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any, Dict, Optional

from hyperpod_kit.model.mounts import MountStatus
from hyperpod_kit.node.context import Node
from hyperpod_kit.node.files import read_json, write_json


@dataclass(frozen=True)
class HealthRecord:
    """/var/lib/hyperpod-kit/health/<mount>.json. failures: checks in a row that were not healthy.

    repairs: repairs tried since the mount was last healthy; repaired_at: Unix seconds of the last one.
    """

    status: Dict[str, Any]
    failures: int = 0
    degraded: bool = False
    repairs: int = 0
    repaired_at: float = 0.0
    last_repair: str = ""

    def after(self, status: MountStatus, give_up_after: int) -> HealthRecord:
        """The record after one more check."""
        if status.healthy:
            return HealthRecord(asdict(status), repaired_at=self.repaired_at, last_repair=self.last_repair)
        failures = self.failures + 1
        return HealthRecord(asdict(status), failures, failures >= give_up_after, self.repairs, self.repaired_at,
                            self.last_repair)


def load(node: Node, name: str) -> HealthRecord:
    """The record of a mount; an empty one when there is none that can be read."""
    raw: Optional[Dict[str, Any]] = read_json(node.paths.health(name))
    known = {field.name for field in fields(HealthRecord)}
    if not isinstance(raw, dict) or "status" not in raw:
        return HealthRecord({})
    return HealthRecord(**{key: value for key, value in raw.items() if key in known})


def save(node: Node, name: str, record: HealthRecord) -> None:
    write_json(node.paths.health(name), asdict(record))
