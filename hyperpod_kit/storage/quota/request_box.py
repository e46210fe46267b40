"""The directory that requests lie in: every user may put a file there, none may touch another's, as in /tmp.

It lies beside the directories that have limits and not in them: who has met his limit can write nothing in his own.
"""

from __future__ import annotations

import json
import os
import stat
from bisect import insort
from collections import Counter
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Iterator, NamedTuple

from hyperpod_kit.errors import Absent, Untrusted
from hyperpod_kit.storage.quota.limits import QuotaError
from hyperpod_kit.storage.quota.requests import (
    MAX_FILE_BYTES,
    QuotaDecision,
    QuotaRequest,
    decode_request,
    encode_request,
)
from hyperpod_kit.system.atomic_file import write_atomically_in_directory
from hyperpod_kit.system.file_lock import try_lock
from hyperpod_kit.untrusted import walk
from hyperpod_kit.untrusted.dirfd import mount_id_of, open_path_fd_refusing_mount, reopen_path_fd
from hyperpod_kit.untrusted.parse import parse_json_object

NAME = ".hyperpod-kit-requests"
DECIDED = "decided"
MAX_OF_USER = 10
"""Requests of one user that wait; more of them are counted and not read."""
MAX_DECISIONS = 1000
"""Decisions that are shown, the newest."""


class PendingRequest(NamedTuple):
    """A request that waits. `id`: of what the file says and whose it is, so that another text is another request."""

    id: str
    uid: int
    file: str
    request: QuotaRequest


class _FileOwner(NamedTuple):
    """Whose a name is, and whether a request can be behind it. A file of two names may be somebody else's doing, who
    has given a user's file another name here: it counts for itself."""

    uid: int
    alone: bool


class RequestBox:
    """The box of `parent`, a directory of root's. Its descriptor is open until `close`."""

    def __init__(self, parent: str) -> None:
        """Raises Absent where there is none, QuotaError, Untrusted, OSError."""
        self.parent = parent
        self.path = os.path.join(parent, NAME)
        try:
            self._folder = walk.open_directory(self.path)
        except FileNotFoundError:
            raise Absent(
                f"{parent} has no {NAME}, the directory for requests",
                hint=f"as root: hyperpod-kit storage requests open {parent}",
            ) from None
        status = os.fstat(self._folder)
        if status.st_uid not in (0, os.geteuid()) or not status.st_mode & stat.S_ISVTX:
            self.close()
            raise QuotaError(f"{self.path} is {stat.filemode(status.st_mode)} of uid {status.st_uid}, expected root's")
        self.owner = status.st_uid

    def close(self) -> None:
        os.close(self._folder)

    def add_request(self, request: QuotaRequest) -> PendingRequest:
        """Put a request of this user's. Raises QuotaError when too many of his wait, OSError."""
        own_requests = [
            waiting for waiting in self.list_pending_and_refusal_reasons()[0] if waiting.uid == os.geteuid()
        ]
        if len(own_requests) >= MAX_OF_USER:
            raise QuotaError(
                f"{len(own_requests)} of your requests are pending already; at most {MAX_OF_USER} may be",
                hint=f"rm {os.path.join(self.path, own_requests[0].file)}, or wait for an answer",
            )
        name, data = os.urandom(8).hex() + ".json", encode_request(request)
        write_atomically_in_directory(self._folder, name, data, 0o600, durable=True)
        return PendingRequest(_request_id(os.geteuid(), data), os.geteuid(), name, request)

    def list_pending_and_refusal_reasons(self) -> tuple[list[PendingRequest], list[str]]:
        """List what can be read and was not decided, and why the rest was not taken: one line each. Raises OSError.

        Every name is looked at, however many one user has laid there: what waits of the others is found behind them.
        """
        mount, pending = mount_id_of(self._folder), []
        names, counts, refused = self._list_names_by_owner(mount)
        decided = self._decided_ids()
        for name in sorted(name for names_of_owner in names.values() for name in names_of_owner):
            try:
                request = self._read_request(name, mount)
            except (PermissionError, FileNotFoundError):
                continue  # of others, as a user sees it; or gone meanwhile
            except (Untrusted, ValueError, OSError) as err:
                refused.append(f"{name}: {err}")
                continue
            if request.id not in decided:
                pending.append(request)
        refused += [
            f"{count} files of uid {owner.uid}: only {MAX_OF_USER} were read"
            for owner, count in counts.items()
            if count > MAX_OF_USER
        ]
        return pending, refused

    def _list_names_by_owner(self, mount: str) -> tuple[dict[_FileOwner, list[str]], Counter[_FileOwner], list[str]]:
        """List the first names of each user, how many each has, and why others were not taken.

        In the room of MAX_OF_USER names a user; nothing is opened, and nothing that somebody has mounted is asked
        anything. Raises OSError.
        """
        names: dict[_FileOwner, list[str]] = {}
        counts: Counter[_FileOwner] = Counter()
        refused: list[str] = []
        unreadable = 0
        with os.scandir(self._folder) as entries:
            for name in (entry.name for entry in entries):
                if name == DECIDED or name.endswith(".partial"):
                    continue
                try:
                    owner = self._read_file_owner(name, mount)
                except FileNotFoundError:
                    continue
                except (Untrusted, OSError) as err:
                    unreadable += 1
                    if unreadable <= MAX_OF_USER:
                        refused.append(f"{name}: {err}")
                    continue
                counts[owner] += 1
                names_of_owner = names.setdefault(owner, [])
                insort(names_of_owner, name)
                del names_of_owner[MAX_OF_USER:]
        if unreadable > MAX_OF_USER:
            refused.append(f"{unreadable - MAX_OF_USER} more names could not be read")
        return names, counts, refused

    def _read_file_owner(self, name: str, mount: str) -> _FileOwner:
        """Read the owner of a name. Raises Untrusted, OSError."""
        descriptor = open_path_fd_refusing_mount(name, self._folder, mount)
        try:
            status = os.fstat(descriptor)
            return _FileOwner(status.st_uid, stat.S_ISREG(status.st_mode) and status.st_nlink == 1)
        finally:
            os.close(descriptor)

    def _read_request(self, name: str, mount: str) -> PendingRequest:
        """Read a request. Raises Untrusted, ValueError, OSError."""
        descriptor = open_path_fd_refusing_mount(name, self._folder, mount)
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
                raise Untrusted(
                    f"{stat.filemode(status.st_mode)} with {status.st_nlink} names, expected a file with one"
                )
            if status.st_size > MAX_FILE_BYTES:
                raise Untrusted(f"{status.st_size} bytes, expected at most {MAX_FILE_BYTES}")
            with open(reopen_path_fd(descriptor, os.O_RDONLY), "rb") as stream:
                data = stream.read(MAX_FILE_BYTES + 1)
            return PendingRequest(_request_id(status.st_uid, data), status.st_uid, name, decode_request(data))
        finally:
            os.close(descriptor)

    def find_pending(self, request_id: str) -> PendingRequest:
        """Find a request that waits. Raises QuotaError, OSError."""
        for request in self.list_pending_and_refusal_reasons()[0]:
            if request.id == request_id:
                return request
        raise QuotaError(
            f"no request {request_id} is pending in {self.path}: it was answered, withdrawn or changed",
            hint=f"hyperpod-kit storage requests list {self.parent} --all",
        )

    @contextmanager
    def decision_lock(self) -> Iterator[None]:
        """Lock out other admins. Raises QuotaError while another decides, OSError."""
        handle = self._open_decided_directory()
        try:
            if not try_lock(handle):
                raise QuotaError(f"another admin is answering a request in {self.path}", hint="try again")
            yield
        finally:
            os.close(handle)

    def record_decision_and_remove_request(self, decision: QuotaDecision, waiting: PendingRequest) -> None:
        """Record a decision, for everybody to read, and remove the request's file. Raises OSError."""
        folder = self._open_decided_directory()
        try:
            body = json.dumps(decision.to_json()).encode() + b"\n"
            write_atomically_in_directory(folder, f"{decision.id}.json", body, 0o644, durable=True)
        finally:
            os.close(folder)
        with suppress(OSError):  # an answered request is not read again
            os.unlink(waiting.file, dir_fd=self._folder)

    def _open_decided_directory(self) -> int:
        folder = _open_directory(DECIDED, self._folder)
        status = os.fstat(folder)
        if status.st_uid != self.owner or status.st_mode & 0o022:
            os.close(folder)
            raise QuotaError(f"{self.path}/{DECIDED} is {stat.filemode(status.st_mode)} of uid {status.st_uid}")
        return folder

    def _decided_ids(self) -> frozenset[str]:
        folder = self._open_decided_directory()
        try:
            return frozenset(name[: -len(".json")] for name in os.listdir(folder) if name.endswith(".json"))
        finally:
            os.close(folder)

    def read_decisions(self) -> list[QuotaDecision]:
        """Read the newest MAX_DECISIONS, the newest first. Raises OSError."""
        folder = self._open_decided_directory()
        try:
            with os.scandir(folder) as entries:
                newest_first = sorted(
                    (-entry.stat().st_mtime, entry.name) for entry in entries if entry.name.endswith(".json")
                )
            decisions = []
            for _, name in newest_first[:MAX_DECISIONS]:
                with open(os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=folder), "rb") as stream:
                    data = stream.read()
                with suppress(ValueError, KeyError, TypeError):  # damaged: the others can be shown
                    body = parse_json_object(data)
                    body.pop("state")
                    decisions.append(QuotaDecision(**body))
            return decisions
        finally:
            os.close(folder)


def make_request_box(parent: str) -> str:
    """Make the box of a directory. Idempotent. Raises QuotaError, Untrusted, OSError."""
    folder = walk.open_directory(parent)
    try:
        box = _make_or_open_own_directory(NAME, folder)
        try:
            # Before anybody may write there: the name could be taken.
            decided = _make_or_open_own_directory(DECIDED, box)
            os.fchmod(decided, 0o755)
            os.close(decided)
            os.fchmod(box, 0o1777)
        finally:
            os.close(box)
    finally:
        os.close(folder)
    return os.path.join(parent, NAME)


def _make_or_open_own_directory(name: str, folder: int) -> int:
    with suppress(FileExistsError):
        os.mkdir(name, 0o700, dir_fd=folder)
    descriptor = _open_directory(name, folder)
    if os.fstat(descriptor).st_uid != os.geteuid():
        os.close(descriptor)
        raise QuotaError(f"{name} already exists and does not belong to uid {os.geteuid()}")
    return descriptor


def _open_directory(name: str, folder: int) -> int:
    return os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)


def nearest_directory_with_box(directory: str) -> str:
    """Find the nearest directory above that has a box of root's. Raises QuotaError."""
    for ancestor in map(str, Path(directory).parents):
        try:
            status = os.lstat(os.path.join(ancestor, NAME))
        except OSError:
            continue
        if stat.S_ISDIR(status.st_mode) and status.st_uid in (0, os.geteuid()):
            return ancestor
    if not os.path.lexists(directory):
        raise Absent(f"{directory} does not exist", hint=f"is it mounted on this machine? findmnt --target {directory}")
    raise QuotaError(
        f"no directory above {directory} accepts requests",
        hint="ask an admin to run: hyperpod-kit storage requests open DIRECTORY",
    )


def _request_id(uid: int, data: bytes) -> str:
    return sha256(b"%d:" % uid + data).hexdigest()[:32]
