"""The task of a fan-out on one node: it reads messages of the command that started it, copies, and writes its own.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from typing import Any, Dict, Iterator, List, Mapping, Optional, TextIO

from hyperpod_kit.descriptors import raise_soft_limit_to_hard
from hyperpod_kit.errors import HyperpodKitError, JobError
from hyperpod_kit.job.fan_out import listing, part
from hyperpod_kit.job.fan_out.destination import Destination
from hyperpod_kit.job.fan_out.peers import PeerServer
from hyperpod_kit.untrusted import listening, parse, source_owner

BEAT = 1.0
_LONGEST = 64 << 20


class _Voice:
    """Writes the messages of one task as lines of JSON. Safe for threads."""

    def __init__(self, out: TextIO, task: int) -> None:
        self._out, self._task, self._lock = out, task, threading.Lock()

    def say(self, **fields: Any) -> None:
        with self._lock:
            self._out.write(json.dumps({"task": self._task, **fields}) + "\n")
            self._out.flush()


def main(source: str, target: str, env: Mapping[str, str], input_stream: Optional[TextIO] = None) -> int:
    """Run the task and return its exit code; errors of the copy are written as a message `failed`, not raised."""
    voice = _Voice(sys.stdout, int(env["SLURM_PROCID"]))
    lines = _lines(input_stream or sys.stdin)
    try:
        with source_owner.opening_sources_as_owner_of([source]):
            _run(source, os.path.expandvars(target), env, voice, lines)
    except (HyperpodKitError, OSError, ValueError, KeyError, TypeError) as err:
        voice.say(op="failed", why=str(err) or type(err).__name__, hint=getattr(err, "hint", None))
        return 1
    for message in lines:  # other nodes may still need chunks of this one
        if message.get("op") == "bye":
            break
    return 0


def _lines(input_stream: TextIO) -> Iterator[Dict[str, Any]]:
    for line in input_stream:
        yield parse.parse_json_object(line, _LONGEST)


def _run(source: str, target: str, env: Mapping[str, str], voice: _Voice, lines: Iterator[Dict[str, Any]]) -> None:
    raise_soft_limit_to_hard()
    here, nodes = int(env["SLURM_PROCID"]), int(env["SLURM_NTASKS"])
    rows: List[Any] = []
    message = next(lines, {})
    while message.get("op") == "files":
        rows += message["rows"]
        message = next(lines, {})
    if message.get("op") != "key":
        raise JobError("the command that started this task has gone")
    plan = listing.plan_of(source, listing.from_json(rows))
    node: List[part.FanOutNode] = []
    over = threading.Event()

    def beat() -> None:
        while not over.wait(BEAT):
            counts: Dict[str, int] = {}
            if node:
                counts = node[0].counts._asdict()
            try:
                voice.say(op="far", **counts)
            except OSError:
                os._exit(1)  # the command has gone

    threading.Thread(target=beat, daemon=True).start()
    try:
        copy = Destination(target, plan)
        node.append(part.FanOutNode(plan, copy, here, nodes, lambda reason: voice.say(op="peer", why=reason)))
        key = bytes.fromhex(message["key"])
        addresses = listening.addresses_reachable_from_peers(env.get("SLURMD_NODENAME", ""), message["others"])
        if not addresses:
            addresses = ["127.0.0.1"]
        server = PeerServer(key, nodes, addresses, node[0].chunk_for_peer_reading_if_absent)
        places = [[address, server.port] for address in addresses]
        voice.say(op="hello", node=env.get("SLURMD_NODENAME", ""), places=places)
        message = next(lines, {})
        if message.get("op") != "table":
            raise JobError("the command that started this task has gone")
        node[0].copy_all_chunks(part.table_from(message["rows"], nodes), key)
        voice.say(op="done", **node[0].counts._asdict())
    finally:
        over.set()
