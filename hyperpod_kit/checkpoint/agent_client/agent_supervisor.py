"""This rank's agent for as long as the trainer lives: one that dies is started again, one that is silent is ended."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import hyperpod_kit
from hyperpod_kit.checkpoint.agent.protocol.trainer_channel import (
    AgentEnded,
    AgentEvent,
    AgentTrouble,
    Alive,
    Close,
    Connect,
    Fatal,
    PartnerAt,
    Ready,
    RestoreCompleted,
    SaveDurable,
    SaveSkipped,
    Stalled,
    StartRefused,
    TakeOver,
    TrainerMessage,
    parse_agent_event_if_known,
)
from hyperpod_kit.checkpoint.agent.shm import shm_paths, shm_slots
from hyperpod_kit.checkpoint.agent.shm.control_page import Key
from hyperpod_kit.checkpoint.agent.wire.channel import Channel, JsonMessage
from hyperpod_kit.environment import HPK_AGENT_SILENCE
from hyperpod_kit.errors import CheckpointError, NotEnoughSharedMemory, RunIsOwned
from hyperpod_kit.untrusted import by_descriptor

SILENCE = 120.0
"""Seconds without a sign of life until an agent counts as stopped; it gives one every few seconds, but for a minute at
most while it looks for rank 0's. HPK_AGENT_SILENCE sets another number."""

START = 120.0
"""Seconds for an agent to start."""

_PAUSES = (0.0, 1.0, 5.0)
_TICK = 1.0
_MAX_UNDELIVERED = 64


class ReplayedMessages:
    """What the trainer has said that the next agent cannot find in memory."""

    def __init__(self) -> None:
        self._connect: Connect | None = None
        self._partner: PartnerAt | None = None
        self._settle_message: RestoreCompleted | None = None
        self._undelivered: list[SaveSkipped] = []
        self.close: Close | None = None

    def keep_if_needed_by_next_agent(self, message: TrainerMessage) -> None:
        """Keep a message that is about to be sent, if the next agent will have to be sent it again."""
        if isinstance(message, Connect):
            self._connect = message
        elif isinstance(message, PartnerAt):
            self._partner = message
        elif isinstance(message, RestoreCompleted):
            self._settle_message = message
        elif isinstance(message, Close):
            self.close = message

    def add_undelivered_save_skipped(self, message: TrainerMessage) -> None:
        """Keep a `SaveSkipped` that no agent received, for the next one; other kinds are ignored and the
        oldest are dropped."""
        if isinstance(message, SaveSkipped):
            self._undelivered = [*self._undelivered, message][-_MAX_UNDELIVERED:]

    def take_messages_for_next_agent(self) -> list[TrainerMessage]:
        """Return all messages to send to an agent that replaces a dead one, and clear the undelivered
        ones."""
        undelivered, self._undelivered = self._undelivered, []
        messages = (self._connect, self._partner, self._settle_message, TakeOver(), *undelivered, self.close)
        return [message for message in messages if message is not None]


class AgentSupervisor:
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
        self._replayed = ReplayedMessages()
        self._detached = self._final = False
        self._over = threading.Event()
        self._received = threading.Event()
        self._link = AgentLink(setup, self._forward_event_or_replace_agent)
        self._link.listen()

    # --- talking ------------------------------------------------------------------------------------------------

    @property
    def pid(self) -> int:
        """Return the process id of the present agent."""
        return self._link.pid

    @property
    def partner_port(self) -> int:
        """Return the port on which the agent receives other nodes' snapshots; 0 where the run has no
        partners."""
        return self._link.partner_port

    @property
    def ended_cleanly(self) -> bool:
        """Whether the agent has ended by itself, without an error."""
        return self._link.ended_cleanly

    @property
    def shm_folder(self) -> str:
        """Return the directory of shared memory in which the agent's files lie."""
        return str(self._setup["folder"])

    def fileno(self) -> int:
        """Return the descriptor of the socket to the agent."""
        return self._link.fileno()

    def wait_for_ready_port(self, timeout: float = START) -> int:
        """Wait for the agent as `AgentLink.wait_for_ready_port`, start the thread that kills a silent
        agent and return the agent's port."""
        port = self._link.wait_for_ready_port(timeout)
        self._setup = {**self._setup, "again": True, "port": port, "partner_port": self.partner_port}
        limit = float(os.environ.get(HPK_AGENT_SILENCE, SILENCE))
        threading.Thread(target=self._kill_agent_when_silent, args=(limit,), daemon=True, name="hpk-agent").start()
        return port

    def send(self, message: TrainerMessage) -> bool:
        """Send a message to the agent; return whether it was delivered. What the next agent cannot find in
        memory is kept and sent to it after a restart."""
        with self._lock:
            self._replayed.keep_if_needed_by_next_agent(message)
            delivered = self._link.send(message)
            if not delivered:
                self._replayed.add_undelivered_save_skipped(message)
            return delivered

    def detach(self) -> None:
        """Close the connection, so that the agent takes the trainer for dead and continues alone; no agent
        is restarted any more."""
        self._detached = True
        self._link.detach()

    def close_in_forked_child(self) -> None:
        """Close a forked child's copy of the socket and stop supervising; the parent's connection stays
        open."""
        self._detached = True
        self._link.close_in_forked_child()

    def wait_exit(self, timeout: float) -> bool:
        """Wait for the last agent's process to end; False after `timeout` seconds."""
        end = time.monotonic() + timeout
        if not self._detached and not self._over.wait(timeout):
            return False
        return self._link.wait_exit(max(0.0, end - time.monotonic()))

    # --- hearing ------------------------------------------------------------------------------------------------

    def _forward_event_or_replace_agent(self, event: AgentEvent) -> None:
        self._received.set()
        if isinstance(event, AgentEnded):
            threading.Thread(target=self._replace_dead_agent, daemon=True, name="hpk-agent-ended").start()
        elif not isinstance(event, Alive):
            if isinstance(event, SaveDurable) and (self._durable is None or event.key > self._durable):
                # Not what was said before: an agent that dies of the same again and again says that each time.
                self._durable, self._used = event.key, 0
            self._final = self._final or isinstance(event, Fatal)
            self._forward_and_reply(event)

    def _forward_and_reply(self, event: AgentEvent) -> None:
        reply = self._on_event(event)
        if reply is not None:
            self.send(reply)

    def _kill_agent_when_silent(self, silence_limit: float) -> None:
        """Kill an agent without a sign of life for `silence_limit` seconds, and report `Stalled` where the
        kill does not end it.

        It counts its own ticks and not time, so that a trainer that was itself stopped kills nobody.
        """
        silent, link, killed, reported = 0.0, self._link, False, False
        tick = min(_TICK, silence_limit / 4)
        while not self._over.is_set() and not self._detached:
            self._over.wait(tick)
            if self._received.is_set() or link is not self._link:
                self._received.clear()
                if reported:
                    self._forward_and_reply(Stalled(""))
                silent, link, killed, reported = 0.0, self._link, False, False
                continue
            silent += tick
            reason = f"the checkpoint agent (pid {link.pid}) has sent no message for {silent:.0f} s"
            if silent >= silence_limit and not killed:
                killed = True
                self._forward_and_reply(AgentTrouble(f"{reason}: killing it"))
                with contextlib.suppress(ProcessLookupError):
                    os.kill(link.pid, signal.SIGKILL)
            elif silent >= 1.5 * silence_limit and not reported:
                reported = True  # it waits in the kernel, and nobody can take its place while it does
                self._forward_and_reply(Stalled(reason))

    def _replace_dead_agent(self) -> None:
        """Wait for the dead agent's exit and start others in its place while tries remain; report the
        replacement, or `AgentEnded` when there is none. It has a thread of its own."""
        dead = self._link
        dead.wait_exit(START)
        how = dead.exit_description
        reason = f"the checkpoint agent has ended ({how})"
        if not (self._detached or self._final or (self._replayed.close is not None and dead.ended_cleanly)):
            while self._used < self.tries:
                self._over.wait(_PAUSES[min(self._used, len(_PAUSES) - 1)])
                self._used += 1
                if self._start_replacement_agent():
                    self._forward_and_reply(AgentTrouble(f"{reason}; a new agent (pid {self.pid}) has replaced it"))
                    return
            if self._used:
                reason += f", and {self._used} in its place"
        self._over.set()
        self._forward_and_reply(AgentEnded(reason))

    def _start_replacement_agent(self) -> bool:
        try:
            link = AgentLink(self._setup, lambda event: self._handle_event_unless_stale_end(link, event))
        except (CheckpointError, OSError):
            return False
        link.listen()
        try:
            link.wait_for_ready_port(START)
        except CheckpointError:
            link.kill()
            return False
        with self._lock:
            if link.ended.is_set():
                return False
            # From here on the trainer speaks to this one. What it captured before, `again` finds in memory.
            self._link = link
            for message in self._replayed.take_messages_for_next_agent():
                link.send(message)
        return True

    def _handle_event_unless_stale_end(self, link: AgentLink, event: AgentEvent) -> None:
        """Handle an event of `link`, but ignore the end of an agent that is not the current one:
        `_start_replacement_agent` sees it."""
        with self._lock:
            is_current = link is self._link
        if is_current or not isinstance(event, AgentEnded):
            self._forward_event_or_replace_agent(event)


# The trainer's end of its agent: start it, talk to it, notice its death.

_MODULE = "hyperpod_kit.checkpoint.agent.agent_main"
_REFUSALS = {"RunIsOwned": RunIsOwned, "NotEnoughSharedMemory": NotEnoughSharedMemory}


class AgentLink:
    """A running agent. After `listen` `on_event` is called from a thread; `AgentEnded` is its death."""

    def __init__(self, setup: JsonMessage, on_event: Callable[[AgentEvent], None]) -> None:
        local_socket, agent_socket = socket.socketpair()
        name = shm_slots.log_file_name(shm_paths.node_uid(), shm_slots.run_hash(setup["run_id"]), setup["rank"])
        log = os.path.join(setup.get("folder") or shm_paths.ensure_user_directory(), name)
        package = str(Path(hyperpod_kit.__path__[0]).parent)  # the trainer's own release, whatever `current` is by now
        paths = [package, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
        try:
            out = by_descriptor.open_own_or_root_file(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        except OSError as err:
            if err.errno != errno.ENOSPC:
                raise CheckpointError(f"{log} cannot be written: {err.strerror}", hint=f"ls -l {log}") from None
            raise shm_slots.no_space_error(log, err) from None
        try:
            # In a session of its own, and with no descriptor of the trainer's: what waits for the trainer's output
            # or its process group must not wait for the agent. The socket is its standard input: one descriptor less.
            self._process = subprocess.Popen(
                [sys.executable, "-m", _MODULE, "0"],
                stdin=agent_socket.fileno(),
                stdout=out,
                stderr=out,
                start_new_session=True,
                cwd="/",
                env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            )
        finally:
            os.close(out)
            agent_socket.close()
        self.pid = self._process.pid
        self._log = log
        self._channel = Channel(local_socket)
        self._on_event = on_event
        self._ready = threading.Event()
        self.ended = threading.Event()
        self.partner_port = 0
        """Where the agent takes other nodes' captures."""
        self._hello: Ready | StartRefused | None = None
        self._channel.send(setup)

    def listen(self) -> None:
        """Start the thread that receives the agent's messages and passes them on as events. The owner of
        `on_event` must know this link by then."""
        self._channel.start_receiving(self._note_readiness_or_forward_event, self._report_agent_ended)

    def _note_readiness_or_forward_event(self, message: JsonMessage) -> None:
        event = parse_agent_event_if_known(message)
        if isinstance(event, (Ready, StartRefused)):
            self._hello = event
            self._ready.set()
        elif event is not None:
            self._on_event(event)

    def _report_agent_ended(self) -> None:
        self.ended.set()
        self._ready.set()
        self._on_event(AgentEnded("the checkpoint agent has ended"))

    def wait_for_ready_port(self, timeout: float) -> int:
        """Wait until the agent has recovered what was in memory, note its partner port and return the port
        on which it listens for other agents (0 except at rank 0).

        Raises RunIsOwned or NotEnoughSharedMemory where the agent refused to start, CheckpointError
        when it ended or did not start within `timeout` seconds.
        """
        if not self._ready.wait(timeout):
            raise CheckpointError(f"the checkpoint agent did not start within {timeout:g} s", hint=f"see {self._log}")
        hello = self._hello
        if hello is None:
            raise CheckpointError("the checkpoint agent ended during startup", hint=f"see {self._log}")
        if isinstance(hello, StartRefused):
            raise _REFUSALS.get(hello.kind, CheckpointError)(hello.reason, hint=hello.hint)
        self.partner_port = hello.partner_port
        return hello.port

    def send(self, message: TrainerMessage) -> bool:
        """Send a message to the agent; return False when its connection is closed."""
        return self._channel.send(message.to_json())

    def detach(self) -> None:
        """Close the connection, so that the agent takes the trainer for dead and continues alone."""
        self._channel.close()

    def fileno(self) -> int:
        """Return the descriptor of the socket to the agent."""
        return self._channel.fileno()

    def close_in_forked_child(self) -> None:
        """Close a forked child's copy of the socket; the parent's connection stays open."""
        self._channel.close_in_forked_child()

    @property
    def ended_cleanly(self) -> bool:
        """Whether the agent has ended by itself, without an error."""
        return self._process.poll() == 0

    @property
    def exit_description(self) -> str:
        """Describe how the agent ended, for messages: `killed by SIGKILL`, `exit code 1`."""
        code = self._process.poll()
        if code is None:
            return "its connection is closed"
        if code < 0:
            return f"killed by {signal.Signals(-code).name}"
        return f"exit code {code}"

    def kill(self) -> None:
        """Kill the agent's process and wait up to 10 seconds for its end."""
        self._process.kill()
        self.wait_exit(10)

    def wait_exit(self, timeout: float) -> bool:
        """Wait for the agent's process to end and close its connection; return False after `timeout`
        seconds."""
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return False
        self._channel.close()
        return True
