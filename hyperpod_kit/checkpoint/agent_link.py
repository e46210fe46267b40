"""The trainer's end of its agent: start it, talk to it, notice its death."""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import hyperpod_kit
from hyperpod_kit.checkpoint.agent import shm_paths, shm_slots
from hyperpod_kit.checkpoint.agent.channel import Channel, JsonMessage
from hyperpod_kit.checkpoint.agent.protocol.trainer_channel import (
    AgentEnded,
    AgentEvent,
    Ready,
    StartRefused,
    TrainerMessage,
    parse_agent_event_if_known,
)
from hyperpod_kit.errors import CheckpointError, NotEnoughSharedMemory, RunIsOwned
from hyperpod_kit.untrusted import by_descriptor

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
            raise CheckpointError("the checkpoint agent ended at its start", hint=f"see {self._log}")
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
