"""Programs as processes that are forked from one which has imported already what they need: mostly torch.

An import of torch costs seconds of processor time, one of a checkpoint agent a fifth of a second, and tests start many
such programs. Each is a real process with an
environment, descriptors, a pid and an end of its own: only that its interpreter was not started for it, so an option of
the interpreter (`-W ignore`) is a variable here (`PYTHONWARNINGS`), and threads are as many as OMP_NUM_THREADS says.
"""

from __future__ import annotations

import array
import atexit
import gc
import importlib
import io
import json
import os
import runpy
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import types
import warnings
from functools import lru_cache
from pathlib import Path
from typing import Any, Mapping, Optional, Sequence, TextIO, Tuple

from tests.support.wait import Deadline

REPOSITORY = Path(__file__).resolve().parents[2]
TORCH = (
    "torch",
    "torch._dynamo",
    "torch.distributed",
    "torch.utils.data",
    "hyperpod_kit.checkpoint.manager",
    "hyperpod_kit.checkpoint.capture.staging",
    "hyperpod_kit.checkpoint.restore.recovered_snapshots",
)
TRANSFORMERS = (*TORCH, "transformers.trainer")
_DESCRIPTORS = 4
_STARTING = threading.Lock()


class Forked:
    """A process that another one, which has imported these modules, was asked for. `words`: the path of a program and
    its arguments; or `-m`, a module and its arguments; or `-c`, the text of a program and its arguments. `descriptors`:
    its standard output and standard error, and its standard input, if it has any."""

    def __init__(
        self,
        words: Sequence[str],
        env: Mapping[str, str],
        *,
        imported: Sequence[str],
        descriptors: Sequence[int],
        cwd: str,
        session: bool = False,
    ) -> None:
        self._end, told = socket.socketpair()
        request = {"words": list(words), "env": dict(env), "cwd": cwd, "session": session}
        with told:
            output, errors, *standard_input = descriptors
            fds = array.array("i", [output, errors, told.fileno(), *standard_input])
            ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)]
            zygote(imported).sendmsg([json.dumps(request).encode()], ancillary)
        self.pid = self._number()
        self.returncode: Optional[int] = None
        self._ended = threading.Lock()

    def _number(self) -> int:
        data = self._end.recv(4)
        if not data:
            raise AssertionError("the process that has imported what the program needs is gone")
        return int(struct.unpack("i", data)[0])

    def poll(self) -> Optional[int]:
        if self.returncode is None and select.select([self._end], [], [], 0)[0]:
            self._end_of_it()
        return self.returncode

    def has_ended_within(self, seconds: float) -> bool:
        """Whether it has ended, at the latest so long from now."""
        if self.returncode is None:
            select.select([self._end], [], [], seconds)
        return self.poll() is not None

    def wait(self, timeout: float = 200.0) -> int:
        """As subprocess has it: below 0 is a signal. Raises TimeoutExpired."""
        if self.returncode is None:
            deadline = Deadline(timeout)
            while not select.select([self._end], [], [], min(1.0, timeout))[0]:
                if not deadline.has_passed():
                    continue
                raise subprocess.TimeoutExpired("a program", timeout)
            self._end_of_it()
        assert self.returncode is not None
        return self.returncode

    def _end_of_it(self) -> None:
        """How it ended is told once, and several threads may wait for it."""
        with self._ended:
            if self.returncode is None:
                self.returncode = self._number()

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Program(Forked):
    """Its standard output is `stdout`, a pipe; its standard error goes there too with `both`, else to the tests'."""

    def __init__(
        self,
        words: Sequence[str],
        env: Mapping[str, str],
        *,
        imported: Sequence[str] = TORCH,
        cwd: Optional[Path] = None,
        both: bool = False,
    ) -> None:
        reader, writer = os.pipe()
        self.stdout: TextIO = os.fdopen(reader)
        try:
            descriptors = [writer, writer if both else 2]
            super().__init__(words, env, imported=imported, descriptors=descriptors, cwd=str(cwd or os.getcwd()))
        finally:
            os.close(writer)


def run(words: Sequence[str], env: Mapping[str, str], **how: Any) -> subprocess.CompletedProcess[str]:
    """To its end; what it wrote to standard output is `stdout`."""
    program = Program(words, env, **how)
    with program.stdout:
        said = program.stdout.read()
    return subprocess.CompletedProcess(list(words), program.wait(), said, "")


def zygote(imported: Sequence[str]) -> socket.socket:
    """Where a process that has imported these is asked for a program: a JSON object with `words`, `env` and `cwd`,
    perhaps with `session` for one of its own, and three or four descriptors: for its output, for its errors, to tell
    its pid and its end, and for its input. Threads that ask at the same time are given the same one."""
    with _STARTING:
        return _start_zygote(tuple(imported))


@lru_cache(maxsize=None)
def _start_zygote(imported: Tuple[str, ...]) -> socket.socket:
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with its:
        code = f"import sys; sys.path[:] = {sys.path!r}; from tests.support import warm; warm.serve({its.fileno()})"
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        process = subprocess.Popen(
            [sys.executable, "-c", code, *imported], env=environment, cwd=REPOSITORY, pass_fds=[its.fileno()]
        )
    atexit.register(process.wait)
    atexit.register(ours.close)
    return ours


def serve(descriptor: int) -> None:
    """Be the process that has imported the modules of the command line, until nobody can ask any more."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for module in sys.argv[1:]:
            importlib.import_module(module)
    gc.freeze()
    requests = socket.socket(fileno=descriptor)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # who keeps a program tells of its end
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        data, fds, _, _ = socket.recv_fds(requests, 1 << 20, _DESCRIPTORS)
        if not data:
            return
        if os.fork() == 0:
            requests.close()
            _keep(json.loads(data), fds)
            return  # as the program, whose end is an interpreter's
        for fd in fds:
            os.close(fd)


def _keep(request: Mapping[str, Any], fds: Sequence[int]) -> None:
    """Start the program, tell its pid and its end; returns in the program alone, after its last line."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    out, err, told, *standard_input = fds
    pid = os.fork()
    if pid:
        for fd in (out, err, *standard_input):
            os.close(fd)
        os.write(told, struct.pack("i", pid))
        status = os.waitpid(pid, 0)[1]
        with open(told, "wb", buffering=0) as end:
            end.write(struct.pack("i", os.waitstatus_to_exitcode(status)))
        os._exit(0)
    if request.get("session"):
        os.setsid()
    with open(os.devnull) as nothing:
        os.dup2(standard_input[0] if standard_input else nothing.fileno(), 0)
    os.dup2(out, 1)
    os.dup2(err, 2)
    for fd in fds:
        os.close(fd)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    _be(request["words"])


def _be(words: Sequence[str]) -> None:
    if "PYTHONWARNINGS" in os.environ:
        warnings.simplefilter(os.environ["PYTHONWARNINGS"])  # type: ignore[arg-type]
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(int(os.environ.get("OMP_NUM_THREADS", os.cpu_count() or 1)))
    sys.path[:0] = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    assert isinstance(sys.stdout, io.TextIOWrapper)
    sys.stdout.reconfigure(line_buffering=True)
    if words[0] == "-m":
        sys.argv = list(words[1:])
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        return
    # Not runpy's, whose module is gone before what was registered for the end is called.
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    if words[0] == "-c":
        sys.argv = ["-c", *words[2:]]
        text = words[1]
    else:
        sys.argv = list(words)
        sys.path.insert(0, os.path.dirname(words[0]))
        main.__file__ = words[0]
        text = Path(words[0]).read_text()
    exec(compile(text, words[0], "exec"), main.__dict__)
