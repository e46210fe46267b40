"""A retention policy that the training script has written itself, carried out in rank 0's process by a thread: the
agent, which deletes by the policies of this package, knows no class of the script's."""

from __future__ import annotations

import math
import threading
import time

from hyperpod_kit.checkpoint.agent.persist.priority import lower_cpu_and_io_priority
from hyperpod_kit.checkpoint.agent.protocol.trainer_channel import AgentEvent, SaveDurable
from hyperpod_kit.checkpoint.agent_client.startup import StartIdentity
from hyperpod_kit.checkpoint.repository import read_back
from hyperpod_kit.checkpoint.repository.policy import Policy
from hyperpod_kit.checkpoint.saves.saves import log

_PATIENCE = 60.0


class UserPolicy:
    """Deletes what `policy` does not keep, each time that a save has become durable, one time after the other.

    A policy that raises, and storage that cannot be read, delete nothing, which is logged once for each text.
    """

    def __init__(self, start: StartIdentity, policy: Policy) -> None:
        self._start, self._policy = start, policy
        self._changed = threading.Condition()
        self._is_requested, self._ended = False, False
        self._last_warning = ""
        self._late = math.inf
        self._thread: threading.Thread | None = None

    def handle_event(self, event: AgentEvent) -> None:
        """Request that the policy be enforced after a durable save, and start the thread for it; returns
        at once."""
        if not isinstance(event, SaveDurable):
            return
        with self._changed:
            self._is_requested = True
            self._changed.notify()
            if self._thread is None:
                self._thread = threading.Thread(target=self._enforce_when_requested, name="hpk-own-policy", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """Wait until a requested deletion is done, for a minute at most."""
        with self._changed:
            self._ended = True
            self._late = time.monotonic() + read_back.SECONDS_AT_END
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(_PATIENCE)
            if self._thread.is_alive():
                log.warning(
                    "the checkpoints that %s does not keep were not deleted within %.0f s",
                    type(self._policy).__name__,
                    _PATIENCE,
                )

    @property
    def _is_past_read_back_deadline(self) -> bool:
        """Whether a read-back would keep the end of the job waiting."""
        return time.monotonic() > self._late

    def _enforce_when_requested(self) -> None:
        from hyperpod_kit.checkpoint.repository import retention
        from hyperpod_kit.checkpoint.repository.store.open import open_store

        lower_cpu_and_io_priority(whole_process=False)
        store = open_store(self._start.root)
        prover = read_back.Prover(store, may_continue=lambda size: not self._is_past_read_back_deadline)
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._is_requested or self._ended)
                if not self._is_requested:
                    return
                self._is_requested = False
            try:
                done = retention.enforce(store, self._policy, self._start.run, prover=prover)
                self._last_warning = ""
                for checkpoint_id, reason in done.damaged:
                    self._warn_unless_repeated(
                        f"checkpoint {checkpoint_id} was read back and differs from what was committed: {reason}"
                    )
            except Exception as err:  # of the script's own class, or of storage: training goes on
                self._warn_unless_repeated(
                    f"{type(self._policy).__name__} has deleted no checkpoint: {type(err).__name__}: {err}"
                )

    def _warn_unless_repeated(self, text: str) -> None:
        if text != self._last_warning:
            log.warning("%s", text)
        self._last_warning = text
