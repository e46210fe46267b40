"""Which EFS access point serves whom: a file beside the configuration, written by `hyperpod-kit users apply`.

The ids come from AWS. In a file of their own they make rendering need no network and give the same bytes for the same
input; and because uid, gid and directory stand beside each id, an edit that would give somebody's files to somebody
else is found before anything is rendered.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Iterator, Mapping, Sequence

from hyperpod_kit.config.settings.findings import WARNING, Finding
from hyperpod_kit.errors import ConfigError
from hyperpod_kit.model.shares import SHARE_MODE
from hyperpod_kit.system import atomic_file

FORMAT = "hpk-access-points/1"
SUFFIX = ".access-points.json"


GROUP = "group:"
"""Before the name of a group, which has an access point as users have; no user's name has a colon."""

AS_WHO_ASKS = -1
"""The uid of an access point that makes nobody another."""


@dataclass(frozen=True)
class AccessPoint:
    """Access point `id` of `file_system_id`: acts as `uid`:`gid` in the directory `root` of the file system.

    user: whose home it is; of a share GROUP and the group's name, with AS_WHO_ASKS and the gid that its directory has.
    """

    user: str
    file_system_id: str
    uid: int
    gid: int
    root: str
    id: str = ""

    @property
    def owner_description(self) -> str:
        """Return the owner in words: the user's name, or `the group NAME`."""
        if self.user.startswith(GROUP):
            return f"the group {self.user[len(GROUP) :]}"
        return self.user

    @property
    def acting_uid_gid_description(self) -> str:
        """Return in words as whom it acts: `UID:GID`, or whoever asks in a group."""
        if self.uid >= 0:
            return f"{self.uid}:{self.gid}"
        return f"the calling user, in group {self.gid},"

    @property
    def octal_directory_mode(self) -> str:
        """Mode of its directory, as AWS writes it."""
        mode = SHARE_MODE
        if self.uid >= 0:
            mode = 0o700
        return f"{mode:04o}"

    def is_same_except_id(self, other: AccessPoint) -> bool:
        """Return whether both are equal but for their ids."""
        return asdict(self) | {"id": ""} == asdict(other) | {"id": ""}


def access_points_path(config: Path) -> Path:
    """Return the path of the access points file that belongs to a configuration."""
    return config.with_name(config.stem + SUFFIX)


def read_access_points_or_empty(config: Path) -> dict[str, AccessPoint]:
    """Read the access points by user name; empty when there is no such file.

    Raises ConfigError for a file that is not ours.
    """
    path = access_points_path(config)
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if data["format"] != FORMAT:
            raise ValueError(data["format"])
        points = [AccessPoint(**entry) for entry in data["access_points"]]
        if not all(isinstance(point.id, str) and isinstance(point.uid, int) for point in points):
            raise ValueError("ids are strings, uids numbers")
    except FileNotFoundError:
        return {}
    except OSError as err:
        raise ConfigError(f"cannot read {path}: {err.strerror}") from err
    except (ValueError, KeyError, TypeError) as err:
        raise ConfigError(
            f"{path} is not a list of access points ({FORMAT}): {err}",
            hint=f"remove it, then: hyperpod-kit users apply {config}",
        ) from err
    return {point.user: point for point in points}


def write_access_points(config: Path, points: Sequence[AccessPoint]) -> bool:
    """Write the file atomically and return True; return False when it holds the same already.

    Raises ConfigError.
    """
    path = access_points_path(config)
    entries = [asdict(point) for point in sorted(points, key=lambda point: point.user)]
    text = json.dumps({"format": FORMAT, "access_points": entries}, indent=2) + "\n"
    try:
        if path.exists() and path.read_text(encoding="utf-8") == text:
            return False
        atomic_file.write_atomically(path, text.encode())
    except OSError as err:
        raise ConfigError(f"cannot write {path}: {err.strerror}") from err
    return True


def compare_with_recorded(
    desired: Sequence[AccessPoint], recorded: Mapping[str, AccessPoint], config: Path
) -> Iterator[Finding]:
    """Report what is wrong between the configuration and the file beside it.

    A missing access point is a warning: the command that makes it needs a configuration that is right.
    """
    apply = f"hyperpod-kit users apply {config}"
    missing = [point.owner_description for point in desired if point.user not in recorded]
    if missing:
        yield Finding(
            "HPK-U020",
            "hyperpod_kit.homes",
            f"no access point yet for {', '.join(missing)}: nothing can be rendered",
            apply,
            WARNING,
        )
    places = {"users": 0, "groups": 0}
    for point in desired:
        key = "users"
        if point.user.startswith(GROUP):
            key = "groups"
        index = places[key]
        places[key] += 1
        have = recorded.get(point.user)
        if have is None or have.is_same_except_id(point):
            continue
        if have.file_system_id != point.file_system_id:
            yield Finding(
                "HPK-U021",
                "hyperpod_kit.homes.file_system_id",
                f"{access_points_path(config).name} has the access point of `{point.owner_description}` on "
                f"{have.file_system_id}",
                f"Move the files if there are any; then {apply}",
                WARNING,
            )
        else:
            yield Finding(
                "HPK-U022",
                f"hyperpod_kit.{key}[{index}]",
                f"`{point.owner_description}` is {point.acting_uid_gid_description} in {point.root} here, but access "
                f"point {have.id} acts as "
                f"{have.acting_uid_gid_description} in {have.root}",
                "Change it back: files belong to numeric ids, and an access point cannot be changed",
            )
