"""Whether slurmd answers on its TCP port, for many nodes at once. Slurm itself takes SlurmdTimeout (300 s) to notice.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import errno
import selectors
import socket
import time
from typing import Dict, Mapping, Tuple

OPEN = "open"
REFUSED = "refused"
SILENT = "silent"
"""`open`: slurmd accepts. `refused`: the machine answers, slurmd does not (it may be restarting). `silent`: nothing."""

_REFUSALS = (errno.ECONNREFUSED, errno.ECONNRESET)


def reach(addresses: Mapping[str, Tuple[str, int]], timeout: float = 2.0) -> Dict[str, str]:
    """Connect to every (host, port) at the same time; answer per name `open`, `refused` or `silent` within `timeout`.

    Hosts should be numeric or resolvable from a cache: resolving a name may take longer than `timeout`.
    """
    answers = {name: SILENT for name in addresses}
    selector = selectors.DefaultSelector()
    try:
        for name, (host, port) in addresses.items():
            try:
                family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
                sock = socket.socket(family, kind, proto)
            except OSError:
                continue
            sock.setblocking(False)
            code = sock.connect_ex(address)
            if code == errno.EINPROGRESS:
                selector.register(sock, selectors.EVENT_WRITE, name)
            else:
                answers[name] = _word(code)
                sock.close()
        end = time.monotonic() + timeout
        while selector.get_map() and time.monotonic() < end:
            for key, _ in selector.select(max(0.0, end - time.monotonic())):
                sock = key.fileobj  # type: ignore[assignment]
                answers[key.data] = _word(sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
                selector.unregister(sock)
                sock.close()
    finally:
        for key in list(selector.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]
        selector.close()
    return answers


def _word(code: int) -> str:
    if code == 0:
        return OPEN
    return REFUSED if code in _REFUSALS else SILENT
