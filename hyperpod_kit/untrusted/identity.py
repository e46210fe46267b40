"""Whether a file or directory is this process's user's, on the file system where it lies.

Some file systems give everything that is made there to a user of their own: an access point of EFS, a client of S3, an
NFS export that squashes root. Who this process is there, a file that it makes there shows.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import os
import stat

from hyperpod_kit.errors import UntrustedPlace

_PROBE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def require_user_owned(facts: os.stat_result, path: str, probe_directory_fd: int, *, root_too: bool = True) -> None:
    """Raises Untrusted unless it is this user's, or root's. `folder`: a descriptor of a directory of the same file
    system in which this user may make files; `path`: for the message."""
    user_id = os.geteuid()
    if facts.st_uid == user_id or (root_too and facts.st_uid == 0):
        return
    if facts.st_dev == os.fstat(probe_directory_fd).st_dev and facts.st_uid == probe_uid_of_created_files(
        probe_directory_fd
    ):
        return
    if stat.S_ISDIR(facts.st_mode):
        kind = "a directory"
    else:
        kind = "a file"
    raise foreign_error(facts, path, kind)


def require_own_or_root_regular_file(
    facts: os.stat_result, path: str, probe_directory_fd: int, *, single_link: bool
) -> None:
    """Raises Untrusted unless it is a regular file of this user's, or root's; `one_name`: that has no other name.
    `folder`, `path`: as for `require_user_owned`."""
    if not stat.S_ISREG(facts.st_mode):
        raise not_regular_error(path)
    require_user_owned(facts, path, probe_directory_fd)
    if single_link and facts.st_nlink > 1:
        raise UntrustedPlace(f"{path} has {facts.st_nlink} names, expected 1", hint=f"ls -l {path}")


def not_regular_error(path: str) -> UntrustedPlace:
    """The error for what lies in the place of a file."""
    return UntrustedPlace(f"{path} is not a regular file", hint=f"ls -ld {path}")


def probe_uid_of_created_files(directory_fd: int) -> int:
    """The uid that a file has which this process makes in that directory; its own where it can make none."""
    name = f".hpk-owner-{os.urandom(8).hex()}"
    try:
        handle = os.open(name, _PROBE, 0o600, dir_fd=directory_fd)
    except OSError:
        return os.geteuid()
    try:
        return os.fstat(handle).st_uid
    finally:
        os.close(handle)
        os.unlink(name, dir_fd=directory_fd)


def foreign_error(facts: os.stat_result, path: str, expected: str) -> UntrustedPlace:
    """The error for what is another's, with what and whose it is."""
    return UntrustedPlace(
        f"{path} is {stat.filemode(facts.st_mode)} of uid {facts.st_uid}, expected {expected} of uid {os.geteuid()}",
        hint=f"choose a directory of your own, or have this one removed: ls -ld {path}",
    )
