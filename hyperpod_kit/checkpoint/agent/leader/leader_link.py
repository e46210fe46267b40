"""An agent's way to the agent of rank 0, which decides: here, or at the other end of a connection."""

from __future__ import annotations

import threading
from typing import Callable, List, Optional, Sequence, Tuple

from hyperpod_kit.checkpoint.agent.leader.leader import Leader
from hyperpod_kit.checkpoint.agent.process.agent_events import Event, FromLeader, LeaderDisconnected, LeaderSearchEnded
from hyperpod_kit.checkpoint.agent.protocol.rank_channel import RankReport, parse_order_if_known
from hyperpod_kit.checkpoint.agent.protocol.setup import AgentSetup
from hyperpod_kit.checkpoint.agent.wire import rpc
from hyperpod_kit.checkpoint.agent.wire.channel import Channel, JsonMessage


class LeaderLink:
    """`leader` is set in rank 0's agent, `uplink` in the others while they have a connection.

    `seeking`: the connection is lost, and another agent of rank 0 is looked for. `orphaned`: none will come. What is
    heard is put into the queue (`post`).
    """

    def __init__(self, setup: AgentSetup, post: Callable[[Event], None]) -> None:
        self._setup, self._post = setup, post
        self._addresses: List[Tuple[str, int]] = []
        self.leader: Optional[Leader] = None
        self.uplink: Optional[Channel] = None
        self.seeking = self.orphaned = False

    def report(self, report: RankReport) -> None:
        """Give a report to rank 0's agent, which may be this one."""
        if self.leader is not None:
            self.leader.on_report(0, report)
        elif self.uplink is not None:
            self.uplink.send(report.to_json())

    def post_order(self, body: JsonMessage) -> None:
        """Parse an order and put it into the queue. Called in the thread that receives."""
        order = parse_order_if_known(body)
        if order is not None:
            self._post(FromLeader(order))

    def connect_or_describe_failure(self, addresses: Sequence[Tuple[str, int]]) -> str:
        """Connect to rank 0's agent; return the addresses that did not answer, as text, "" when there is a
        connection."""
        if self.leader is not None:
            return ""
        self._addresses = list(addresses)
        setup = self._setup
        self._set_uplink_and_start_receiving(
            rpc.connect_to_leader(self._addresses, setup.token, setup.rank, again=setup.again)
        )
        if self.uplink is not None:
            return ""
        return ", ".join(f"{host} port {port}" for host, port in self._addresses)

    def _set_uplink_and_start_receiving(self, uplink_or_none_if_unreachable: Optional[Channel]) -> None:
        self.uplink = uplink_or_none_if_unreachable
        if uplink_or_none_if_unreachable is not None:
            uplink_or_none_if_unreachable.start_receiving(self.post_order, lambda: self._post(LeaderDisconnected()))

    @property
    def has_leader_addresses(self) -> bool:
        """Whether there is a place where another agent of rank 0 would listen."""
        return bool(self._addresses)

    def start_search(self) -> None:
        """Start a thread that looks for another agent of rank 0; its result is posted as LeaderSearchEnded."""
        self.seeking = True
        threading.Thread(target=self._search, daemon=True).start()

    def _search(self) -> None:
        setup = self._setup
        uplink = rpc.connect_to_leader(self._addresses, setup.token, setup.rank, again=True, deadline=rpc.REJOIN)
        self._post(LeaderSearchEnded(uplink))

    def end_search(self, uplink: Optional[Channel]) -> None:
        """The search is over; without `uplink` nobody came."""
        self.seeking = False
        self.orphaned = uplink is None
        self._set_uplink_and_start_receiving(uplink)

    def shorten_peer_timeouts(self) -> None:
        """Shorten the time for which silent agents are waited for: the trainer is gone."""
        if self.leader is not None:
            self.leader.hub.set_dead_peer_timeout(rpc.HURRIED_PEER_TIMEOUT)
            self.leader.membership.hurried = True
        elif self.uplink is not None:
            self.uplink.set_dead_peer_timeout(rpc.HURRIED_PEER_TIMEOUT)
