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
from hyperpod_kit.storage.quota.requests import LARGEST, QuotaDecision, QuotaRequest, encoded, parse
from hyperpod_kit.system.atomic_file import replace
from hyperpod_kit.system.file_lock import try_lock
from hyperpod_kit.untrusted import walk
from hyperpod_kit.untrusted.dirfd import mount_id_of, open_name, reopen
from hyperpod_kit.untrusted.parse import json_object

NAME = ".hyperpod-kit-requests"
DECIDED = "decided"
MOST_OF_ONE = 10
"""Requests of one user that wait; more of them are counted and not read."""
MOST_DECIDED = 1000
"""Decisions that are shown, the newest."""


class WaitingRequest(NamedTuple):
    """`id`: of what the file says and whose it is, so that another text is another request."""

    id: str
    uid: int
    file: str
    request: QuotaRequest


class _Whose(NamedTuple):
    """Whose a name is, and whether a request can be behind it. A file of two names may be somebody else's doing, who
    has given a user's file another name here: it counts for itself."""

    uid: int
    alone: bool


class RequestBox:
    """The box of `place`, a directory of root's. Its descriptor is open until `close`."""

    def __init__(self, place: str) -> None:
        """Raises Absent where there is none, QuotaError, Untrusted, OSError."""
        self.place = place
        self.path = os.path.join(place, NAME)
        try:
            self._folder = walk.open_directory(self.path)
        except FileNotFoundError:
            raise Absent(
                f"{place} has no {NAME}, where requests would lie",
                hint=f"as root: hyperpod-kit storage requests open {place}",
            ) from None
        found = os.fstat(self._folder)
        if found.st_uid not in (0, os.geteuid()) or not found.st_mode & stat.S_ISVTX:
            self.close()
            raise QuotaError(f"{self.path} is {stat.filemode(found.st_mode)} of uid {found.st_uid}, expected root's")
        self.owner = found.st_uid

    def close(self) -> None:
        os.close(self._folder)

    def put(self, request: QuotaRequest) -> WaitingRequest:
        """A file of this user's. Raises QuotaError when too many of his wait, OSError."""
        mine = [one for one in self.waiting()[0] if one.uid == os.geteuid()]
        if len(mine) >= MOST_OF_ONE:
            raise QuotaError(
                f"{len(mine)} requests of yours wait already, {MOST_OF_ONE} may",
                hint=f"rm {os.path.join(self.path, mine[0].file)}, or wait for an answer",
            )
        name, data = os.urandom(8).hex() + ".json", encoded(request)
        replace(name, data, 0o600, folder=self._folder, durable=True)
        return WaitingRequest(_id(os.geteuid(), data), os.geteuid(), name, request)

    def waiting(self) -> tuple[list[WaitingRequest], list[str]]:
        """(what can be read and was not decided, why the rest was not taken: one line each). Raises OSError.

        Every name is looked at, however many one user has laid there: what waits of the others is found behind them.
        """
        mount, found = mount_id_of(self._folder), []
        names, counts, refused = self._names(mount)
        decided = self._decided_ids()
        for name in sorted(name for of_one in names.values() for name in of_one):
            try:
                one = self._read(name, mount)
            except (PermissionError, FileNotFoundError):
                continue  # of others, as a user sees it; or gone meanwhile
            except (Untrusted, ValueError, OSError) as err:
                refused.append(f"{name}: {err}")
                continue
            if one.id not in decided:
                found.append(one)
        refused += [
            f"{count} files of uid {whose.uid}: {MOST_OF_ONE} were read"
            for whose, count in counts.items()
            if count > MOST_OF_ONE
        ]
        return found, refused

    def _names(self, mount: str) -> tuple[dict[_Whose, list[str]], Counter[_Whose], list[str]]:
        """(the first names of each user, how many each has, why others were not taken). In the room of MOST_OF_ONE
        names a user; nothing is opened, and nothing that somebody has mounted is asked anything. Raises OSError."""
        names: dict[_Whose, list[str]] = {}
        counts: Counter[_Whose] = Counter()
        refused: list[str] = []
        unheld = 0
        with os.scandir(self._folder) as entries:
            for name in (entry.name for entry in entries):
                if name == DECIDED or name.endswith(".partial"):
                    continue
                try:
                    whose = self._whose(name, mount)
                except FileNotFoundError:
                    continue
                except (Untrusted, OSError) as err:
                    unheld += 1
                    if unheld <= MOST_OF_ONE:
                        refused.append(f"{name}: {err}")
                    continue
                counts[whose] += 1
                of_one = names.setdefault(whose, [])
                insort(of_one, name)
                del of_one[MOST_OF_ONE:]
        if unheld > MOST_OF_ONE:
            refused.append(f"{unheld - MOST_OF_ONE} more names that something lies behind")
        return names, counts, refused

    def _whose(self, name: str, mount: str) -> _Whose:
        """Raises Untrusted, OSError."""
        held = open_name(name, self._folder, mount)
        try:
            found = os.fstat(held)
            return _Whose(found.st_uid, stat.S_ISREG(found.st_mode) and found.st_nlink == 1)
        finally:
            os.close(held)

    def _read(self, name: str, mount: str) -> WaitingRequest:
        """Raises Untrusted, ValueError, OSError."""
        held = open_name(name, self._folder, mount)
        try:
            found = os.fstat(held)
            if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
                raise Untrusted(f"{stat.filemode(found.st_mode)} with {found.st_nlink} names, expected a file with one")
            if found.st_size > LARGEST:
                raise Untrusted(f"{found.st_size} bytes, expected at most {LARGEST}")
            with open(reopen(held, os.O_RDONLY), "rb") as stream:
                data = stream.read(LARGEST + 1)
            return WaitingRequest(_id(found.st_uid, data), found.st_uid, name, parse(data))
        finally:
            os.close(held)

    def find(self, wanted: str) -> WaitingRequest:
        """The one that waits. Raises QuotaError, OSError."""
        for one in self.waiting()[0]:
            if one.id == wanted:
                return one
        raise QuotaError(
            f"no request {wanted} waits in {self.path}: it was answered, withdrawn or changed",
            hint=f"hyperpod-kit storage requests list {self.place} --all",
        )

    @contextmanager
    def deciding(self) -> Iterator[None]:
        """One admin at a time. Raises QuotaError while another decides, OSError."""
        handle = self._decided()
        try:
            if not try_lock(handle):
                raise QuotaError(f"another admin answers a request in {self.path} at the moment", hint="try again")
            yield
        finally:
            os.close(handle)

    def record(self, decision: QuotaDecision, waiting: WaitingRequest) -> None:
        """Say what became of it, for everybody to read; its file goes. Raises OSError."""
        folder = self._decided()
        try:
            body = json.dumps(decision.to_json()).encode() + b"\n"
            replace(f"{decision.id}.json", body, 0o644, folder=folder, durable=True)
        finally:
            os.close(folder)
        with suppress(OSError):  # an answered request is not read again
            os.unlink(waiting.file, dir_fd=self._folder)

    def _decided(self) -> int:
        folder = _directory(DECIDED, self._folder)
        found = os.fstat(folder)
        if found.st_uid != self.owner or found.st_mode & 0o022:
            os.close(folder)
            raise QuotaError(f"{self.path}/{DECIDED} is {stat.filemode(found.st_mode)} of uid {found.st_uid}")
        return folder

    def _decided_ids(self) -> frozenset[str]:
        folder = self._decided()
        try:
            return frozenset(name[: -len(".json")] for name in os.listdir(folder) if name.endswith(".json"))
        finally:
            os.close(folder)

    def decided(self) -> list[QuotaDecision]:
        """The newest MOST_DECIDED, the newest first. Raises OSError."""
        folder = self._decided()
        try:
            with os.scandir(folder) as entries:
                timed = sorted((-one.stat().st_mtime, one.name) for one in entries if one.name.endswith(".json"))
            found = []
            for _, name in timed[:MOST_DECIDED]:
                with open(os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=folder), "rb") as stream:
                    data = stream.read()
                with suppress(ValueError, KeyError, TypeError):  # damaged: the others can be shown
                    body = json_object(data)
                    body.pop("state")
                    found.append(QuotaDecision(**body))
            return found
        finally:
            os.close(folder)


def make(place: str) -> str:
    """The box of a directory, whose it is; twice is once. Raises QuotaError, Untrusted, OSError."""
    folder = walk.open_directory(place)
    try:
        box = _made(NAME, folder)
        try:
            # Before anybody may write there: the name could be taken.
            decided = _made(DECIDED, box)
            os.fchmod(decided, 0o755)
            os.close(decided)
            os.fchmod(box, 0o1777)
        finally:
            os.close(box)
    finally:
        os.close(folder)
    return os.path.join(place, NAME)


def _made(name: str, folder: int) -> int:
    with suppress(FileExistsError):
        os.mkdir(name, 0o700, dir_fd=folder)
    made = _directory(name, folder)
    if os.fstat(made).st_uid != os.geteuid():
        os.close(made)
        raise QuotaError(f"{name} is there already, and not of uid {os.geteuid()}")
    return made


def _directory(name: str, folder: int) -> int:
    return os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)


def above(directory: str) -> str:
    """The nearest directory above that has a box of root's. Raises QuotaError."""
    for place in map(str, Path(directory).parents):
        try:
            found = os.lstat(os.path.join(place, NAME))
        except OSError:
            continue
        if stat.S_ISDIR(found.st_mode) and found.st_uid in (0, os.geteuid()):
            return place
    if not os.path.lexists(directory):
        raise Absent(f"{directory} is not there", hint=f"is it mounted here? findmnt --target {directory}")
    raise QuotaError(
        f"no directory above {directory} takes requests",
        hint="ask an admin for: hyperpod-kit storage requests open DIRECTORY",
    )


def _id(uid: int, data: bytes) -> str:
    return sha256(b"%d:" % uid + data).hexdigest()[:32]
