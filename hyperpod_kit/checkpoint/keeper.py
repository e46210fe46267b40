"""This rank's agent for as long as the trainer lives: one that dies is started again, one that is silent is ended."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable

from hyperpod_kit.checkpoint.agent.channel import JsonMessage
from hyperpod_kit.checkpoint.agent.control_page import Key
from hyperpod_kit.checkpoint.agent.protocol.trainer_channel import (
    AgentEnded,
    AgentEvent,
    AgentTrouble,
    Alive,
    Close,
    Connect,
    Fatal,
    PartnerAt,
    RestoreCompleted,
    SaveDurable,
    SaveSkipped,
    Stalled,
    TakeOver,
    TrainerMessage,
)
from hyperpod_kit.checkpoint.agent_link import AgentLink
from hyperpod_kit.environment import HPK_AGENT_SILENCE
from hyperpod_kit.errors import CheckpointError

SILENCE = 120.0
"""Seconds without a sign of life until an agent counts as stopped; it gives one every few seconds, but for a minute at
most while it looks for rank 0's. HPK_AGENT_SILENCE sets another number."""

START = 120.0
"""Seconds for an agent to start."""

_PAUSES = (0.0, 1.0, 5.0)
_TICK = 1.0
_UNHEARD = 64


class SaidBefore:
    """What the trainer has said that the next agent cannot find in memory."""

    def __init__(self) -> None:
        self._connect: Connect | None = None
        self._partner: PartnerAt | None = None
        self._settle: RestoreCompleted | None = None
        self._unheard: list[SaveSkipped] = []
        self.close: Close | None = None

    def note(self, message: TrainerMessage) -> None:
        """It is about to be said."""
        if isinstance(message, Connect):
            self._connect = message
        elif isinstance(message, PartnerAt):
            self._partner = message
        elif isinstance(message, RestoreCompleted):
            self._settle = message
        elif isinstance(message, Close):
            self.close = message

    def unheard(self, message: TrainerMessage) -> None:
        """No agent was there."""
        if isinstance(message, SaveSkipped):
            self._unheard = [*self._unheard, message][-_UNHEARD:]

    def to_the_next(self) -> list[TrainerMessage]:
        """All that is to be said to an agent in the place of a dead one."""
        unheard, self._unheard = self._unheard, []
        said = (self._connect, self._partner, self._settle, TakeOver(), *unheard, self.close)
        return [message for message in said if message is not None]


class AgentKeeper:
    """`on_event` hears what the agent says, and `AgentEnded` when no agent will be there any more; what it gives is the
    answer.

    `tries`: so many agents are started in the place of dead ones, counted from the newest durable save.
    """

    def __init__(self, setup: JsonMessage, on_event: Callable[[AgentEvent], TrainerMessage | None]) -> None:
        """Raises CheckpointError, OSError."""
        self.tries = len(_PAUSES)
        self._setup = setup
        self._on_event = on_event
        self._lock = threading.Lock()
        self._used = 0
        self._durable: Key | None = None
        self._said = SaidBefore()
        self._left = self._final = False
        self._over = threading.Event()
        self._heard = threading.Event()
        self._link = AgentLink(setup, self._hear)
        self._link.listen()

    # --- talking ------------------------------------------------------------------------------------------------

    @property
    def pid(self) -> int:
        """Of the agent that is there now."""
        return self._link.pid

    @property
    def partner_port(self) -> int:
        """Where it takes other nodes' captures; 0 where the run has no partners."""
        return self._link.partner_port

    @property
    def clean(self) -> bool:
        """Whether the agent has ended by itself, without an error."""
        return self._link.clean

    @property
    def folder(self) -> str:
        """Where in shared memory its files lie."""
        return str(self._setup["folder"])

    def fileno(self) -> int:
        """Of the socket."""
        return self._link.fileno()

    def wait_ready(self, timeout: float = START) -> int:
        """See AgentLink.wait_ready. From now on the agent is watched."""
        port = self._link.wait_ready(timeout)
        self._setup = {**self._setup, "again": True, "port": port, "partner_port": self.partner_port}
        limit = float(os.environ.get(HPK_AGENT_SILENCE, SILENCE))
        threading.Thread(target=self._watch, args=(limit,), daemon=True, name="hpk-agent").start()
        return port

    def send(self, message: TrainerMessage) -> bool:
        """Tell the agent; what a dead one did not hear, and the next cannot see in memory, is said to the next."""
        with self._lock:
            self._said.note(message)
            heard = self._link.send(message)
            if not heard:
                self._said.unheard(message)
            return heard

    def let_go(self) -> None:
        """The trainer is gone, as far as the agent is concerned: it goes on alone."""
        self._left = True
        self._link.let_go()

    def leave_to_parent(self) -> None:
        """In a forked child: the socket is the parent's alone."""
        self._left = True
        self._link.leave_to_parent()

    def wait_end(self, timeout: float) -> bool:
        """Wait for the last agent's process to end; False after `timeout` seconds."""
        end = time.monotonic() + timeout
        if not self._left and not self._over.wait(timeout):
            return False
        return self._link.wait_end(max(0.0, end - time.monotonic()))

    # --- hearing ------------------------------------------------------------------------------------------------

    def _hear(self, event: AgentEvent) -> None:
        self._heard.set()
        if isinstance(event, AgentEnded):
            threading.Thread(target=self._ended, daemon=True, name="hpk-agent-ended").start()
        elif not isinstance(event, Alive):
            if isinstance(event, SaveDurable) and (self._durable is None or event.key > self._durable):
                # Not what was said before: an agent that dies of the same again and again says that each time.
                self._durable, self._used = event.key, 0
            self._final = self._final or isinstance(event, Fatal)
            self._tell(event)

    def _tell(self, event: AgentEvent) -> None:
        answer = self._on_event(event)
        if answer is not None:
            self.send(answer)

    def _watch(self, limit: float) -> None:
        """Counts its own ticks, not time: a trainer that was stopped itself has heard nobody, and that is nothing."""
        silent, link, killed, said = 0.0, self._link, False, False
        tick = min(_TICK, limit / 4)
        while not self._over.is_set() and not self._left:
            self._over.wait(tick)
            if self._heard.is_set() or link is not self._link:
                self._heard.clear()
                if said:
                    self._tell(Stalled(""))
                silent, link, killed, said = 0.0, self._link, False, False
                continue
            silent += tick
            why = f"the checkpoint agent (pid {link.pid}) has said nothing for {silent:.0f} s"
            if silent >= limit and not killed:
                killed = True
                self._tell(AgentTrouble(f"{why}: it is killed"))
                with contextlib.suppress(ProcessLookupError):
                    os.kill(link.pid, signal.SIGKILL)
            elif silent >= 1.5 * limit and not said:
                said = True  # it waits in the kernel, and nobody can take its place while it does
                self._tell(Stalled(why))

    def _ended(self) -> None:
        """The agent is gone, in a thread of its own."""
        dead = self._link
        dead.wait_end(START)
        how = dead.how_it_ended
        why = f"the checkpoint agent has ended ({how})"
        if not (self._left or self._final or (self._said.close is not None and dead.clean)):
            while self._used < self.tries:
                self._over.wait(_PAUSES[min(self._used, len(_PAUSES) - 1)])
                self._used += 1
                if self._start():
                    self._tell(AgentTrouble(f"{why}, another one (pid {self.pid}) has taken its place"))
                    return
            if self._used:
                why += f", and {self._used} in its place"
        self._over.set()
        self._tell(AgentEnded(why))

    def _start(self) -> bool:
        try:
            link = AgentLink(self._setup, lambda event: self._hear_of(link, event))
        except (CheckpointError, OSError):
            return False
        link.listen()
        try:
            link.wait_ready(START)
        except CheckpointError:
            link.end()
            return False
        with self._lock:
            if link.gone.is_set():
                return False
            # From here on the trainer speaks to this one. What it captured before, `again` finds in memory.
            self._link = link
            for message in self._said.to_the_next():
                link.send(message)
        return True

    def _hear_of(self, link: AgentLink, event: AgentEvent) -> None:
        """Of one that has not taken over, an end is no news: `_start` sees it."""
        with self._lock:
            known = link is self._link
        if known or not isinstance(event, AgentEnded):
            self._hear(event)
