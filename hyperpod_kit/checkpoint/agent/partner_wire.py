"""Captures from one node's memory to another's, over TCP: by the token of this start, proved, at a limited rate.

Both sides greet as agents do (see greeting), with a key of its own. Then one request a connection, a sealed line each:

    put   slot, page -> `go` -> the bytes, their proof -> `kept`           an owner's agent to its partner's
    get   key -> `have` with its page -> `go` -> the bytes, their proof    a rank that has lost its memory

The bytes are the non-tensor state and then the image, each piece part of one HMAC; a copy counts only with its proof.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import select
import socket
import sys
import threading
from typing import Any, Callable, Dict, Iterable, Iterator, Optional, Protocol, Sequence, Tuple

from hyperpod_kit.checkpoint.agent import greeting, movement, partner_memory
from hyperpod_kit.checkpoint.agent.control_page import Key, Page, SlotState, page_of
from hyperpod_kit.checkpoint.agent.persist import Pace
from hyperpod_kit.checkpoint.agent.protocol.message import as_key
from hyperpod_kit.checkpoint.agent.rpc import GREET
from hyperpod_kit.checkpoint.agent.shm_slots import Slot
from hyperpod_kit.errors import CheckpointError, Untrusted
from hyperpod_kit.untrusted import listening, parse, proof
from hyperpod_kit.untrusted.lines import Lines
from hyperpod_kit.untrusted.proof import Seal
from hyperpod_kit.untrusted.strangers import Guest, Strangers

PIECE = 4 << 20
"""Bytes that are sent, proved and paced at a time."""

PATIENCE = 30.0
"""Seconds in which nothing came: the other end is gone."""

_LINE = 64 << 10
_SLOTS = 100

Address = Tuple[str, int]


class CopyHolder(Protocol):
    """Where a copy of a sealed capture goes."""

    def put(self, slot: Slot, page: Page) -> None:
        """Returns when the copy is whole there. Raises OSError, CheckpointError."""


def key_of(token: str) -> bytes:
    return proof.derived(token.encode(), "partner memory")


class Wire:
    """One connection whose ends have greeted. Lines and pieces take turns, so none is read into the other."""

    def __init__(self, sock: socket.socket, seals: Any, lines: Lines) -> None:
        self._sock, self._lines = sock, lines
        self._said: Seal = seals.said
        self._heard: Seal = seals.heard
        sock.settimeout(PATIENCE)
        lines.most = _LINE

    def say(self, **said: Any) -> None:
        data = json.dumps(said, separators=(",", ":")).encode()
        self._sock.sendall(self._said.sealed(data) + b"\n")

    def hear(self, op: str) -> Dict[str, Any]:
        """The next line, which has to be that. Raises OSError, Untrusted, ValueError."""
        found = self.heard()
        if found.get("op") != op:
            raise CheckpointError(f"the other end says {str(found.get('why', found.get('op')))[:200]!r}, not {op!r}")
        return found

    def heard(self) -> Dict[str, Any]:
        """The next line. Raises OSError, Untrusted, ValueError."""
        line = self._lines.next(PATIENCE)
        if line is None:
            raise ConnectionError("the other end has gone")
        return parse.json_object(self._heard.opened(line), _LINE)

    def send(self, parts: Iterator[memoryview], mac: Any, pace: Pace) -> None:
        for part in parts:
            pace.take(len(part))
            mac.update(part)
            self._sock.sendall(part)
            movement.moved()  # however long a slow rate takes, it is no standstill

    def receive(self, parts: Iterator[memoryview], mac: Any) -> None:
        for part in parts:
            self._fill(part)
            mac.update(part)

    def send_all(self, data: memoryview) -> None:
        """Bytes that the line before has said the digest of."""
        self._sock.sendall(data)

    def receive_all(self, parts: Iterable[memoryview]) -> None:
        """The same at the other end. Raises OSError."""
        for part in parts:
            self._fill(part)

    def _fill(self, part: memoryview) -> None:
        at = 0
        while at < len(part):
            count = self._sock.recv_into(part[at:])
            if not count:
                raise ConnectionError("the other end has gone")
            at += count

    def close(self) -> None:
        self._sock.close()


def _pieces(view: memoryview) -> Iterator[memoryview]:
    return (view[at : at + PIECE] for at in range(0, len(view), PIECE))


def _mac(key: bytes, page: Page) -> Any:
    return hmac.new(proof.derived(key, "bytes", *page.key, page.origin.rank, page.shard.root), digestmod="sha256")


def _send(wire: Wire, key: bytes, slot: Slot, page: Page, pace: Pace) -> None:
    mac = _mac(key, page)
    wire.send(_pieces(memoryview(slot.extra(page.shard.extra_size))), mac, pace)
    wire.send(_pieces(slot.image[: page.shard.size]), mac, pace)
    after = slot.page
    if after is None or after.key != page.key or after.state != SlotState.SEALED:
        raise CheckpointError("the capture was freed while it was read")
    wire.say(op="sent", proof=mac.hexdigest())


def _receive(wire: Wire, key: bytes, slot: Slot, page: Page) -> None:
    """Into a slot that is being written; it is SEALED when all of it is proved. Raises as Wire."""
    mac = _mac(key, page)
    extra = bytearray(page.shard.extra_size)
    wire.receive(_pieces(memoryview(extra)), mac)
    wire.receive(_pieces(slot.image[: page.shard.size]), mac)
    if not proof.same(wire.hear("sent").get("proof"), mac.hexdigest()):
        raise Untrusted("bytes without their proof: they are not of who greeted, or were changed on their way")
    slot.put_extra(bytes(extra))
    slot.put(page)


def _sane(body: Any, run_id: str, rank: int) -> Page:
    """A page that another node sent. Raises CheckpointError, ValueError, TypeError, KeyError."""
    page = page_of(dict(body))
    if page.state != SlotState.SEALED or page.origin.run_id != run_id or page.origin.rank != rank:
        raise CheckpointError("this is no sealed capture of that rank and run")
    return page


def _met(addresses: Sequence[Address], key: bytes, rank: int) -> Wire:
    """A connection to one of these. Raises ConnectionError."""
    for host, port in addresses:
        try:
            sock = socket.create_connection((host, port), timeout=GREET)
        except (OSError, UnicodeError):
            continue
        # A greeting knows no newcomer of rank 0, which is always its host: here every rank may come.
        met = greeting.greet(sock, key, rank + 1, False, GREET)
        if met is not None:
            return Wire(sock, *met)
        sock.close()
    raise ConnectionError(f"no answer at {', '.join(f'{host} port {port}' for host, port in addresses)}")


class RemotePartner:
    """The agent at `addresses`, of another node, for captures of `rank`."""

    def __init__(self, addresses: Sequence[Address], token: str, rank: int, pace: Pace) -> None:
        self._addresses, self._key, self._rank, self._pace = tuple(addresses), key_of(token), rank, pace

    def put(self, slot: Slot, page: Page) -> None:
        """See CopyHolder."""
        wire = _met(self._addresses, self._key, self._rank)
        try:
            wire.say(op="put", slot=slot.name.slot, page=page.to_json())
            wire.hear("go")
            _send(wire, self._key, slot, page, self._pace)
            wire.hear("kept")
        except (Untrusted, ValueError) as err:
            raise CheckpointError(str(err)) from None
        finally:
            wire.close()


def get(
    addresses: Sequence[Address], token: str, run_id: str, rank: int, key: Key, make: Callable[[Page], Slot]
) -> None:
    """Fetch that rank's capture into the slot that `make` gives for its page. Raises OSError, CheckpointError."""
    secret = key_of(token)
    wire = _met(addresses, secret, rank)
    slot: Optional[Slot] = None
    try:
        wire.say(op="get", key=list(key))
        page = _sane(wire.hear("have").get("page"), run_id, rank)
        slot = make(page)
        wire.say(op="go")
        _receive(wire, secret, slot, page)
    except BaseException as err:
        if slot is not None:
            slot.unlink()
        if isinstance(err, (Untrusted, ValueError, KeyError, TypeError)):
            raise CheckpointError(str(err)) from None
        raise
    finally:
        wire.close()
        if slot is not None:
            slot.close()


class PartnerServer:
    """Takes in other nodes' captures, and gives them out. `port`: where, at each of `addresses`. Raises OSError."""

    def __init__(
        self, folder: str, run: str, run_id: str, token: str, world: int, addresses: Sequence[str], port: int = 0
    ) -> None:
        self._folder, self._run, self._run_id, self._world = folder, run, run_id, world
        self._key = key_of(token)
        self._told = ""
        try:
            listeners, self.port = listening.listen(addresses, port)
        except listening.NoAddress:
            listeners, self.port = listening.listen([listening.ANYWHERE], port)
        self._strangers = Strangers(listeners, most=64, seconds=GREET, welcome=greeting.question)
        threading.Thread(target=self._serve, daemon=True, name="partners").start()

    def _serve(self) -> None:
        while True:
            poll = select.poll()
            for sock in self._strangers.files():
                poll.register(sock, select.POLLIN)
            due = self._strangers.due
            poll.poll(None if due is None else max(1.0, due * 1000.0))
            for guest in self._strangers.arrived():
                self._meet(guest)

    def _meet(self, guest: Guest) -> None:
        hello = None
        with contextlib.suppress(Exception):  # whatever a stranger says ends nothing but his own connection
            hello = greeting.heard(self._key, guest.said, guest.line, self._world + 1)
        if hello is None:
            guest.sock.close()
            return
        guest.sock.setblocking(True)
        wire = Wire(guest.sock, hello.seals, guest.lines)
        threading.Thread(target=self._answer, args=(wire, hello.rank - 1), daemon=True, name="partner").start()

    def _answer(self, wire: Wire, rank: int) -> None:
        try:
            wire.say(op=greeting.WELCOME)
            asked = wire.heard()
            if asked.get("op") == "put":
                self._take(wire, rank, asked)
            elif asked.get("op") == "get":
                self._give(wire, rank, as_key(asked["key"]))
        except Exception as err:  # of a peer: it ends its own connection, and is told of once
            words = f"a partner's capture (rank {rank}): {type(err).__name__}: {err}"
            if words != self._told:
                self._told = words
                print(words, file=sys.stderr, flush=True)
            with contextlib.suppress(OSError):
                wire.say(op="refused", why=str(err)[:200])
        finally:
            wire.close()

    def _take(self, wire: Wire, rank: int, asked: Dict[str, Any]) -> None:
        page, number = _sane(asked.get("page"), self._run_id, rank), asked.get("slot")
        if type(number) is not int or not 0 <= number < _SLOTS:
            raise CheckpointError(f"slot is {str(number)[:80]!r}")
        slot = partner_memory.room_for(self._folder, self._run, page, number, page.shard.extra_size)
        try:
            wire.say(op="go")
            _receive(wire, self._key, slot, page)
            wire.say(op="kept")
        finally:
            slot.close()

    def _give(self, wire: Wire, rank: int, key: Key) -> None:
        slot = partner_memory.find(self._folder, self._run, rank, key)
        page = slot.page if slot is not None else None
        if slot is None or page is None:
            raise CheckpointError("it is not here any more")
        try:
            wire.say(op="have", page=page.to_json())
            wire.hear("go")  # bytes that followed a line at once would be read with it
            _send(wire, self._key, slot, page, Pace())
        finally:
            slot.close()
