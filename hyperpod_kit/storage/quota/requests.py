"""A user asks for another limit, in a file of his; who he is says the file's owner, and nothing in it is believed."""

from __future__ import annotations

import errno
import grp
import json
import os
import pwd
import stat
from dataclasses import asdict, dataclass, replace
from typing import Any

from hyperpod_kit.errors import Absent
from hyperpod_kit.storage.quota.limits import QuotaError, QuotaLimits
from hyperpod_kit.untrusted import dirfd
from hyperpod_kit.untrusted.parse import json_object

FORMAT = "hpk-quota-request/1"
LARGEST = 8192
"""Bytes of a request's file."""
LONGEST_WHY = 500
LONGEST_PATH = 1024
_MOST = 1 << 62
_WAY = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC


@dataclass(frozen=True)
class QuotaRequest:
    """Hard limits that are asked for, in bytes and files; 0: as it is. `at`: Unix seconds, by the user's clock."""

    directory: str
    bytes: int
    files: int
    why: str
    at: float


def encoded(request: QuotaRequest) -> bytes:
    """What its file holds."""
    return json.dumps({"format": FORMAT, **asdict(request)}).encode() + b"\n"


def parse(data: bytes) -> QuotaRequest:
    """Whatever it is, a request with values in their bounds, or ValueError."""
    body = json_object(data, LARGEST)
    if body.pop("format", None) != FORMAT or set(body) != set(QuotaRequest.__dataclass_fields__):
        raise ValueError(f"no request of format {FORMAT}")
    for name, kind in (("directory", str), ("why", str), ("bytes", int), ("files", int), ("at", (int, float))):
        if not isinstance(body[name], kind) or isinstance(body[name], bool):
            raise ValueError(f"its {name} is of type {type(body[name]).__name__}")
    if not (0 <= body["bytes"] < _MOST and 0 <= body["files"] < _MOST and 0 <= body["at"] < _MOST):
        raise ValueError("its numbers are out of bounds")
    if not body["bytes"] and not body["files"]:
        raise ValueError("it asks for nothing")
    directory = body["directory"]
    if len(directory) > LONGEST_PATH or directory != os.path.normpath(directory) or not directory.startswith("/"):
        raise ValueError("its directory is no absolute path in its shortest form")
    if not directory.isprintable() or not body["why"].isprintable() or len(body["why"]) > LONGEST_WHY:
        raise ValueError("its words cannot be printed, or are too many")
    return QuotaRequest(**body)


def require_own(place: str, directory: str, uid: int) -> None:
    """Whether this user may ask for this directory: see `opened_own`. Raises QuotaError, OSError."""
    os.close(opened_own(place, directory, uid))


def opened_own(place: str, directory: str, uid: int) -> int:
    """A descriptor (O_PATH) of a directory below `place` for which this user may ask: it is his, or his group's that
    may write to it, and all directories on the way are the admin's.

    Whoever acts on `/proc/self/fd/N` acts on what was looked at here, whatever has come into its place since. Nothing
    of the user's is asked anything before it is clear that nothing is mounted there. Raises QuotaError, OSError.
    """
    if not directory.startswith(place.rstrip("/") + "/"):
        raise QuotaError(f"{directory} is not below {place}")
    here, path = os.open(place, _WAY), place
    try:
        names = directory[len(place.rstrip("/")) + 1 :].split("/")
        for number, name in enumerate(names, 1):
            path = os.path.join(path, name)
            below = _held(name, here, path)
            os.close(here)
            here = below
            if number < len(names):
                _require_admins(os.fstat(here), path, directory)
        _require_askers(os.fstat(here), directory, uid)
        return here
    except BaseException:
        os.close(here)
        raise


def _held(name: str, folder: int, path: str) -> int:
    try:
        return dirfd.open_name(name, folder)
    except OSError as err:
        if err.errno != errno.EXDEV:
            raise
        raise QuotaError(f"something is mounted on {path}, so that it is no directory of this file system") from None


def _require_admins(found: os.stat_result, path: str, directory: str) -> None:
    if not stat.S_ISDIR(found.st_mode) or found.st_uid not in (0, os.geteuid()) or _others(found):
        raise QuotaError(
            f"{path}, on the way to {directory}, is no directory of root that nobody else may write to",
            hint="ask for the directory that an admin has made",
        )


def _require_askers(found: os.stat_result, directory: str, uid: int) -> None:
    if not stat.S_ISDIR(found.st_mode):
        raise Absent(f"{directory} is no directory")
    shared = bool(found.st_mode & stat.S_IWGRP) and found.st_gid in groups_of(uid)
    if found.st_uid != uid and not shared:
        raise QuotaError(
            f"{directory} belongs to uid {found.st_uid} and gid {found.st_gid}, and uid {uid} asks",
            hint="its owner, or a member of the group that it is shared in, may ask",
        )


def _others(found: os.stat_result) -> bool:
    return bool(found.st_mode & (stat.S_IWGRP | stat.S_IWOTH))


def groups_of(uid: int) -> frozenset[int]:
    """Numbers of the groups of a user but root's; none of a user that this machine does not know."""
    try:
        user = pwd.getpwuid(uid)
    except KeyError:
        return frozenset()
    named = (one.gr_gid for one in grp.getgrall() if user.pw_name in one.gr_mem)
    return frozenset({user.pw_gid, *named, *os.getgrouplist(user.pw_name, user.pw_gid)} - {0})


def granted(now: QuotaLimits, hard_bytes: int, hard_files: int) -> QuotaLimits:
    """The limits now, with those that are not 0 in their place. Raises QuotaError below a soft limit."""
    return replace(now, hard_bytes=hard_bytes or now.hard_bytes, hard_files=hard_files or now.hard_files)


def name_of(uid: int) -> str:
    """As a person knows the user."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


@dataclass(frozen=True)
class QuotaDecision:
    """What became of a request. `bytes` and `files`: the hard limits since then, 0 for none; `by`: who decided."""

    id: str
    uid: int
    request: dict[str, Any]
    approved: bool
    bytes: int
    files: int
    why: str
    by: str
    at: float

    def to_json(self) -> dict[str, Any]:
        """Bytes, files, Unix seconds."""
        return {**asdict(self), "state": "approved" if self.approved else "denied"}
