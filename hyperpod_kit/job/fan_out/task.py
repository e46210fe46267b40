"""The task of a fan-out on one node: it reads messages of the command that started it, copies, and writes its own.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from typing import Any, Callable, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Set, TextIO

from hyperpod_kit.descriptors import raise_soft_limit_to_hard
from hyperpod_kit.errors import HyperpodKitError, JobError
from hyperpod_kit.job.fan_out import listing
from hyperpod_kit.job.fan_out.destination import Destination, digest_of
from hyperpod_kit.job.fan_out.listing import CopyPlan, FilePiece
from hyperpod_kit.job.fan_out.peers import ChunkPeer, PeerServer
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
    node: List[FanOutNode] = []
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
        node.append(FanOutNode(plan, copy, here, nodes, lambda reason: voice.say(op="peer", why=reason)))
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
        node[0].copy_all_chunks(table_from(message["rows"], nodes), key)
        voice.say(op="done", **node[0].counts._asdict())
    finally:
        over.set()


# One node of a fan-out: reads its share of the chunks from storage, and gets all others from the nodes that read
# them.
#
# Chunk c belongs to node c mod N. Each node begins with the neighbour behind it, so that all send and receive at
# once. Where a node does not reply, or its bytes do not match their digest, the request goes to the next one, which
# then reads the chunk from storage, once for all that request it. Only where no other node sends it, a node reads it
# itself.
#
# The task exchanges messages with the command that started it over standard input and output, a JSON object a line:
#
#     in    what to copy (rows of files, in several lines), then the table of all nodes with the key; `bye` at the end
#     out   `hello` with an address and port; how far it is, once a second; `done`, or `failed` with the reason

READERS = 2
PULLERS = 8
"""Other nodes to which requests go at a time."""

_MAX_PEER_TRIES = 3
"""Nodes to which the request for a chunk goes before it is read from storage here."""

Address = Sequence[Any]


class Counts(NamedTuple):
    """Bytes of this node: read from storage, received from other nodes, found from an earlier start."""

    read: int
    received: int
    found: int


class FanOutNode:
    """The copy on this node. `say(reason)` is called once for each peer that is given up, with the reason."""

    def __init__(
        self,
        plan: CopyPlan,
        copy: Destination,
        here: int,
        nodes: int,
        say: Callable[[str], None],
    ) -> None:
        self._plan = plan
        self._copy, self._here, self._count, self._say = copy, here, nodes, say
        self._guard = threading.Lock()
        self._busy: Dict[int, threading.Lock] = {}
        self._unavailable_nodes: Set[int] = set()
        self._read = self._received = 0
        self._error: Optional[BaseException] = None

    @property
    def counts(self) -> Counts:
        """The bytes copied so far, by their origin."""
        return Counts(self._read, self._received, self._copy.resumed_bytes)

    def chunk_for_peer_reading_if_absent(self, chunk_number: int) -> tuple[memoryview, str]:
        """Return a chunk for another node and its digest; where it is absent, read it from storage first, once.

        Raises OSError, HyperpodKitError.
        """
        if not 0 <= chunk_number < len(self._plan.pieces):
            raise JobError(f"there is no chunk {chunk_number}")
        self._copy_chunk_from_storage_if_absent(chunk_number)
        data = self._copy.read(chunk_number)
        return data, digest_of(data)

    def copy_all_chunks(self, peer_addresses: Sequence[Optional[Sequence[Address]]], key: bytes) -> None:
        """Copy all chunks, from storage and from the other nodes, and return when every file is complete.

        `peer_addresses`: the addresses of each node, None for one that never started. Raises the first error of a
        thread; JobError where a file is incomplete.
        """
        self._unavailable_nodes |= {number for number, addresses in enumerate(peer_addresses) if addresses is None}
        chunk_numbers = iter(range(self._here, len(self._plan.pieces), self._count))
        peer_numbers = iter([(self._here + step) % self._count for step in range(1, self._count)])

        def reads() -> None:
            for number in self._take_shared_until_error(chunk_numbers):
                self._copy_chunk_from_storage_if_absent(number)

        def pulls() -> None:
            for owner in self._take_shared_until_error(peer_numbers):
                self._pull(range(owner, len(self._plan.pieces), self._count), owner, peer_addresses, key)

        work = [reads] * READERS + [pulls] * min(PULLERS, self._count - 1)
        threads = [threading.Thread(target=self._guarded, args=(worker,), daemon=True) for worker in work]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self._error is not None:
            raise self._error
        if not self._copy.complete:
            raise JobError("some chunks are missing")

    def _take_shared_until_error(self, numbers: Any) -> Any:
        """Yield numbers of an iterator that several threads share, until a thread has failed."""
        while self._error is None:
            with self._guard:
                number = next(numbers, None)
            if number is None:
                return
            yield number

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as err:
            self._error = self._error or err

    # --- a chunk ------------------------------------------------------------------------------------------------

    def _lock_of(self, number: int) -> threading.Lock:
        with self._guard:
            return self._busy.setdefault(number, threading.Lock())

    def _copy_chunk_from_storage_if_absent(self, number: int) -> None:
        with self._lock_of(number):
            if self._copy.has(number):
                return
            data = self._read_piece_from_storage(self._plan.pieces[number])
            self._copy.write_chunk_and_finish_file(number, data)
        with self._guard:
            self._read += len(data)

    def _read_piece_from_storage(self, piece: FilePiece) -> memoryview:
        """Return the bytes of a chunk in the source. Raises JobError where the file has changed meanwhile, OSError."""
        about = self._plan.files[piece.file]
        path = self._plan.source
        if about.path:
            path = os.path.join(self._plan.source, about.path)
        data = memoryview(bytearray(piece.end - piece.begin))
        fd = source_owner.open_nonblocking_as_source_owner(path)
        try:
            at = 0
            while at < len(data):
                got = os.preadv(fd, [data[at:]], piece.begin + at)
                if not got:
                    break
                at += got
            file_status = os.fstat(fd)
        finally:
            os.close(fd)
        if at < len(data) or (file_status.st_size, file_status.st_mtime_ns) != (about.size, about.changed):
            raise JobError(
                f"{path} was changed while it was copied", hint="stop writing to it, then repeat the command"
            )
        return data

    def _pull(
        self, numbers: Sequence[int], owner: int, peer_addresses: Sequence[Optional[Sequence[Address]]], key: bytes
    ) -> None:
        peers: Dict[int, ChunkPeer] = {}
        try:
            for number in numbers:
                if self._error is not None:
                    return
                if self._copy.has(number):
                    continue
                is_received = self._receive_chunk_from_some_peer(number, owner, peers, peer_addresses, key)
                if not is_received:
                    self._copy_chunk_from_storage_if_absent(number)
        finally:
            for peer in peers.values():
                peer.close()

    def _receive_chunk_from_some_peer(
        self,
        number: int,
        owner: int,
        peers: Dict[int, ChunkPeer],
        peer_addresses: Sequence[Optional[Sequence[Address]]],
        key: bytes,
    ) -> bool:
        """Request a chunk from its owner, then from the next nodes; return whether one of them sent it."""
        size = self._plan.pieces[number].end - self._plan.pieces[number].begin
        tries = 0
        for step in range(self._count):
            who = (owner + step) % self._count
            addresses = peer_addresses[who]
            if who == self._here or tries == _MAX_PEER_TRIES:
                return False
            if who in self._unavailable_nodes or addresses is None:
                continue
            tries += 1
            peer = peers.setdefault(
                who, ChunkPeer(key, self._here, [(str(host), int(port)) for host, port in addresses])
            )
            if self._receive_chunk_from_peer(number, size, peer, who):
                return True
        return False

    def _receive_chunk_from_peer(self, number: int, size: int, peer: ChunkPeer, peer_number: int) -> bool:
        """Receive a chunk in two tries at most and write it; return False where the peer is unavailable."""
        for is_second_try in (False, True):
            try:
                data = peer.chunk(number, size)
            except (OSError, HyperpodKitError, ValueError) as err:
                peer.close()
                if is_second_try or isinstance(err, TimeoutError):
                    self._mark_peer_unavailable(peer_number, err)
                    return False
                time.sleep(0.1)
                continue
            with self._lock_of(number):
                if not self._copy.has(number):
                    self._copy.write_chunk_and_finish_file(number, data)
            with self._guard:
                self._received += size
            return True
        return False

    def _mark_peer_unavailable(self, node_number: int, err: Exception) -> None:
        with self._guard:
            is_already_unavailable = node_number in self._unavailable_nodes
            self._unavailable_nodes.add(node_number)
        if not is_already_unavailable:
            self._say(f"node {node_number} is no longer queried: {type(err).__name__}: {err}")


def table_from(rows: Any, nodes: int) -> List[Optional[Sequence[Address]]]:
    """Return the addresses of each node, None for one that has none, from a message of the command.

    Raises ValueError for rows that are no table of that many nodes.
    """
    if not isinstance(rows, list) or len(rows) != nodes:
        raise ValueError("not a table of all nodes")
    addresses_by_node: List[Optional[Sequence[Address]]] = []
    for row in rows:
        if row is None:
            addresses_by_node.append(None)
        else:
            addresses_by_node.append([(str(host), int(port)) for host, port in row])
    return addresses_by_node
