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
from hyperpod_kit.untrusted.dataclass_json import dataclass_from_json
from hyperpod_kit.untrusted.parse import parse_json_object

FORMAT = "hpk-quota-request/1"
MAX_FILE_BYTES = 8192
"""Bytes of a request's file."""
MAX_REASON = 500
MAX_PATH = 1024
_MAX_NUMBER = 1 << 62
_DIRECTORY_FLAGS = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC


@dataclass(frozen=True)
class QuotaRequest:
    """A request: hard limits in bytes and files; 0: as it is. `at`: Unix seconds, by the user's clock."""

    directory: str
    bytes: int
    files: int
    why: str
    at: float


def encode_request(request: QuotaRequest) -> bytes:
    """Encode a request as its file holds it."""
    return json.dumps({"format": FORMAT, **asdict(request)}).encode() + b"\n"


def decode_request(data: bytes) -> QuotaRequest:
    """Decode a request from anything. Raises ValueError unless its values are in their bounds."""
    body = parse_json_object(data, MAX_FILE_BYTES)
    if body.pop("format", None) != FORMAT:
        raise ValueError(f"not a request of format {FORMAT}")
    request = dataclass_from_json(QuotaRequest, body)
    if not all(0 <= number < _MAX_NUMBER for number in (request.bytes, request.files, request.at)):
        raise ValueError("its numbers are out of bounds")
    if not request.bytes and not request.files:
        raise ValueError("it requests nothing")
    directory = request.directory
    if len(directory) > MAX_PATH or directory != os.path.normpath(directory) or not directory.startswith("/"):
        raise ValueError("its directory is not an absolute path in its shortest form")
    if not directory.isprintable() or not request.why.isprintable() or len(request.why) > MAX_REASON:
        raise ValueError("its text cannot be printed, or is too long")
    return request


def require_requestable_directory(parent: str, directory: str, uid: int) -> None:
    """Raise QuotaError or OSError unless this user may request a limit for this directory.

    See `open_requestable_directory`.
    """
    os.close(open_requestable_directory(parent, directory, uid))


def open_requestable_directory(parent: str, directory: str, uid: int) -> int:
    """Open a descriptor (O_PATH) of a directory below `parent` for which this user may ask: it is his, or his group's
    that may write to it, and all directories on the way are the admin's.

    Whoever acts on `/proc/self/fd/N` acts on what was looked at here, whatever has come into its place since. Nothing
    of the user's is asked anything before it is clear that nothing is mounted there. Raises QuotaError, OSError.
    """
    if not directory.startswith(parent.rstrip("/") + "/"):
        raise QuotaError(f"{directory} is not below {parent}")
    descriptor, path = os.open(parent, _DIRECTORY_FLAGS), parent
    try:
        names = directory[len(parent.rstrip("/")) + 1 :].split("/")
        for number, name in enumerate(names, 1):
            path = os.path.join(path, name)
            child = _open_child_unless_mounted(name, descriptor, path)
            os.close(descriptor)
            descriptor = child
            if number < len(names):
                _require_admin_directory(os.fstat(descriptor), path, directory)
        _require_owner_or_group_member(os.fstat(descriptor), directory, uid)
        return descriptor
    except BaseException:
        os.close(descriptor)
        raise


def _open_child_unless_mounted(name: str, folder: int, path: str) -> int:
    try:
        return dirfd.open_path_fd_refusing_mount(name, folder)
    except OSError as err:
        if err.errno != errno.EXDEV:
            raise
        raise QuotaError(f"something is mounted on {path}, so that it is not a directory of this file system") from None


def _require_admin_directory(status: os.stat_result, path: str, directory: str) -> None:
    if not stat.S_ISDIR(status.st_mode) or status.st_uid not in (0, os.geteuid()) or _is_writable_by_others(status):
        raise QuotaError(
            f"{path}, on the way to {directory}, is not a directory that belongs to root and that only root may "
            "write to",
            hint="request limits for the directory that an admin created",
        )


def _require_owner_or_group_member(status: os.stat_result, directory: str, uid: int) -> None:
    if not stat.S_ISDIR(status.st_mode):
        raise Absent(f"{directory} is not a directory")
    shared = bool(status.st_mode & stat.S_IWGRP) and status.st_gid in non_root_gids_of_user(uid)
    if status.st_uid != uid and not shared:
        raise QuotaError(
            f"{directory} belongs to uid {status.st_uid} and gid {status.st_gid}, but the request is from uid {uid}",
            hint="only its owner, or a member of the group that it is shared in, may request limits",
        )


def _is_writable_by_others(status: os.stat_result) -> bool:
    return bool(status.st_mode & (stat.S_IWGRP | stat.S_IWOTH))


def non_root_gids_of_user(uid: int) -> frozenset[int]:
    """List the gids of a user but root's; none of a user that this machine does not know."""
    try:
        user = pwd.getpwuid(uid)
    except KeyError:
        return frozenset()
    member_of = (group.gr_gid for group in grp.getgrall() if user.pw_name in group.gr_mem)
    return frozenset({user.pw_gid, *member_of, *os.getgrouplist(user.pw_name, user.pw_gid)} - {0})


def merge_limits(current: QuotaLimits, hard_bytes: int, hard_files: int) -> QuotaLimits:
    """Merge the limits now with those that are not 0. Raises QuotaError below a soft limit."""
    return replace(current, hard_bytes=hard_bytes or current.hard_bytes, hard_files=hard_files or current.hard_files)


def user_name_or_uid(uid: int) -> str:
    """Return the user's name for a person."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


@dataclass(frozen=True)
class QuotaDecision:
    """The decision on a request. `bytes` and `files`: the hard limits since then, 0 for none; `by`: who decided."""

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
        """Return its JSON form: bytes, files, Unix seconds."""
        return {**asdict(self), "state": "approved" if self.approved else "denied"}
