"""Where a rehearsal keeps things, and how everything it makes on this machine is named.

Every network namespace, link, cgroup and mount carries the rehearsal's id, and the id follows from the state
directory alone: what a dead daemon left behind is found by name, not from a list that it may never have written.
"""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Dict

from hyperpod_kit.environment import HPK_CACHE, HPK_REHEARSAL_STATE
from hyperpod_kit.untrusted import by_descriptor
from hyperpod_rehearsal.mounts.registry import REHEARSED
from hyperpod_rehearsal.records import trusted_directory

DEFAULT_NAME = "demo"
STATE_BASE = Path("/var/lib/hyperpod-kit-rehearsal")
CGROUP_PARENT = "hyperpod-kit"
NAME_PATTERN = re.compile(r"[a-z0-9][a-z0-9-]{0,30}")


def state_base() -> Path:
    """The directory that holds one state directory per rehearsal."""
    return Path(os.environ.get(HPK_REHEARSAL_STATE) or STATE_BASE)


def cache_dir() -> Path:
    """Where node images are kept."""
    return Path(os.environ.get(HPK_CACHE) or Path.home() / ".cache" / "hyperpod-kit")


def lock_file_path_with_directory_made(name: str) -> Path:
    """A file to lock; kept beside the images, because locks outlive what they guard. Raises Untrusted."""
    directory = cache_dir() / "locks"
    trusted_directory.require_trusted(directory)
    by_descriptor.make_directories(directory)
    return directory / f"{name}.lock"


@dataclass(frozen=True)
class Layout:
    """Paths and names of one rehearsal. `root`: its state directory, absolute."""

    root: Path

    @classmethod
    def for_name(cls, name: str) -> Layout:
        """The rehearsal of that name under `state_base()`."""
        return cls(Path(os.path.abspath(state_base() / name)))

    @property
    def id(self) -> str:
        """Four hexadecimal digits that mark everything of this rehearsal."""
        return hashlib.sha256(str(self.root).encode()).hexdigest()[:4]

    @property
    def state_file(self) -> Path:
        return self.root / "state.json"

    @property
    def daemon_file(self) -> Path:
        """Process identity of the daemon; exists from before the daemon makes anything."""
        return self.root / "daemon.json"

    @property
    def guardian_file(self) -> Path:
        """Process identity of the guardian."""
        return self.root / "guardian.json"

    @property
    def ready_file(self) -> Path:
        return self.root / "ready.json"

    @property
    def daemon_log(self) -> Path:
        return self.root / "daemon.log"

    @property
    def market_file(self) -> Path:
        """What a person has said of EC2's capacity and of Spot instances that it takes back."""
        return self.root / "market.json"

    @property
    def image_mount_point(self) -> Path:
        """Mount point of the node image."""
        return self.root / "image"

    @property
    def layer(self) -> Path:
        """Directory laid over the image: agent, units, stand-ins."""
        return self.root / "layer"

    @property
    def nodes(self) -> Path:
        return self.root / "nodes"

    @property
    def retained_logs(self) -> Path:
        """Logs of machines that are gone."""
        return self.root / "logs"

    @property
    def s3(self) -> Path:
        return self.root / "s3"

    @property
    def file_systems(self) -> Dict[str, Path]:
        """Data of the shared file systems, by the name that the stand-ins know them by; nodes see them under /hpk."""
        return {its.data: self.root / its.data for its in REHEARSED.values() if its.data}

    @property
    def ssh_key(self) -> Path:
        return self.root / "id_ed25519"

    @property
    def known_hosts(self) -> Path:
        return self.root / "known_hosts"

    @property
    def bridge(self) -> str:
        return f"hpk-{self.id}"

    @property
    def cgroup(self) -> str:
        """Path of the rehearsal's cgroup below each hierarchy's root."""
        return f"{CGROUP_PARENT}/{self.id}"

    def netns(self, instance_id: str) -> str:
        """Name of a node's network namespace."""
        return f"hpk-{self.id}-{instance_id[-8:]}"

    def veth(self, instance_id: str) -> str:
        """Host end of a node's link: 14 characters, the kernel allows 15."""
        return f"hv{self.id}{instance_id[-8:]}"

    def machine_name(self, instance_id: str) -> str:
        """Name that systemd-nspawn knows the machine by."""
        return f"hpk-{self.id}-{instance_id[-8:]}"


def existing_rehearsals() -> list[Layout]:
    """All rehearsals that have a state directory, in order of name."""
    base = Path(os.path.abspath(state_base()))
    return [Layout(base / name) for name in _rehearsal_names(base)]


def _rehearsal_names(base: Path) -> list[str]:
    if not base.is_dir():
        return []
    return [entry.name for entry in sorted(base.iterdir()) if entry.is_dir() and NAME_PATTERN.fullmatch(entry.name)]
