"""Where captures, locks, logs and notes lie in a node's shared memory: a directory of each user's own.

    /dev/shm/hyperpod-kit/<uid>       0700, made by root (the Prolog) in a directory where nobody else can make anything
    /dev/shm/hyperpod-kit-<uid>       0700, made by its user where root has made none; with `-…` behind it where another
                                      user was there first
    /dev/shm                          the files themselves, as builds before 0.1.0 laid them: still found, never made

HPK_SHM_DIR stands for /dev/shm; where it is a directory of the user's own, the files lie in it as they are.
Others may make anything in /dev/shm: a name says nothing until owner and kind are those of what is held.

Imports nothing that is not compiled in: the shortest of the timers' programs uses it.
Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import errno
import os
import stat
import sys

from hyperpod_kit.environment import HPK_SHM_DIR
from hyperpod_kit.untrusted.dirfd import mount_id_of, open_path_fd_refusing_mount, reopen_path_fd

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

PARENT = "hyperpod-kit"
OPEN_TO_ALL = 0o711
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_DETACH = 2 | 8  # MNT_DETACH, UMOUNT_NOFOLLOW
_MOST_SPARE = 8
"""Directories that one user may have beside the one that root makes."""

MOST_LOOSE = 65536
"""Files beside the directories that are looked at: anybody may make any number that only look like some."""


def shared_memory_root() -> str:
    """The node's shared memory: /dev/shm, or HPK_SHM_DIR."""
    return os.environ.get(HPK_SHM_DIR) or "/dev/shm"


def node_uid() -> int:
    """Our user as the node knows it, for the names of segments. A container may call that user root
    (`--container-remap-root`); the epilog, outside, looks for the segments by their owner."""
    inside = os.getuid()
    for first, outside, count in _uid_map():
        if first <= inside < first + count:
            return outside + inside - first
    return inside


def _uid_map() -> list[tuple[int, int, int]]:
    try:
        with open("/proc/self/uid_map", encoding="utf-8") as lines:
            return [(int(first), int(outside), int(count)) for first, outside, count in map(str.split, lines)]
    except (OSError, ValueError):
        return []


def _root_uid() -> int:
    """The node's root as this process sees it: a user namespace that has no number for it shows everybody's."""
    for first, outside, count in _uid_map():
        if outside <= 0 < outside + count:
            return first - outside
    try:
        with open("/proc/sys/kernel/overflowuid", encoding="utf-8") as stream:
            return int(stream.read())
    except (OSError, ValueError):
        return 65534


def ensure_user_directory() -> str:
    """Return the directory for what this user captures, made where it is missing. Raises OSError."""
    where, uid = shared_memory_root(), node_uid()
    folder = os.open(where, _DIRECTORY)
    try:
        status = os.fstat(folder)
        if status.st_uid == os.geteuid() and not status.st_mode & 0o022:
            return where
        if uid == 0:
            try:
                make_directories_as_root_reporting_moved(where, 0)
            except OSError as err:
                print(f"hyperpod-kit: {err.strerror}", file=sys.stderr, flush=True)
        if _is_user_directory_fixing_mode(folder, f"{PARENT}/{uid}"):
            return f"{where}/{PARENT}/{uid}"
        spare = _own_spare_directory_names(folder, uid)
        if spare:
            return f"{where}/{spare[0]}"
        return f"{where}/{_make_spare_directory(folder, where, uid)}"
    finally:
        os.close(folder)


def own_directories_and_shm_root(where: str = "") -> list[str]:
    """All directories in which captures of this user's may lie, `where` itself the last; in that one, and nowhere else,
    others' files may lie beside ours. Makes nothing. Raises OSError."""
    where, uid = where or shared_memory_root(), node_uid()
    folder = os.open(where, _DIRECTORY)
    try:
        if _is_user_directory_fixing_mode(folder, f"{PARENT}/{uid}"):
            given = [f"{PARENT}/{uid}"]
        else:
            given = []
        return [f"{where}/{name}" for name in (*given, *_own_spare_directory_names(folder, uid))] + [where]
    finally:
        os.close(folder)


def _is_user_directory_fixing_mode(folder: int, name: str) -> bool:
    """Return whether that is a directory of ours for us alone; where it is below PARENT, in a directory that
    root alone fills. A mode that lets others in is set to 0700."""
    parent, _, last = name.rpartition("/")
    descriptors = []
    try:
        if parent:
            descriptors.append(open_path_fd_refusing_mount(parent, folder))
            status = os.fstat(descriptors[0])
            if not stat.S_ISDIR(status.st_mode) or status.st_uid != _root_uid() or status.st_mode & 0o022:
                return False
        descriptors.append(open_path_fd_refusing_mount(last, descriptors[0] if parent else folder))
        status = os.fstat(descriptors[-1])
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
            return False
        if stat.S_IMODE(status.st_mode) != 0o700:
            os.chmod(f"/proc/self/fd/{descriptors[-1]}", 0o700)
        return True
    except OSError:
        return False
    finally:
        for fd in descriptors:
            os.close(fd)


def _own_spare_directory_names(folder: int, uid: int) -> list[str]:
    first = f"{PARENT}-{uid}"
    names = sorted(name for name in os.listdir(folder) if name == first or name.startswith(first + "-"))
    spare_names: list[str] = []
    for name in names[:MOST_LOOSE]:
        if len(spare_names) < _MOST_SPARE and _is_user_directory_fixing_mode(folder, name):
            spare_names.append(name)
    return spare_names


def _make_spare_directory(folder: int, where: str, uid: int) -> str:
    name = f"{PARENT}-{uid}"
    try:
        os.mkdir(name, 0o700, dir_fd=folder)
    except FileExistsError:
        if _is_user_directory_fixing_mode(folder, name):
            return name  # another rank's, just now
        other = f"{name}-{os.urandom(4).hex()}"
        os.mkdir(other, 0o700, dir_fd=folder)
        print(
            f"hyperpod-kit: {where}/{name} is {_describe_mode_and_owner(folder, name)}, expected a directory of "
            f"uid {uid}: "
            f"{where}/{other} is used",
            file=sys.stderr,
            flush=True,
        )
        return other
    return name


def _describe_mode_and_owner(folder: int, name: str) -> str:
    """What lies there and whose it is, in words."""
    try:
        fd = open_path_fd_refusing_mount(name, folder)
    except OSError as err:
        return str(err.strerror)
    try:
        status = os.fstat(fd)
        return f"{stat.filemode(status.st_mode)} of uid {status.st_uid}"
    finally:
        os.close(fd)


# --- for root -------------------------------------------------------------------------------------------------------


def make_directories_as_root_reporting_moved(where: str, uid: int = -1, *, move_foreign_aside: bool = False) -> str:
    """As root, make the directory of the user `uid`, or only the one for all users.

    `move_foreign_aside`: what another user made in its place is moved away. Returns a message about that,
    or "". Only one process at a time may do this. Raises OSError.
    """
    folder, message = os.open(where, _DIRECTORY), ""
    try:
        parent = _open_or_make_parent_else_minus_one(folder)
        if parent < 0:
            problem = f"{where}/{PARENT} is {_describe_mode_and_owner(folder, PARENT)}, expected a directory of root"
            if not move_foreign_aside:
                raise OSError(errno.EEXIST, problem)
            _unmount_lazily(folder, PARENT)
            name = f"{PARENT}.moved-aside-{os.urandom(4).hex()}"
            os.rename(PARENT, name, src_dir_fd=folder, dst_dir_fd=folder)
            message = f"{problem}: it is {name} now"
            parent = _open_or_make_parent_else_minus_one(folder)
            if parent < 0:
                raise OSError(errno.EEXIST, "another has made one again", PARENT)
        try:
            if uid >= 0:
                _make_directory_owned_by(parent, str(uid), uid)
        finally:
            os.close(parent)
        return message
    finally:
        os.close(folder)


def _unmount_lazily(folder: int, name: str) -> None:
    """Detach what is mounted on that name, which cannot be moved while something is."""
    import ctypes  # only where somebody has been there

    libc = ctypes.CDLL(None, use_errno=True)
    for _ in range(_MOST_SPARE):
        try:
            os.close(open_path_fd_refusing_mount(name, folder))
            return
        except OSError as err:
            if err.errno != errno.EXDEV or libc.umount2(f"/proc/self/fd/{folder}/{name}".encode(), _DETACH) != 0:
                return


def _open_or_make_parent_else_minus_one(folder: int) -> int:
    """A descriptor of the directory that root alone fills, made where there is none; -1 for anything else there."""
    fd = -1
    try:
        fd = _open_or_make_directory(folder, PARENT, OPEN_TO_ALL)
        status = os.fstat(fd)
        if stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid():
            if stat.S_IMODE(status.st_mode) != OPEN_TO_ALL:
                os.chmod(f"/proc/self/fd/{fd}", OPEN_TO_ALL)
            return fd
    except OSError:
        pass
    if fd >= 0:
        os.close(fd)
    return -1


def _open_or_make_directory(folder: int, name: str, mode: int) -> int:
    try:  # noqa: SIM105 - contextlib is not compiled in
        os.mkdir(name, mode, dir_fd=folder)
    except FileExistsError:
        pass
    return open_path_fd_refusing_mount(name, folder)


def _make_directory_owned_by(parent: int, name: str, uid: int) -> None:
    fd = _open_or_make_directory(parent, name, 0o700)
    try:
        if os.fstat(fd).st_uid != uid:
            os.chown(f"/proc/self/fd/{fd}", uid, -1)
    finally:
        os.close(fd)


def iter_user_files_as_uid_name_fd(
    where: str, ending: str, most_per_directory: int, most_outside: int = MOST_LOOSE, *, subdirectory: str = ""
) -> Generator[tuple[int, str, int], None, None]:
    """Yield (uid, name, descriptor) of every user's files whose names end with `ending`: regular files of the
    user that their name and their directory say.

    Nothing is asked of a file but its facts: the descriptor only names it (dirfd), and is closed
    afterwards. `most_per_directory`: of each directory, the first by name; `most_outside`: of those beside
    the directories, that are looked at. `subdirectory`: only in the directory of that name in each user's.
    Raises OSError when `where` cannot be listed.
    """
    base_fd = os.open(where, _DIRECTORY)
    try:
        mount = mount_id_of(base_fd)
        names = sorted(os.listdir(base_fd))
        if not subdirectory:
            beside = [name for name in names if name.startswith("hpk-") and name.endswith(ending)]
            yield from _iter_regular_files_named_after_owner(base_fd, mount, beside[:most_outside], None)
        for uid, fd in _open_subdirectories(_open_user_directories(base_fd, mount, names), mount, subdirectory):
            try:
                inside = sorted(name for name in os.listdir(fd) if name.endswith(ending))
                yield from _iter_regular_files_named_after_owner(fd, mount, inside[:most_per_directory], uid)
            except OSError:
                continue
            finally:
                os.close(fd)
    finally:
        os.close(base_fd)


def uids_with_shm_files(where: str) -> list[int]:
    """Who may have captures here, by the names and owners of directories and of files beside them."""
    uids = {uid for uid, _, _ in iter_user_files_as_uid_name_fd(where, "", 0)}
    folder = os.open(where, _DIRECTORY)
    try:
        for uid, fd in _open_user_directories(folder, mount_id_of(folder), os.listdir(folder)):
            os.close(fd)
            uids.add(uid)
    finally:
        os.close(folder)
    return sorted(uids)


def _open_user_directories(base_fd: int, mount: str, names: list[str]) -> Iterator[tuple[int, int]]:
    """(uid, descriptor to list) of the users' directories."""
    try:
        parent = open_path_fd_refusing_mount(PARENT, base_fd, mount)
    except OSError:
        parent = -1
    try:
        if parent >= 0 and _is_directory_of(parent, _root_uid()):
            reader = reopen_path_fd(parent, os.O_RDONLY | os.O_DIRECTORY)
            try:
                given = [name for name in os.listdir(reader) if name.isascii() and name.isdigit()]
            finally:
                os.close(reader)
            for name in sorted(given, key=int):
                yield from _open_if_owned_by(parent, mount, name, int(name))
    finally:
        if parent >= 0:
            os.close(parent)
    counts: dict[int, int] = {}
    for name in sorted(name for name in names if name.startswith(PARENT + "-"))[:MOST_LOOSE]:
        uid = name[len(PARENT) + 1 :].split("-")[0]
        # "²" is a digit, of which `int` makes no number.
        if uid.isascii() and uid.isdigit() and len(uid) <= 10 and counts.get(int(uid), 0) < _MOST_SPARE:
            for entry in _open_if_owned_by(base_fd, mount, name, int(uid)):
                counts[int(uid)] = counts.get(int(uid), 0) + 1
                yield entry


def _open_subdirectories(directories: Iterator[tuple[int, int]], mount: str, name: str) -> Iterator[tuple[int, int]]:
    """The directories of that name in those of the users; "": those of the users themselves."""
    for uid, fd in directories:
        if not name:
            yield uid, fd
            continue
        try:
            yield from _open_if_owned_by(fd, mount, name, uid)
        finally:
            os.close(fd)


def _open_if_owned_by(folder: int, mount: str, name: str, uid: int) -> Iterator[tuple[int, int]]:
    try:
        fd = open_path_fd_refusing_mount(name, folder, mount)
    except OSError:
        return
    try:
        if not _is_directory_of(fd, uid):
            return
        reader = reopen_path_fd(fd, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return
    finally:
        os.close(fd)
    yield uid, reader


def _is_directory_of(fd: int, uid: int) -> bool:
    status = os.fstat(fd)
    return stat.S_ISDIR(status.st_mode) and status.st_uid == uid


def _iter_regular_files_named_after_owner(
    folder: int, mount: str, names: list[str], uid: int | None
) -> Iterator[tuple[int, str, int]]:
    for name in names:
        try:
            fd = open_path_fd_refusing_mount(name, folder, mount)
        except OSError:
            continue
        try:
            status = os.fstat(fd)
            owner = status.st_uid
            if stat.S_ISREG(status.st_mode) and uid in (None, owner) and name.startswith(f"hpk-{owner}-"):
                yield owner, name, fd
        finally:
            os.close(fd)
