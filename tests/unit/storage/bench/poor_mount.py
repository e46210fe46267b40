"""A FUSE mount that refuses what Mountpoint refuses: rename, links, modes, writing to what is there; and keeps no
access times. As a program it is the daemon: `poor_mount.py DIRECTORY TARGET`."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import Iterator

CHECKOUT = Path(__file__).parents[4]


@contextlib.contextmanager
def poor_mount(path: Path) -> Iterator[Path]:
    """Mounted at `path` while the block runs."""
    store = path.parent / f"{path.name}.store"
    for directory in (store, path):
        directory.mkdir()
    daemon = subprocess.Popen(
        [sys.executable, __file__, str(store), str(path)],
        text=True,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
    )
    try:
        assert daemon.stdout is not None and daemon.stdout.readline() == "mounted\n"
        yield path
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=False, stderr=subprocess.DEVNULL, timeout=20)
        daemon.kill()
        daemon.wait(20)
        if daemon.stdout:
            daemon.stdout.close()


def main(directory: str, target: str) -> None:
    from hyperpod_rehearsal.standins.fuse import wire
    from hyperpod_rehearsal.standins.fuse.session import (
        MS_NOATIME,
        FuseSession,
        Handler,
        mount_and_return_fuse_descriptor,
    )
    from hyperpod_rehearsal.standins.fuse.wire import FuseRequest, Payload
    from hyperpod_rehearsal.standins.passthrough.filesystem import PassThrough

    def refused(request: FuseRequest) -> Payload:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    def reading_only(handler: Handler) -> Handler:
        def opened(request: FuseRequest) -> Payload:
            if wire.U32.unpack_from(request.body)[0] & os.O_ACCMODE != os.O_RDONLY:
                return refused(request)
            return handler(request)

        return opened

    files = PassThrough(directory, None)
    handlers = files.handlers()
    for opcode in (wire.RENAME, wire.RENAME2, wire.LINK, wire.SYMLINK, wire.SETATTR):
        handlers[opcode] = refused
    handlers[wire.OPEN] = reading_only(handlers[wire.OPEN])
    session = FuseSession(
        mount_and_return_fuse_descriptor("poor", target, "fuse.poor", options="allow_other", flags=MS_NOATIME),
        target,
        handlers,
        files.forget,
    )
    session.start()
    print("mounted", flush=True)
    session.wait_until_unmounted()


if __name__ == "__main__":
    main(*sys.argv[1:])
