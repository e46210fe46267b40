"""`hyperpod-kit node slurm-state`: the unit that slurmctld is bound to where its state is on shared storage.

It waits for the mount, takes the lease, lets slurmctld start, and renews. When the lease is lost, or could not be
renewed for so long that another machine may take it, it kills slurmctld: at once and without a last save. On a cluster
with several controllers it waits for the mount and no more.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import math
import os
import signal
import socket
import sys
from functools import partial
from typing import Any, Callable, Optional

from hyperpod_kit import audit
from hyperpod_kit.errors import NodeError, RunError
from hyperpod_kit.node.machine.context import Node
from hyperpod_kit.node.machine.facts import instance_id_from_metadata_service
from hyperpod_kit.node.observe.check import check_mount
from hyperpod_kit.node.slurm import lease
from hyperpod_kit.node.slurm.state import StateLocation, shared_state_location
from hyperpod_kit.system.bounded_child import NoResponse, call_in_child

UNIT = "slurmctld.service"
RESPONSE_SECONDS = 4.0
"""Seconds for one look at the lease."""


class LeaseKeeper:
    """One run of the unit. `say`: for a person, once for each change."""

    def __init__(self, node: Node, where: StateLocation, report: Callable[[str], None]) -> None:
        self._node = node
        self._where = where
        self._directory = node.paths.under_root(where.lease)
        # Facts that another bundle has kept may lack the id.
        self._local_owner = lease.LeaseOwner(
            node.facts.instance_id or instance_id_from_metadata_service(node.paths), node.facts.node
        )
        self._report = report
        self._last_message = ""
        self._number = 0
        self._count = 0
        self.stopping = False

    def claim(self, within: float = math.inf) -> bool:
        """Wait until the lease can be taken, for `within` seconds at most, and take it; return whether that was done.

        Raises NodeError on a machine that does not know its id.
        """
        lease.require_instance_id(self._local_owner)
        last_beat: Optional[Any] = None
        since = 0.0
        until = self._node.clock.monotonic() + within
        while not self.stopping and self._node.clock.monotonic() < until:
            if not self._is_mount_healthy_or_report():
                last_beat = None
            else:
                try:
                    now = self._run_bounded("look", self._read_lease_status)
                except NodeError as err:
                    self._report_once(err.message)
                    self._node.clock.sleep(2.0)
                    continue
                number, free, word, who = now
                if [number, word] != last_beat:
                    last_beat, since = [number, word], self._node.clock.monotonic()
                if free or self._node.clock.monotonic() - since >= lease.TAKEOVER:
                    self._number = self._run_bounded(
                        "take", partial(lease.try_take_and_delete_older, self._directory, number, self._local_owner)
                    )
                    if self._number:
                        message = f"Slurm's state in {self._where.state} is this machine's"
                        if not free:
                            message += f": {who} has not renewed for {lease.TAKEOVER:g} s"
                        self._report_once(message)
                        if not free:
                            self._record_audit(
                                "took over",
                                f"Slurm's state in {self._where.state}",
                                f"it has not renewed for {lease.TAKEOVER:g} s",
                                who,
                            )
                        return True
                    continue
                self._report_once(
                    f"{who} has Slurm's state: waiting until it has not renewed for {lease.TAKEOVER:g} s, so "
                    "that no two slurmctlds ever write it"
                )
            self._node.clock.sleep(1.0)
        return False

    def owns(self) -> bool:
        """Whether this machine has the lease already. Raises NodeError."""
        return self.owned_since() is not None

    def owned_since(self) -> Optional[float]:
        """When this machine took the lease that it has, Unix seconds; None when it has none. Raises NodeError."""

        def work() -> Optional[float]:
            number = (lease.list_owner_generations(self._directory) or [0])[-1]
            current_owner = None
            if number:
                current_owner = lease.read_owner(self._directory, number)
            if (
                current_owner is None
                or not current_owner.is_same(self._local_owner)
                or not lease.is_free_to_take_at_once(self._directory, number, self._local_owner)
            ):
                return None
            return lease.taken_at(self._directory, number)

        taken = self._run_bounded("look", work)
        if taken is None:
            return None
        return float(taken)

    def wait_for_mount(self) -> None:
        """Wait for the mount alone. Where several controllers share the state, Slurm has them all running and decides
        by its heartbeat in that directory who works on it: a lease would keep those that stand by from starting."""
        while not self.stopping and not self._is_mount_healthy_or_report():
            self._node.clock.sleep(1.0)

    def wait_until_stopped(self) -> None:
        """Wait until `stopping` is set."""
        while not self.stopping:
            self._node.clock.sleep(lease.RENEW)

    def _is_mount_healthy_or_report(self) -> bool:
        status = check_mount(self._node, self._where.mount)
        if not status.healthy:
            message = f"waiting for {self._where.mount.path}, which has Slurm's state: it is {status.state}"
            if status.detail:
                message += f", {status.detail}"
            self._report_once(message)
        return status.healthy

    def _read_lease_status(self) -> Any:
        numbers = lease.list_owner_generations(self._directory)
        number = 0
        if numbers:
            number = numbers[-1]
        current_owner = None
        if number:
            current_owner = lease.read_owner(self._directory, number)
        if current_owner:
            who = f"{current_owner.host} ({current_owner.instance})"
        else:
            who = "a machine that did not write its name"
        return [
            number,
            lease.is_free_to_take_at_once(self._directory, number, self._local_owner),
            lease.read_heartbeat(self._directory, number),
            who,
        ]

    def renew_until_stopped_or_lost(self) -> str:
        """Renew the lease until this is stopped, and return "", or until the lease is lost: then kill slurmctld,
        and return why."""
        last = self._node.clock.monotonic()
        while not self.stopping:
            self._node.clock.sleep(lease.RENEW)
            self._count += 1
            requested_at = self._node.clock.monotonic()
            try:
                if not self._run_bounded(
                    "renew",
                    lambda: lease.write_heartbeat_if_still_owner(self._directory, self._number, str(self._count)),
                ):
                    return self._kill_slurmctld("another machine has taken Slurm's state")
                last = requested_at
            except NodeError as err:
                self._report_once(f"not renewed: {err.message}")
            if self._node.clock.monotonic() - last > lease.KEPT:
                return self._kill_slurmctld(
                    f"Slurm's state could not be renewed for {lease.KEPT:g} s, so another machine may take it"
                )
        return ""

    def release_if_slurmctld_ended(self) -> None:
        """Release the lease if slurmctld has ended here, so that the next machine need not wait."""
        if self._number and not self._is_slurmctld_running():
            self._run_bounded("release", lambda: lease.release(self._directory, self._number))

    def _is_slurmctld_running(self) -> bool:
        return (
            self._node.runner.run(["systemctl", "is-active", "--quiet", UNIT], timeout=20, check=False).returncode == 0
        )

    def _kill_slurmctld(self, reason: str) -> str:
        try:
            self._node.runner.run(["systemctl", "kill", "--signal=KILL", UNIT], timeout=10, check=False)
        except RunError as err:
            reason += f"; {err.message}"
        self._record_audit("killed", UNIT, reason)
        return f"{reason}: slurmctld was killed here"

    def _record_audit(self, action: str, on: str, reason: str, owner: str = "") -> None:
        audit.record_root_action_in_journal(action, on, reason, asked_by="node slurm-state", owner=owner)

    def _run_bounded(self, what: str, work: Callable[[], Any]) -> Any:
        return call_in_child(f"{what} at {self._where.lease}", work, RESPONSE_SECONDS)

    def _report_once(self, message: str) -> None:
        if message != self._last_message:
            self._report(message)
            self._last_message = message


def run_lease_keeper(node: Node) -> int:
    """Run the unit's main program: wait for the mount and the lease, start slurmctld, and renew. Exit code 1
    when the lease was lost: systemd starts it again."""
    where = shared_state_location(node)
    if where is None:
        raise NodeError("this node keeps no Slurm state on shared storage", hint='"slurm": {"state": MOUNT}')

    def say(message: str) -> None:
        print(message, file=sys.stderr, flush=True)

    keeper = LeaseKeeper(node, where, say)

    def stop(*_: Any) -> None:
        keeper.stopping = True

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    several = node.config.controllers > 1
    if several:
        keeper.wait_for_mount()
    else:
        keeper.claim()
    if keeper.stopping:
        return 0
    notify_ready()
    # After a lease that was lost nobody else would: slurmctld is bound to this unit, and was ended with it.
    node.runner.run(["systemctl", "start", "--no-block", UNIT], timeout=10, check=False)
    if several:
        keeper.wait_until_stopped()
        return 0
    reason = keeper.renew_until_stopped_or_lost()
    if reason:
        say(reason)
        return 1
    try:
        keeper.release_if_slurmctld_ended()
    except NoResponse as err:
        say(err.message)
    return 0


def notify_ready() -> None:
    """Tell systemd that what is ordered after this unit may start (sd_notify)."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if address:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
            if address.startswith("@"):
                address = "\0" + address[1:]
            sock.connect(address)
            sock.sendall(b"READY=1")
