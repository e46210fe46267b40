"""The agents of all ranks but 0, in one process: they greet, report and obey over loopback as agents do.

    python lab/programs/fleets/peers.py PORT TOKEN WORLD RUN_ID ROOT     (started by agents.py)

Reads orders of the simulation from standard input, one a line, and answers each with one line of JSON: bytes sent and
received. Their own work is no part of what is measured; it takes the same cores.
"""

from __future__ import annotations

import json
import select
import socket
import sys
from typing import Any, Callable, Dict, List, Tuple

import model

from hyperpod_kit import descriptors
from hyperpod_kit.checkpoint.agent.protocol.rank_channel import (
    RankCaptured,
    RankDone,
    RankPersisted,
    RankSealed,
    RankText,
)
from hyperpod_kit.checkpoint.agent.reports.report_texts import ReportEncoder
from hyperpod_kit.checkpoint.agent.wire import handshake
from hyperpod_kit.checkpoint.agent.wire.channel import MessageSeals
from hyperpod_kit.untrusted.lines import Lines

NODE = 8


class Peer:
    """One agent's connection; sends and receives what Channel would, and counts it."""

    def __init__(self, port: int, token: str, rank: int, encoder: ReportEncoder) -> None:
        self.encoder, self.sent, self.received = encoder, 0, 0
        self.sock = socket.create_connection(("127.0.0.1", port), timeout=60)
        met = handshake.perform_newcomer_handshake(self.sock, token.encode(), rank, False, 60)
        if met is None:
            raise SystemExit(f"rank {rank} was not let in")
        self.sock.settimeout(None)
        self.seals: MessageSeals = met[0]
        self.lines: Lines = met[1]
        self.lines.most = 1 << 28

    def send(self, message: Dict[str, Any]) -> None:
        data = self.seals.outgoing.seal_next(json.dumps(message, separators=(",", ":")).encode()) + b"\n"
        self.sock.sendall(data)
        self.sent += len(data)

    def receive_available(self, op: str) -> bool:
        """Process the messages that have arrived up to the order `op`; return whether it was among them."""
        while True:
            line = self.lines.receive_line_nowait()
            if line is None:
                if self.lines.ended:
                    raise SystemExit("rank 0's agent is gone")
                return False
            self.received += len(line) + 1
            message = json.loads(self.seals.incoming.verify_next(line))
            if message["op"] == "tell":
                key = (message["key"][0], message["key"][1], message["key"][2])
                self.send(
                    RankText(
                        key, message["note"], self.encoder.look_up_text_and_inline_from_now(message["note"])
                    ).to_json()
                )
            elif message["op"] == op:
                return True


class Fleet:
    def __init__(self, port: int, token: str, world: int, run_id: str, root: str) -> None:
        self.world, self.run_id, self.root = world, run_id, root
        self.peers: Dict[int, Peer] = {}
        self._port, self._token = port, token
        self._sent = self._received = 0
        self.reporters = model.Reporters(world, run_id, root)

    def join(self) -> Tuple[int, int]:
        for rank in range(1, self.world):
            self.peers[rank] = Peer(self._port, self._token, rank, self.reporters.encoder)
        return 0, 0

    def send_all_and_wait(self, make_message: Callable[[int], Dict[str, Any]], op: str) -> Tuple[int, int]:
        for rank, peer in self.peers.items():
            peer.send(make_message(rank))
        return self.wait_until_all_received(op)

    def wait_until_all_received(self, op: str) -> Tuple[int, int]:
        """Until all have had that order, doing on the way what else they are asked; bytes sent and received by then."""
        ready = select.epoll()
        pending = {peer.sock.fileno(): peer for peer in self.peers.values()}
        for number in pending:
            ready.register(number, select.EPOLLIN)
        while pending:
            for number, _ in ready.poll():
                if number in pending and pending[number].receive_available(op):
                    del pending[number]
                    ready.unregister(number)
        ready.close()
        sent, received = (
            sum(peer.sent for peer in self.peers.values()),
            sum(peer.received for peer in self.peers.values()),
        )
        self._sent, self._received, before = sent, received, (self._sent, self._received)
        return sent - before[0], received - before[1]

    def captured(self, seq: int) -> Tuple[int, int]:
        return self.send_all_and_wait(
            lambda rank: RankCaptured(model.capture_key(seq), False, None).to_json(), "persist"
        )

    def sealed(self, seq: int) -> Tuple[int, int]:
        return self.send_all_and_wait(lambda rank: RankSealed(model.capture_key(seq)).to_json(), "sealed")

    def persisted(self, seq: int) -> Tuple[int, int]:
        if (
            seq == 1
            and self.world > len(model.parameter_shapes())
            and not self.reporters.is_pattern_as_encoded(self.world - 1)
        ):
            raise SystemExit("the peers do not say what agents say")
        return self.send_all_and_wait(
            lambda rank: RankPersisted(model.capture_key(seq), self.reporters.encode_report(rank, seq)).to_json(),
            "committed",
        )

    def death(self, seq: int) -> Tuple[int, int]:
        """A node's ranks are gone, in the middle of a save."""
        for rank in list(self.peers)[-NODE:]:
            lost_peer = self.peers.pop(rank)
            self._sent, self._received = self._sent - lost_peer.sent, self._received - lost_peer.received
            lost_peer.sock.close()
        return self.wait_until_all_received("failed")

    def end(self) -> Tuple[int, int]:
        return self.send_all_and_wait(lambda rank: RankDone().to_json(), "bye")


def main(arguments: List[str]) -> None:
    descriptors.raise_soft_limit_to_hard()
    fleet = Fleet(int(arguments[0]), arguments[1], int(arguments[2]), arguments[3], arguments[4])
    for line in sys.stdin:
        name, *numbers = line.split()
        sent, received = getattr(fleet, name)(*map(int, numbers))
        print(json.dumps({"sent": sent, "received": received}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
