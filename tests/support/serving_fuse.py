"""A real FUSE daemon in a process of its own, to be killed or stopped. Loaded by conftest.py; as a program it is the
daemon: `serving_fuse.py DIRECTORY TARGET SOURCE SUBTYPE OPTIONS`. After SIGUSR1 (`silence`) it takes requests and
answers none, so that whoever asks waits in D state, out of reach of SIGKILL; after a number on its standard input it
does so when it has answered so many more."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Iterator

CHECKOUT = Path(__file__).parents[2]


@contextlib.contextmanager
def serving_mount(
    path: Path, source: str = "source", subtype: str = "test", options: str = "allow_other"
) -> Iterator[subprocess.Popen[str]]:
    """Show a new directory at `path`; yields the daemon's process, which the test may kill or stop."""
    store = path.parent / f"{path.name}.store"
    store.mkdir(parents=True)
    path.mkdir(parents=True, exist_ok=True)
    daemon = subprocess.Popen(
        [sys.executable, __file__, str(store), str(path), source, subtype, options],
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
    )
    try:
        assert daemon.stdout is not None and daemon.stdout.readline() == "mounted\n"
        yield daemon
    finally:
        with contextlib.suppress(ProcessLookupError):
            daemon.send_signal(signal.SIGCONT)
        daemon.kill()
        daemon.wait(20)
        for stream in filter(None, (daemon.stdin, daemon.stdout)):
            stream.close()
        subprocess.run(["umount", "--lazy", str(path)], check=False, stderr=subprocess.DEVNULL, timeout=20)


def silence(daemon: subprocess.Popen[str]) -> None:
    """Have the daemon answer nothing more; when this returns, it answers nothing."""
    daemon.send_signal(signal.SIGUSR1)
    assert daemon.stdout is not None and daemon.stdout.readline() == "silent\n"


def main(directory: str, target: str, source: str, subtype: str, options: str) -> None:
    from hyperpod_rehearsal.standins.fuse.session import FuseSession, Handler, mount_and_return_fuse_descriptor
    from hyperpod_rehearsal.standins.fuse.wire import FuseRequest, Payload
    from hyperpod_rehearsal.standins.passthrough.filesystem import PassThrough

    silent = threading.Event()

    def fall_silent(*_: object) -> None:
        silent.set()
        os.write(1, b"silent\n")

    signal.signal(signal.SIGUSR1, fall_silent)
    rest: Iterator[None] = itertools.repeat(None)

    def count_from_now() -> None:
        nonlocal rest
        for line in sys.stdin:
            rest = iter([None] * int(line))

    def swallowing(handler: Handler) -> Handler:
        def answer(request: FuseRequest) -> Payload:
            if next(rest, silent) is silent:
                silent.set()
            while silent.is_set():
                time.sleep(3600)
            return handler(request)

        return answer

    threading.Thread(target=count_from_now, daemon=True).start()

    files = PassThrough(directory, None)
    handlers = {opcode: swallowing(handler) for opcode, handler in files.handlers().items()}
    session = FuseSession(
        mount_and_return_fuse_descriptor(source, target, f"fuse.{subtype}", options=options),
        target,
        handlers,
        files.forget,
    )
    session.start()
    os.stat(target)
    print("mounted", flush=True)
    session.wait_until_unmounted()


if __name__ == "__main__":
    main(*sys.argv[1:])
