"""Captures from one node's memory to another's, over TCP: by the token of this start, proved, at a limited rate.

Both sides greet as agents do (see handshake), with a key of its own. Then one request a connection, a sealed line each:

    put   slot, page -> `go` -> the bytes, their proof -> `kept`           an owner's agent to its partner's
    get   key -> `have` with its page -> `go` -> the bytes, their proof    a rank that has lost its memory

The bytes are the non-tensor state and then the image, each piece part of one HMAC; a copy counts only with its proof.
"""

from __future__ import annotations

import hmac
import sys
from typing import Any, Callable, Dict, Iterator, Optional, Protocol, Sequence

from hyperpod_kit.checkpoint.agent.partner import partner_memory
from hyperpod_kit.checkpoint.agent.persist.persist import Pace
from hyperpod_kit.checkpoint.agent.protocol.message import parse_key
from hyperpod_kit.checkpoint.agent.shm.control_page import Key, Page, SlotState, parse_page
from hyperpod_kit.checkpoint.agent.shm.shm_slots import Slot
from hyperpod_kit.checkpoint.agent.wire.wire import Address, Wire, WireServer, connect
from hyperpod_kit.errors import CheckpointError, Untrusted
from hyperpod_kit.untrusted import message_auth

PIECE = 4 << 20
"""Bytes that are sent, proved and paced at a time."""

_SLOTS = 100


class CopyHolder(Protocol):
    """Where a copy of a sealed capture goes."""

    def send_sealed_copy(self, slot: Slot, page: Page) -> None:
        """Send a copy of the slot; return when it is complete there. Raises OSError, CheckpointError."""


def derive_key(token: str) -> bytes:
    return message_auth.derive_key(token.encode(), "partner memory")


def _pieces(view: memoryview) -> Iterator[memoryview]:
    return (view[at : at + PIECE] for at in range(0, len(view), PIECE))


def _mac(key: bytes, page: Page) -> Any:
    return hmac.new(
        message_auth.derive_key(key, "bytes", *page.key, page.origin.rank, page.shard.root), digestmod="sha256"
    )


def _send_capture(wire: Wire, key: bytes, slot: Slot, page: Page, pace: Pace) -> None:
    mac = _mac(key, page)
    wire.send_parts_updating_mac(_pieces(memoryview(slot.read_extra(page.shard.extra_size))), mac, pace)
    wire.send_parts_updating_mac(_pieces(slot.image[: page.shard.size]), mac, pace)
    after = slot.page
    if after is None or after.key != page.key or after.state != SlotState.SEALED:
        raise CheckpointError("the capture was freed while it was read")
    wire.send_message(op="sent", proof=mac.hexdigest())


def _receive_and_seal_capture(wire: Wire, key: bytes, slot: Slot, page: Page) -> None:
    """Receive a capture into a slot that is being written, check its proof and make it SEALED. Raises as Wire."""
    mac = _mac(key, page)
    extra = bytearray(page.shard.extra_size)
    wire.receive_parts_updating_mac(_pieces(memoryview(extra)), mac)
    wire.receive_parts_updating_mac(_pieces(slot.image[: page.shard.size]), mac)
    if not message_auth.matches(wire.receive_expected("sent").get("proof"), mac.hexdigest()):
        raise Untrusted("bytes without their proof: they are not of who greeted, or were changed on their way")
    slot.write_extra(bytes(extra))
    slot.write_page_dated_now(
        page
    )  # a copy is as old as it lies here: the clock of another node means nothing on this one


def _parse_sealed_page(body: Any, run_id: str, rank: int) -> Page:
    """A page that another node sent. Raises CheckpointError, ValueError, TypeError, KeyError."""
    page = parse_page(dict(body))
    if page.state != SlotState.SEALED or page.origin.run_id != run_id or page.origin.rank != rank:
        raise CheckpointError("this is no sealed capture of that rank and run")
    return page


class RemotePartner:
    """The agent at `addresses`, of another node, for captures of `rank`."""

    def __init__(self, addresses: Sequence[Address], token: str, rank: int, pace: Pace) -> None:
        self._addresses, self._key, self._rank, self._pace = tuple(addresses), derive_key(token), rank, pace

    def send_sealed_copy(self, slot: Slot, page: Page) -> None:
        """Send a copy of the slot to the partner, see CopyHolder."""
        wire = connect(self._addresses, self._key, self._rank)
        try:
            wire.send_message(op="put", slot=slot.name.slot, page=page.to_json())
            wire.receive_expected("go")
            _send_capture(wire, self._key, slot, page, self._pace)
            wire.receive_expected("kept")
        except (Untrusted, ValueError) as err:
            raise CheckpointError(str(err)) from None
        finally:
            wire.close()


def fetch_capture(
    addresses: Sequence[Address], token: str, run_id: str, rank: int, key: Key, make_slot: Callable[[Page], Slot]
) -> None:
    """Fetch that rank's capture into the slot that `make_slot` returns for its page, which is removed on
    failure. Raises OSError, CheckpointError."""
    secret = derive_key(token)
    wire = connect(addresses, secret, rank)
    slot: Optional[Slot] = None
    try:
        wire.send_message(op="get", key=list(key))
        page = _parse_sealed_page(wire.receive_expected("have").get("page"), run_id, rank)
        slot = make_slot(page)
        wire.send_message(op="go")
        _receive_and_seal_capture(wire, secret, slot, page)
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
        self._folder, self._run, self._run_id = folder, run, run_id
        self._key = derive_key(token)
        self._logged_failure = ""
        self._wires = WireServer(self._key, world, self._serve_request, addresses, port, name="partners")
        self.port = self._wires.port

    def _serve_request(self, wire: Wire, rank: int) -> None:
        try:
            request = wire.receive_message()
            if request.get("op") == "put":
                self._receive_copy(wire, rank, request)
            elif request.get("op") == "get":
                self._send_copy(wire, rank, parse_key(request["key"]))
        except Exception as err:  # of a peer: it ends its own connection, and is told of once
            failure = f"a partner's capture (rank {rank}): {type(err).__name__}: {err}"
            if failure != self._logged_failure:
                self._logged_failure = failure
                print(failure, file=sys.stderr, flush=True)
            raise

    def _receive_copy(self, wire: Wire, rank: int, request: Dict[str, Any]) -> None:
        page, number = _parse_sealed_page(request.get("page"), self._run_id, rank), request.get("slot")
        if type(number) is not int or not 0 <= number < _SLOTS:
            raise CheckpointError(f"slot is {str(number)[:80]!r}")
        slot = partner_memory.reserve_slot(self._folder, self._run, page, number, page.shard.extra_size)
        try:
            wire.send_message(op="go")
            _receive_and_seal_capture(wire, self._key, slot, page)
            wire.send_message(op="kept")
        finally:
            slot.close()

    def _send_copy(self, wire: Wire, rank: int, key: Key) -> None:
        slot = partner_memory.find_sealed_copy_or_own_slot(self._folder, self._run, rank, key)
        page = None
        if slot is not None:
            page = slot.page
        if slot is None or page is None:
            raise CheckpointError("it is not here any more")
        try:
            wire.send_message(op="have", page=page.to_json())
            wire.receive_expected("go")  # bytes that followed a line at once would be read with it
            _send_capture(wire, self._key, slot, page, Pace())
        finally:
            slot.close()
