"""A rank as the step sees it: the program itself is forked from a process of the tests that has imported its framework
(tests/support/warm.py), which costs seconds. Signals go on to it, and it ends as the program does.

    warm_rank.py SOCKET PROGRAM [WORD...]
"""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import sys

HANDED_ON = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)


def main(place: str, *words: str) -> int:
    asked = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    asked.connect(f"\0{place}")
    signal.pthread_sigmask(signal.SIG_BLOCK, HANDED_ON)
    request = {"words": words, "env": {**os.environ, "WARM_RANK": str(os.getpid())}, "cwd": os.getcwd()}
    socket.send_fds(asked, [json.dumps(request).encode()], [1, 2])
    (pid,) = struct.unpack("i", asked.recv(4))
    for number in HANDED_ON:
        signal.signal(number, lambda number, _: os.kill(pid, number))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDED_ON)
    (code,) = struct.unpack("i", asked.recv(4))
    if code < 0:
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return int(code)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
