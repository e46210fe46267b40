"""What a check of a mount found.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Dict, Tuple

from hyperpod_kit.model.states import SERVES, MountState

_BYTES, _FILES = ("used_bytes", "free_bytes"), ("used_files", "free_files")


@dataclass(frozen=True)
class MountStatus:
    """What one check of one mount found. `source`: what is mounted there; `checked_at`: Unix seconds.

    used_bytes, free_bytes, used_files, free_files: of its file system, `free` for ordinary users; all 0 where it does
    not tell. nearly_full: it serves, and somebody should make room (system/fullness.py).
    """

    name: str
    kind: str
    path: str
    state: MountState
    source: str = ""
    detail: str = ""
    latency_ms: float = 0.0
    required: bool = True
    checked_at: float = 0.0
    used_bytes: int = 0
    free_bytes: int = 0
    used_files: int = 0
    free_files: int = 0
    nearly_full: bool = False

    @property
    def healthy(self) -> bool:
        """Whether a job may use the mount."""
        return self.state in SERVES

    @property
    def used_share(self) -> float:
        """What is used, 0 to 1: of the bytes or of the files, whichever is more; 0 where it does not tell."""
        return max(_used_share(self.used_bytes, self.free_bytes), _used_share(self.used_files, self.free_files))

    def to_dict(self) -> Dict[str, Any]:
        """JSON form, without what is not known: a mount that is not there has no room and no latency."""
        return {name: value for name, value in asdict(self).items() if name not in self.unmeasured_field_names}

    @property
    def unmeasured_field_names(self) -> Tuple[str, ...]:
        """Return the names of the fields that were not measured."""
        fields: Tuple[str, ...] = ()
        if not self.used_bytes + self.free_bytes:
            fields += _BYTES
        if not self.used_files + self.free_files:
            fields += _FILES
        if not self.latency_ms:
            fields += ("latency_ms",)
        return fields

    @property
    def fullness_text(self) -> str:
        """`84 % full`, "" where it does not tell."""
        # Never rounded up: what is said to be full has no room at all.
        if self.used_bytes + self.free_bytes:
            return f"{int(self.used_share * 100)} % full"
        return ""


def _used_share(used: int, free: int) -> float:
    if used + free:
        return used / (used + free)
    return 0.0
