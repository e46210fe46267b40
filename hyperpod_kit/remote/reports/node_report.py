"""One node in the report of a whole cluster: what its own words, held against the configuration, come to."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from hyperpod_kit.model.mount_status import MountStatus
from hyperpod_kit.remote.target import NodeTarget
from hyperpod_kit.slurm.findings import SlurmFinding
from hyperpod_kit.untrusted.dataclass_json import dataclass_to_json


@dataclass(frozen=True)
class NodeReport:
    """What is known of a node that was asked: what it sent, as it was judged, or why there is nothing of it.

    error: why there is no answer, or none that is believed, empty when there is one; bundle_id: what it runs; said_at:
    when, in Unix seconds; 0.0 without an answer; warnings: what is not as it should be although all mounts serve. via:
    how it was asked, a word of --via, "" where that was the caller's choice. slurm: what its guard has seen of Slurm.
    """

    target: NodeTarget
    mounts: tuple[MountStatus, ...] = ()
    error: str = ""
    hint: str = ""
    bundle_id: str = ""
    said_at: float = 0.0
    warnings: tuple[str, ...] = ()
    via: str = ""
    slurm: tuple[SlurmFinding, ...] = ()

    @property
    def healthy(self) -> bool:
        """Whether the node answered, every required mount can be used, and its guard knows of no fault of Slurm's."""
        if self.error or any(finding.fault for finding in self.slurm):
            return False
        return all(mount.healthy or not mount.required for mount in self.mounts)

    def to_dict(self) -> dict[str, Any]:
        """JSON form."""
        return {
            **asdict(self.target),
            "healthy": self.healthy,
            "error": self.error,
            "hint": self.hint,
            "bundle_id": self.bundle_id,
            "said_at": self.said_at,
            "warnings": list(self.warnings),
            "via": self.via,
            "slurm": [dataclass_to_json(finding) for finding in self.slurm],
            "mounts": [_mount_to_dict(mount) for mount in self.mounts],
        }


def _mount_to_dict(mount: MountStatus) -> dict[str, Any]:
    """Return the JSON form of a mount; null for what the node could not measure."""
    unmeasured = dict.fromkeys(mount.unmeasured_field_names)
    share = None if "used_bytes" in unmeasured else mount.used_share
    return {**asdict(mount), **unmeasured, "healthy": mount.healthy, "share": share}
