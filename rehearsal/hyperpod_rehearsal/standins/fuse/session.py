"""A mounted FUSE file system: mount(2), the threads that answer the kernel, umount."""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import threading
from typing import Callable, List, Mapping, Optional

from hyperpod_rehearsal.standins.fuse import wire

Handler = Callable[[wire.FuseRequest], wire.Payload]

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOATIME = 1, 2, 4, 1024
MNT_DETACH = 2

_libc = ctypes.CDLL(None, use_errno=True)


class Refusal(OSError):
    """An error number for the kernel and the sentence for the log."""


def mount_and_return_fuse_descriptor(
    source: str, target: str, kind: str, *, options: str = "", flags: int = MS_NOSUID | MS_NODEV
) -> int:
    """Mount `target` and return the descriptor of the kernel's requests. kind: `fuse` or `fuse.<subtype>`.

    options: further mount data such as `allow_other,default_permissions`. Raises OSError.
    """
    descriptor = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    data = f"fd={descriptor},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()}"
    if options:
        data += f",{options}"
    if _libc.mount(
        os.fsencode(source), os.fsencode(target), os.fsencode(kind), ctypes.c_ulong(flags), os.fsencode(data)
    ):
        number = ctypes.get_errno()
        os.close(descriptor)
        raise OSError(number, os.strerror(number), target)
    return descriptor


def unmount(target: str) -> None:
    """Detach `target`; files that are open stay usable until they are closed."""
    _libc.umount2(os.fsencode(target), MNT_DETACH)


class FuseSession:
    """Answers a mount's requests with the handlers of a file system, by opcode.

    A handler raises OSError for the error number to answer; an opcode without a handler is answered ENOSYS, which
    the kernel remembers. `forget(node, count)` is called for nodes that the kernel drops. `report(opcode, error)` sees
    every error but ENOENT.
    """

    def __init__(
        self,
        descriptor: int,
        target: str,
        handlers: Mapping[int, Handler],
        forget: Callable[[int, int], None],
        *,
        threads: int = 4,
        report: Optional[Callable[[int, BaseException], None]] = None,
    ) -> None:
        self._descriptor = descriptor
        self._target = target
        self._handlers = handlers
        self._forget = forget
        self._report = report
        self._threads: List[threading.Thread] = [
            threading.Thread(target=self._serve_requests, name=f"fuse-{number}", daemon=True)
            for number in range(threads)
        ]

    def start(self) -> None:
        """Start the threads that respond to the kernel."""
        for thread in self._threads:
            thread.start()

    def wait_until_unmounted(self) -> None:
        """Wait until the file system is unmounted; SIGTERM and SIGINT unmount it. Main thread only."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: unmount(self._target))
        for thread in self._threads:
            while thread.is_alive():
                thread.join(timeout=1.0)  # bounded, so that signal handlers get their turn
        os.close(self._descriptor)

    def _serve_requests(self) -> None:
        buffer = bytearray(wire.MAX_WRITE + 8192)
        view = memoryview(buffer)
        scratch = memoryview(bytearray(wire.MAX_WRITE))
        while True:
            try:
                length = os.readv(self._descriptor, [buffer])
            except OSError as err:
                if err.errno in (errno.EINTR, errno.EAGAIN, errno.ENOENT):
                    continue
                return  # ENODEV: unmounted
            _, opcode, unique, node, uid, gid, pid, _ = wire.IN_HEADER.unpack_from(buffer)
            body = view[wire.IN_HEADER.size : length]
            if opcode in (wire.FORGET, wire.BATCH_FORGET):
                self._forget_nodes(opcode, node, body)
            elif opcode != wire.INTERRUPT:
                self._handle_and_respond(unique, wire.FuseRequest(opcode, node, uid, gid, pid, body, scratch))

    def _handle_and_respond(self, unique: int, request: wire.FuseRequest) -> None:
        payload: wire.Payload = b""
        number = 0
        try:
            payload = self._call_handler(request)
        except OSError as err:
            number = err.errno or errno.EIO
            if number != errno.ENOENT and self._report is not None:
                self._report(request.opcode, err)
        except Exception as err:  # the kernel must get an answer, whatever broke
            number = errno.EIO
            if self._report is not None:
                self._report(request.opcode, err)
        if number:
            payload = b""
        header = wire.OUT_HEADER.pack(wire.OUT_HEADER.size + len(payload), -number, unique)
        try:
            os.writev(self._descriptor, [header, payload])
        except OSError as err:
            # ENOENT: the caller was interrupted and waits no more; ENODEV: unmounted meanwhile.
            if err.errno not in (errno.ENOENT, errno.ENODEV) and self._report is not None:
                self._report(request.opcode, err)

    def _call_handler(self, request: wire.FuseRequest) -> wire.Payload:
        if request.opcode == wire.INIT:
            return wire.init_reply(request.body)
        if request.opcode == wire.DESTROY:
            return b""
        handler = self._handlers.get(request.opcode)
        if handler is None:
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
        return handler(request)

    def _forget_nodes(self, opcode: int, node: int, body: memoryview) -> None:
        if opcode == wire.FORGET:
            self._forget(node, wire.U64.unpack_from(body)[0])
            return
        for position in range(wire.U32.unpack_from(body)[0]):
            self._forget(*wire.FORGET_ONE.unpack_from(body, 8 + position * wire.FORGET_ONE.size))


def set_process_name(name: str) -> None:
    """Set the name that `ps` and /proc show for this process instead of `python3`."""
    set_name = 15
    _libc.prctl(set_name, os.fsencode(name)[:15], 0, 0, 0)
