"""What `rehearse up` was asked for, handed to the daemon through <state>/settings.json."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Tuple

from hyperpod_kit.errors import RehearsalError
from hyperpod_kit.untrusted.dataclass_json import dataclass_from_json, dataclass_to_json
from hyperpod_rehearsal.records import state
from hyperpod_rehearsal.records.profiles import STOCK, Profile, profile_by_name


@dataclass(frozen=True)
class RehearsalSettings:
    """`shares`: (directory here, path in every node), read-only; `trees`: directories whose content is laid over the
    image. The Slurm values are assumptions about AWS's own slurm.conf, which is not public: cred_expire (seconds; a
    requeued job waits that long), slurmd_timeout (seconds). `image`: path of the node image. `shm_size`: size of each
    node's /dev/shm, as tmpfs(5) writes it. `profile_name`: which of profiles.py it is."""

    name: str
    image: str
    shares: Tuple[Tuple[str, str], ...] = ()
    cred_expire: int = 10
    slurmd_timeout: int = 30
    shm_size: str = "2G"
    creation_timeout: float = 3600.0
    trees: Tuple[str, ...] = ()
    profile_name: str = STOCK.name

    @property
    def profile(self) -> Profile:
        """Return the profile. Raises RehearsalError when its name is of another release."""
        return profile_by_name(self.profile_name)

    def save(self, state_directory: Path) -> None:
        state.write_json(state_directory / "settings.json", dataclass_to_json(self))

    @classmethod
    def load(cls, state_directory: Path) -> RehearsalSettings:
        """Read the settings that `up` has written. Raises RehearsalError when there are none."""
        data = state.read_own_json_object_or_none(state_directory / "settings.json")
        if data is None:
            raise RehearsalError(f"no settings in {state_directory}", hint="hyperpod-kit rehearse up")
        return dataclass_from_json(cls, data)


def parse_share(text: str) -> Tuple[str, str]:
    """(directory here, path in the nodes) of `DIR:/path`; `DIR` alone keeps its own path. Raises RehearsalError."""
    here, _, there = text.partition(":")
    path = Path(here).resolve()
    target = there or str(path)
    if not path.is_dir():
        raise RehearsalError(f"--share {text}: {path} is not a directory")
    if not target.startswith("/") or ":" in target or ":" in str(path):
        raise RehearsalError(f"--share {text}: expected DIR:/absolute/path without further colons")
    return str(path), target


def resolve_tree_directory(text: str) -> str:
    """Return the directory of `--tree`. Raises RehearsalError when it cannot be laid over the image."""
    path = Path(text).resolve()
    if not path.is_dir():
        raise RehearsalError(f"--tree {text}: {path} is not a directory")
    # /bin, /lib and /sbin are links in the image, and a directory in their place would hide all that lies there.
    real = sorted(name for name in ("bin", "lib", "lib64", "sbin") if (path / name).exists())
    if real:
        raise RehearsalError(
            f"--tree {text}: {', '.join(real)} would take the place of the image's own",
            hint=f"put it below {path / 'usr'}",
        )
    return str(path)
