"""Mount a pass-through file system and leave a daemon behind that serves it."""

from __future__ import annotations

import os
import sys
import syslog
from typing import Optional

from hyperpod_rehearsal.standins.fuse.background import StartFailed, fork_and_serve_mount
from hyperpod_rehearsal.standins.fuse.session import (
    MS_NOATIME,
    MS_NODEV,
    MS_NOSUID,
    MS_RDONLY,
    FuseSession,
    mount_and_return_fuse_descriptor,
    set_process_name,
)
from hyperpod_rehearsal.standins.passthrough.filesystem import PassThrough
from hyperpod_rehearsal.standins.passthrough.identity import PosixIdentity
from hyperpod_rehearsal.standins.passthrough.proxy_state import ProxyState


def serve_directory_as_fuse_mount(
    directory: str,
    target: str,
    *,
    program: str,
    source: str,
    subtype: str,
    squash: Optional[PosixIdentity] = None,
    read_only: bool = False,
    no_atime: bool = False,
    root_squash: bool = False,
    state: Optional[ProxyState] = None,
) -> int:
    """Show `directory` at `target` as file system `fuse.<subtype>` from `source`; returns an exit code.

    With `squash` the file system alone decides what is allowed, as a server does; without, the kernel checks the
    caller's permissions too. `root_squash`: root is nobody. `state`: what the mount helper notes of the mount beside
    /proc/mounts.
    """
    options = "allow_other,default_permissions"
    if squash is not None:
        options = "allow_other"
    flags = MS_NOSUID | MS_NODEV
    if read_only:
        flags |= MS_RDONLY
    if no_atime:
        flags |= MS_NOATIME

    def start() -> FuseSession:
        set_process_name(program)
        os.umask(0)  # the kernel has applied the caller's
        syslog.openlog(program, syslog.LOG_PID, syslog.LOG_DAEMON)
        if state is not None:
            state.write_state_file_and_delete_stale(os.getpid(), sys.argv)
        try:
            files = PassThrough(directory, squash, root_squash=root_squash)
            descriptor = mount_and_return_fuse_descriptor(
                source, target, f"fuse.{subtype}", options=options, flags=flags
            )
        except OSError as err:
            if state is not None:
                state.delete_state_file()
            raise StartFailed(f"{program}: mounting {target} failed: {err.strerror}", 32) from err
        session = FuseSession(descriptor, target, files.handlers(), files.forget)
        session.start()
        return session

    return fork_and_serve_mount(start, target, on_unmounted=state.delete_state_file if state is not None else None)
