"""Many nodes behind one process: real ssh servers on loopback addresses, sound, slow, silent, refusing and lying.

    python lab/programs/fleet_nodes.py DIRECTORY COUNT [KIND]

Writes a client key and the host keys to DIRECTORY, prints one JSON object (where everything is, and what each node is
like) and serves until its standard input ends; with KIND all nodes are of it (`ok`, or one of KINDS). Every node has a
host key of its own; all share one port, each on an address of 127.77.0.0/16. Nothing is simulated below the words that
a node answers with: key exchange, login and channels are ssh's.
"""

from __future__ import annotations

import heapq
import json
import selectors
import socket
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

import paramiko
from paramiko.common import AUTH_FAILED, AUTH_SUCCESSFUL, OPEN_SUCCEEDED


class Kind(NamedTuple):
    """How a node behaves, how many of a thousand do, and whether it must be called healthy."""

    per_mille: int
    healthy: bool
    meaning: str


KINDS: Dict[str, Kind] = {
    "slow": Kind(30, True, "answers after 3 s"),
    "sick": Kind(20, False, "says that a mount is stale"),
    "silent": Kind(20, False, "takes the connection and never says a word"),
    "drip": Kind(5, False, "greets with one byte a second, without end"),
    "hangs": Kind(20, False, "starts the check, which never ends"),
    "mute": Kind(5, False, "opens a channel and never says whether it runs the command"),
    "no-exit": Kind(5, False, "sends its report and never the exit code"),
    "drops": Kind(5, False, "closes the connection when it is asked"),
    "refuses": Kind(10, False, "nobody listens"),
    "no-login": Kind(5, False, "lets nobody in"),
    "other-key": Kind(5, False, "shows a host key that is not its own"),
    "absent": Kind(5, False, "has no program"),
    "impostor": Kind(5, False, "answers with another node's report"),
    "garbage": Kind(3, False, "answers with no JSON"),
    "endless": Kind(3, False, "never stops talking"),
    "deep": Kind(3, False, "sends JSON nested a hundred thousand deep"),
    "huge-number": Kind(3, False, "sends a latency with a thousand digits"),
    "contradicts": Kind(3, False, "says that all is well and exits 1"),
    "optional": Kind(3, False, "says that its stale mount is not required"),
    "elsewhere": Kind(3, False, "has a mount at another path than the configuration says"),
    "escapes": Kind(3, False, "has control characters in its words"),
}
"""All others answer at once that every mount is ok."""


def kind_of_node(index: int, count: int) -> str:
    """What node `index` of `count` is like: each kind at least once where there are enough nodes, spread out."""
    turn = index * 7919 % count  # 7919 is prime: neighbours are not alike
    begin = 0
    for name, kind in KINDS.items():
        share = max(1, round(kind.per_mille * count / 1000))
        if begin <= turn < begin + share:
            return name
        begin += share
    return "ok"


def node_address(index: int) -> str:
    return f"127.77.{index // 250}.{index % 250 + 1}"


def node_instance_id(index: int) -> str:
    return f"i-{index:017x}"


def build_check_report(index: int, kind: str) -> Tuple[int, str]:
    """(exit code, standard output) of the node's own check."""
    mounts: List[Dict[str, Any]] = [
        {
            "name": name,
            "kind": type_,
            "path": path,
            "state": "ok",
            "source": source,
            "detail": "",
            "latency_ms": 1.25,
            "required": True,
            "checked_at": time.time(),
        }
        for name, type_, path, source in (
            ("fsx", "lustre", "/fsx", "10.0.9.1@tcp:/abcdefgh"),
            ("home", "efs", "/efs/trainer", "fs-0123456789abcdef0 via fsap-0123456789abcdef0"),
            ("data", "mountpoint-s3", "/mnt/data", "sagemaker-hyperpod-kit-data/corpus/"),
        )
    ]
    identity = index
    if kind == "impostor":
        identity += 1
    if kind in ("sick", "optional", "escapes"):
        mounts[2].update(state="stale", source="", detail="Transport endpoint is not connected")
    if kind == "optional":
        mounts[2]["required"] = False
    if kind == "escapes":
        mounts[2]["detail"] = "\x1b]0;owned\x07\x1b[2J all\nis\twell\x00"
    if kind == "elsewhere":
        mounts[0]["path"] = "/fsx2"
    text = json.dumps(
        {
            "node": f"ip-{node_address(identity).replace('.', '-')}",
            "instance_id": node_instance_id(identity),
            "bundle_id": "0123456789abcdef",
            "role": "compute",
            "checked_at": time.time(),
            "mounts": mounts,
        }
    )
    if kind == "garbage":
        text = "Segmentation fault"
    if kind == "deep":
        text = "{" + '"mounts": ' + "[" * 100_000
    if kind == "huge-number":
        text = text.replace("1.25", "1" * 5000, 1)
    return int(kind in ("sick", "optional", "escapes", "contradicts")), "Last login: today\n" + text + "\n"


class DelayedCalls:
    """Calls things at their time, in one thread, so that waiting costs nothing."""

    def __init__(self) -> None:
        self._due: List[Tuple[float, int, Callable[[], None]]] = []
        self._changed = threading.Condition()
        self._number = 0
        threading.Thread(target=self._run_due_calls, daemon=True).start()

    def call_later(self, seconds: float, what: Callable[[], None]) -> None:
        with self._changed:
            self._number += 1
            heapq.heappush(self._due, (time.monotonic() + seconds, self._number, what))
            self._changed.notify()

    def _seconds_to_next_call(self) -> Optional[float]:
        if not self._due:
            return None
        return max(0.0, self._due[0][0] - time.monotonic())

    def _run_due_calls(self) -> None:
        while True:
            with self._changed:
                while not self._due or self._due[0][0] > time.monotonic():
                    self._changed.wait(self._seconds_to_next_call())
                what = heapq.heappop(self._due)[2]
            what()


class Session(paramiko.ServerInterface):
    """One login at one node."""

    def __init__(self, world: World, index: int, transport: paramiko.Transport) -> None:
        self._world, self._index, self._transport = world, index, transport
        self._kind = world.kinds[index]

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        welcome = key == self._world.client_key and self._kind != "no-login"
        if welcome:
            return AUTH_SUCCESSFUL
        return AUTH_FAILED

    def get_allowed_auths(self, username: str) -> str:
        return "publickey"

    def check_channel_request(self, kind: str, chanid: int) -> int:
        return OPEN_SUCCEEDED

    def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:
        if self._kind == "mute":
            threading.Event().wait()  # in the thread of this connection alone
        if self._kind == "hangs":
            self._world.kept.append(channel)
        elif self._kind == "slow":
            self._world.later.call_later(3.0, lambda: self._world.submit(self._respond_to_command, channel))
        else:
            self._world.submit(self._respond_to_command, channel)
        return True

    def _respond_to_command(self, channel: paramiko.Channel) -> None:
        try:
            # Nothing may come before the word that the command was begun; after that the client ends its side.
            while channel.recv(65536):
                pass
            if self._kind == "drops":
                self._transport.close()
                return
            if self._kind == "endless":
                # In a thread of its own: it fills its window and waits there for as long as the client listens.
                threading.Thread(target=self._send_endlessly, args=(channel,), daemon=True).start()
                return
            if self._kind == "absent":
                channel.sendall_stderr(b"bash: hyperpod-kit: No such file or directory\n")
                channel.send_exit_status(127)
            else:
                code, text = build_check_report(self._index, self._kind)
                channel.sendall(text.encode())
                if self._kind == "no-exit":
                    self._world.kept.append(channel)
                    channel.shutdown_write()
                    return
                channel.send_exit_status(code)
            channel.close()
        except (OSError, EOFError, paramiko.SSHException):
            pass  # the client has gone

    def _send_endlessly(self, channel: paramiko.Channel) -> None:
        try:
            while True:
                channel.sendall(b'{"mounts": "' + b"x" * 30000)
        except (OSError, EOFError, paramiko.SSHException):
            pass


class World:
    """All nodes. `kinds`: of each, by its index."""

    def __init__(self, directory: Path, count: int, only: str) -> None:
        self.count = count
        self.kinds = [only or kind_of_node(index, count) for index in range(count)]
        self.client_key = paramiko.ECDSAKey.generate()
        self.client_key.write_private_key_file(str(directory / "id_ecdsa"))
        self.later = DelayedCalls()
        self.kept: List[object] = []
        self.port = 0
        self._answers = ThreadPoolExecutor(32)
        self._selector = selectors.DefaultSelector()
        self._keys = [paramiko.ECDSAKey.generate() for _ in range(count)]
        strange = paramiko.ECDSAKey.generate()
        lines = []
        for index in range(count):
            kind = self.kinds[index]
            if kind != "refuses":
                listener = socket.create_server((node_address(index), self.port), backlog=8)
                listener.setblocking(False)
                self.port = listener.getsockname()[1]
                self._selector.register(listener, selectors.EVENT_READ, index)
            shown = self._keys[index]
            if kind == "other-key":
                shown = strange
            lines.append((node_address(index), shown))
        (directory / "known_hosts").write_text(
            "".join(f"[{address}]:{self.port} {key.get_name()} {key.get_base64()}\n" for address, key in lines)
        )

    def submit(self, what: Callable[[paramiko.Channel], None], channel: paramiko.Channel) -> None:
        self._answers.submit(what, channel)

    def accept_forever(self) -> None:
        """Take connections for ever."""
        while True:
            for key, _ in self._selector.select():
                listener: Any = key.fileobj
                try:
                    connection, _ = listener.accept()
                except OSError:
                    continue
                self._start_connection(key.data, connection)

    def _start_connection(self, index: int, connection: socket.socket) -> None:
        kind = self.kinds[index]
        connection.setblocking(True)
        if kind == "silent":
            self.kept.append(connection)
            return
        if kind == "drip":
            self._send_bytes_slowly(connection)
            return
        transport = paramiko.Transport(connection)
        transport.add_server_key(self._keys[index])
        # With an event it does not wait: one thread takes the connections of all nodes.
        transport.start_server(threading.Event(), Session(self, index, transport))

    def _send_bytes_slowly(self, connection: socket.socket) -> None:
        try:
            connection.sendall(b"x\n")
        except OSError:
            return
        self.later.call_later(1.0, lambda: self._send_bytes_slowly(connection))


def main(directory: str, count: str, only: str = "") -> None:
    import logging

    logging.getLogger("paramiko").setLevel(logging.CRITICAL + 1)
    world = World(Path(directory), int(count), only)
    nodes = [
        {"instance_id": node_instance_id(index), "address": node_address(index), "kind": world.kinds[index]}
        for index in range(world.count)
    ]
    print(json.dumps({"port": world.port, "nodes": nodes}), flush=True)
    threading.Thread(target=world.accept_forever, daemon=True).start()
    sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
