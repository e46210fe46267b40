"""The agent's process: what the trainer starts beside each rank."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import traceback
from typing import List

from hyperpod_kit import descriptors
from hyperpod_kit.checkpoint.agent.agent import Agent
from hyperpod_kit.checkpoint.agent.persist.priority import lower_cpu_and_io_priority
from hyperpod_kit.checkpoint.agent.protocol.setup import AgentSetup
from hyperpod_kit.checkpoint.agent.protocol.trainer_channel import StartRefused
from hyperpod_kit.checkpoint.agent.shm import lock
from hyperpod_kit.checkpoint.agent.wire.channel import Channel
from hyperpod_kit.errors import HyperpodKitError


def _print_traceback_and_exit_process() -> None:
    """A thread that dies takes the agent with it: the trainer starts another one, and a save never hangs in silence."""
    try:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(70)


def main(argv: List[str]) -> int:
    """`python -m hyperpod_kit.checkpoint.agent.agent_main FD`: serve the trainer at that socket."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    lower_cpu_and_io_priority()
    descriptors.raise_soft_limit_to_hard()
    trainer = Channel(socket.socket(fileno=int(argv[0])))
    setup_message = trainer.receive()
    if setup_message is None:
        return 0
    try:
        agent = Agent(trainer, AgentSetup.from_json(setup_message))
    except (HyperpodKitError, OSError) as err:
        trainer.send(StartRefused(type(err).__name__, str(err), getattr(err, "hint", None)).to_json())
        return 1
    threading.excepthook = lambda what: _print_traceback_and_exit_process()
    try:
        agent.run()
    except BaseException:
        # Not by an exception: the interpreter's end would wait for threads that without memory never begin.
        _print_traceback_and_exit_process()
    # Python takes its handlers away before it has ended: a signal then would kill an agent that has done its work, and
    # the trainer would start another one, which waits for the agents of other ranks that have gone.
    for number in (signal.SIGTERM, signal.SIGUSR1, lock.STOP):
        signal.signal(number, signal.SIG_IGN)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
