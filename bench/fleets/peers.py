"""The agents of all ranks but 0, in one process: they greet, report and obey over loopback as agents do.

    python bench/fleets/peers.py PORT TOKEN WORLD RUN_ID ROOT     (started by agents.py)

Reads orders of the simulation from standard input, one a line, and answers each with one line of JSON: bytes sent and
received. Their own work is no part of what is measured; it takes the same cores.
"""

from __future__ import annotations

import json
import socket
import sys
from typing import Any, Callable, Dict, List, Tuple

import model

from hyperpod_kit import descriptors
from hyperpod_kit.checkpoint.agent import greeting
from hyperpod_kit.checkpoint.agent.channel import Sealed
from hyperpod_kit.checkpoint.agent.protocol.rank_channel import RankCaptured, RankDone, RankPersisted, RankSealed
from hyperpod_kit.untrusted.lines import Lines

NODE = 8


class Peer:
    """One agent's connection; sends and receives what Channel would, and counts it."""

    def __init__(self, port: int, token: str, rank: int) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port), timeout=60)
        met = greeting.greet(self.sock, token.encode(), rank, False, 60)
        if met is None:
            raise SystemExit(f"rank {rank} was not let in")
        self.sock.settimeout(600)
        self.seals: Sealed = met[0]
        self.lines: Lines = met[1]
        self.lines.most = 1 << 28

    def send(self, said: Dict[str, Any]) -> int:
        data = self.seals.said.sealed(json.dumps(said, separators=(",", ":")).encode()) + b"\n"
        self.sock.sendall(data)
        return len(data)

    def receive(self, op: str) -> int:
        """Wait for that order; bytes received."""
        size = 0
        while True:
            line = self.lines.next(600)
            if line is None:
                raise SystemExit("rank 0's agent is gone")
            size += len(line) + 1
            if json.loads(self.seals.heard.opened(line))["op"] == op:
                return size


class Fleet:
    def __init__(self, port: int, token: str, world: int, run_id: str, root: str) -> None:
        self.world, self.run_id, self.root = world, run_id, root
        self.peers: Dict[int, Peer] = {}
        self._port, self._token = port, token
        self._kept: Dict[Tuple[int, int], Any] = {}

    def join(self) -> Tuple[int, int]:
        for rank in range(1, self.world):
            self.peers[rank] = Peer(self._port, self._token, rank)
        return 0, 0

    def everybody(self, say: Callable[[int], Dict[str, Any]], op: str) -> Tuple[int, int]:
        sent = sum(peer.send(say(rank)) for rank, peer in self.peers.items())
        return sent, sum(peer.receive(op) for peer in self.peers.values())

    def captured(self, seq: int) -> Tuple[int, int]:
        return self.everybody(lambda rank: RankCaptured(model.key(seq), False, None).to_json(), "persist")

    def sealed(self, seq: int) -> Tuple[int, int]:
        return self.everybody(lambda rank: RankSealed(model.key(seq)).to_json(), "sealed")

    def persisted(self, seq: int) -> Tuple[int, int]:
        def say(rank: int) -> Dict[str, Any]:
            report = model.report(rank, self.world, seq, self.run_id, self.root)
            return RankPersisted(model.key(seq), report.to_json(pieces=seq == 1)).to_json()

        return self.everybody(say, "committed")

    def death(self, seq: int) -> Tuple[int, int]:
        """A node's ranks are gone, in the middle of a save."""
        for rank in list(self.peers)[-NODE:]:
            self.peers.pop(rank).sock.close()
        return 0, sum(peer.receive("failed") for peer in self.peers.values())

    def end(self) -> Tuple[int, int]:
        return self.everybody(lambda rank: RankDone().to_json(), "bye")


def main(words: List[str]) -> None:
    descriptors.raise_limit()
    fleet = Fleet(int(words[0]), words[1], int(words[2]), words[3], words[4])
    for line in sys.stdin:
        name, *numbers = line.split()
        sent, received = getattr(fleet, name)(*map(int, numbers))
        print(json.dumps({"sent": sent, "received": received}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
