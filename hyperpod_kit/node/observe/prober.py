"""The program that touches mounts: `python3 -I -S prober.py NAME MODE PATH [MODE PATH …]`, answers to descriptor 1.

A program of its own, so that a process with threads never forks itself to look at a mount. It starts one process for
each path and ends at once: those are nobody's children to wait for. Each says, with one write a line:
    B <index> <pid>                                 before it touches anything
    L <index> <errno> <operation> <flags> <bytes> <available> <inodes> <available inodes> <microseconds>
                                                    once stat and statvfs have answered
    D <index> <errno> <operation>                   at the end, when MODE has letters: `l` list, `w` write

Imports nothing that is not compiled in: it runs for every health check.
Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import errno
import os
import sys
import time

OPERATIONS = ("stat", "statvfs", "list", "write")
"""What `operation` in an answer counts: the one that failed."""

OUTPUT_DESCRIPTOR = 1

OBSTRUCTED = (errno.EEXIST, errno.EISDIR, errno.ENOTDIR, errno.ENOTEMPTY, errno.ELOOP)
"""What somebody else's thing in the place of the probe's file answers: it says nothing about the mount."""


def main() -> None:
    keep_only_output_descriptor(OUTPUT_DESCRIPTOR)
    name, rest = sys.argv[1], sys.argv[2:]
    for index in range(len(rest) // 2):
        if os.fork() == 0:
            try:
                os.setsid()
                probe_and_report(index, name, rest[2 * index], rest[2 * index + 1])
            finally:
                os._exit(0)
    os._exit(0)


def keep_only_output_descriptor(answers: int) -> None:
    """Keep nothing of the caller's but the pipe for the answers, which becomes descriptor ANSWERS."""
    os.dup2(answers, OUTPUT_DESCRIPTOR)
    null = os.open("/dev/null", os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 2)
    # What the caller was given without close-on-exec, slurmd's pipes for one, must not hang with us.
    for descriptor in os.listdir("/proc/self/fd"):
        if int(descriptor) > 2:
            try:  # noqa: SIM105 - contextlib is not compiled in
                os.close(int(descriptor))
            except OSError:  # the one that listed them
                pass
    # The caller's directory may be on the mount that hangs.
    os.chdir("/")
    os.umask(0o077)


def probe_and_report(index: int, name: str, mode: str, path: str) -> None:
    os.write(OUTPUT_DESCRIPTOR, b"B %d %d\n" % (index, os.getpid()))
    number = operation = flags = size = available = inodes = free_inodes = 0
    started_at = time.monotonic()
    try:
        if os.stat(path).st_nlink == 0:
            # Removed on its server, and some clients do not tell: whatever is made in it is ENOENT for ever.
            raise OSError(errno.ESTALE, "")
        operation = 1
        # Not from a cache: it reaches the server, and the daemon of a FUSE mount, but costs no S3 request.
        file_system = os.statvfs(path)
        flags, size, available = (
            file_system.f_flag,
            file_system.f_blocks * file_system.f_frsize,
            file_system.f_bavail * file_system.f_frsize,
        )
        inodes, free_inodes = file_system.f_files, file_system.f_favail
    except OSError as err:
        number, mode = err.errno or 5, ""
    os.write(
        OUTPUT_DESCRIPTOR,
        b"L %d %d %d %d %d %d %d %d %d\n"
        % (
            index,
            number,
            operation,
            flags,
            size,
            available,
            inodes,
            free_inodes,
            int((time.monotonic() - started_at) * 1e6),
        ),
    )
    if mode:
        os.write(OUTPUT_DESCRIPTOR, b"D %d %d %d\n" % (index, *list_or_write_errno_and_operation(mode, path, name)))


def list_or_write_errno_and_operation(mode: str, path: str, name: str) -> tuple[int, int]:
    """(errno or 0, operation) of list and write."""
    operation = 2
    try:
        if "l" in mode:
            with os.scandir(path) as entries:
                next(entries, None)
        if "w" in mode:
            operation = 3
            write_and_remove_file(path, name)
    except OSError as err:
        return err.errno or 5, operation
    return 0, operation


def write_and_remove_file(folder: str, name: str) -> None:
    """Make a small file, have it stored, and remove it: what mount-s3 allows too (a new name, from the beginning)."""
    handle = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        write_and_remove_with_retries(handle, name)
    finally:
        os.close(handle)


def write_and_remove_with_retries(folder: int, name: str) -> None:
    for pause in (0.02, 0.1, 0.0):
        try:
            return write_and_remove_once(folder, name)
        except OSError as err:
            if err.errno not in OBSTRUCTED:
                raise
            # A person's look at the same moment as the timer's: each is in the other's way for a moment.
            time.sleep(pause)
    # Others may write here too, and one of them has put something there that cannot be taken away. What he cannot
    # foresee he cannot take; the name that he could is kept for the rule, so that nothing is left behind.
    for _ in range(2):
        try:
            return write_and_remove_once(folder, f"{name}.{os.urandom(8).hex()}")
        except OSError as err:
            if err.errno not in OBSTRUCTED:
                raise
    raise FileExistsError(errno.EEXIST, "")


def write_and_remove_once(folder: int, name: str) -> None:
    remove_leftover(folder, name)
    handle = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=folder)
    try:
        try:
            os.write(handle, b"hyperpod-kit\n")
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError:
        remove_leftover(folder, name)
        raise
    try:
        os.unlink(name, dir_fd=folder)
    except OSError as err:
        # The other look has taken it for a leftover, or another user has put something in its place: it was stored.
        if err.errno not in (errno.ENOENT, *OBSTRUCTED):
            raise


def remove_leftover(folder: int, name: str) -> None:
    """Unlink what a prober that was killed, or a write that failed, has left; errors are ignored."""
    try:  # noqa: SIM105 - contextlib is not compiled in
        os.unlink(name, dir_fd=folder)
    except OSError:
        pass


if __name__ == "__main__":
    main()
