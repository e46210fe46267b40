"""How two agents prove to each other that they have the token of this start of the run, before anything is said.

The hub tells each newcomer a number that nobody has had before; the newcomer answers with one of its own and a proof
over both. Each direction then has a key of its own that follows from both numbers (see untrusted/message_auth.py).
"""

from __future__ import annotations

import json
import socket
from typing import NamedTuple, Optional

from hyperpod_kit.checkpoint.agent.wire.channel import PROTOCOL, MessageSeals
from hyperpod_kit.errors import Untrusted
from hyperpod_kit.untrusted import message_auth, parse
from hyperpod_kit.untrusted.lines import Lines
from hyperpod_kit.untrusted.pending_connections import GREETING

WELCOME, REFUSED = "welcome", "refused"
"""What the hub says first to who has proved who he is: it proves that the hub has the token, too. `refused`: there is
an agent of that rank already."""

PING, PONG = "ping", "pong"
"""Whether an agent is there, and that it is."""


class Hello(NamedTuple):
    """Who wants to come in: the agent of `rank`; `again`: one of the two has taken the place of another."""

    rank: int
    again: bool
    seals: MessageSeals


def build_challenge() -> bytes:
    """Return the first line that the hub sends to a newcomer: protocol and a new nonce."""
    return _encode_fields_without_newline(protocol=PROTOCOL, nonce=message_auth.nonce())


def build_response(key: bytes, challenge_line: bytes, rank: int, again: bool) -> tuple[bytes, MessageSeals]:
    """Return the newcomer's reply to the challenge, and the seals of the connection. Raises ValueError."""
    hub_nonce = _parse_nonce(challenge_line)
    newcomer_nonce = message_auth.nonce()
    return (
        _encode_fields_without_newline(
            protocol=PROTOCOL,
            nonce=newcomer_nonce,
            rank=rank,
            again=again,
            proof=message_auth.proof(key, PROTOCOL, hub_nonce, newcomer_nonce, rank, int(again)),
        ),
        MessageSeals(*_seals_to_and_from_hub(key, hub_nonce, newcomer_nonce, rank)),
    )


def verify_response(key: bytes, challenge_line: bytes, line: bytes, world: int) -> Optional[Hello]:
    """Return who replied `line` to the challenge `challenge_line`; None where the proof of the token is
    missing or wrong."""
    try:
        response = parse.parse_json_object(line, GREETING)
        rank, again = response.get("rank"), response.get("again")
        if type(rank) is not int or not 0 < rank < world or type(again) is not bool:
            return None
        newcomer_nonce, hub_nonce = _parse_nonce(line), _parse_nonce(challenge_line)
    except ValueError:
        return None
    if not message_auth.matches(
        response.get("proof"), message_auth.proof(key, PROTOCOL, hub_nonce, newcomer_nonce, rank, int(again))
    ):
        return None
    up, down = _seals_to_and_from_hub(key, hub_nonce, newcomer_nonce, rank)
    return Hello(rank, again, MessageSeals(down, up))


def perform_newcomer_handshake(
    sock: socket.socket, key: bytes, rank: int, again: bool, timeout: float
) -> Optional[tuple[MessageSeals, Lines]]:
    """Do the newcomer's side of the handshake; return the seals of the connection and the line reader with
    what was read already.

    Returns None when the other side is gone, is somebody else, or refuses.
    """
    lines = Lines(sock, GREETING)
    try:
        challenge_line = lines.receive_line(timeout)
        if challenge_line is None:
            return None
        response, seals = build_response(key, challenge_line, rank, again)
        sock.sendall(response + b"\n")
        line = lines.receive_line(timeout)
        if line is None or parse.parse_json_object(seals.incoming.verify_next(line)).get("op") != WELCOME:
            return None
    except (OSError, ValueError, Untrusted):
        return None
    return seals, lines


def _parse_nonce(line: bytes) -> str:
    message = parse.parse_json_object(line, GREETING)
    if message.get("protocol") != PROTOCOL:
        raise ValueError("another protocol")
    nonce = message.get("nonce")
    if type(nonce) is not str or not 32 <= len(nonce) <= 64:
        raise ValueError("no nonce")
    return nonce


def _seals_to_and_from_hub(
    key: bytes, hub: str, newcomer: str, rank: int
) -> tuple[message_auth.Seal, message_auth.Seal]:
    """Of what the newcomer says, of what the hub says."""
    return (
        message_auth.Seal(message_auth.derive_key(key, PROTOCOL, "to the hub", hub, newcomer, rank)),
        message_auth.Seal(message_auth.derive_key(key, PROTOCOL, "of the hub", hub, newcomer, rank)),
    )


def _encode_fields_without_newline(**fields: object) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode()
