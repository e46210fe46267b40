"""The agent's process, around the agent."""

from __future__ import annotations

import subprocess
import sys

ENDS = """
import os, signal, socket
from hyperpod_kit.checkpoint.agent import agent_main

NUMBERS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


class Served:
    def __init__(self, trainer, setup):
        pass

    def run(self):
        for number in NUMBERS:
            signal.signal(number, lambda *_: None)


class Last:
    def __del__(self, kill=os.kill, pid=os.getpid(), numbers=NUMBERS):
        for number in numbers:
            kill(pid, number)


last = Last()  # the interpreter has taken its handlers away when it takes this away
agent_main.Agent, agent_main.AgentSetup.from_json = Served, staticmethod(dict)
ours, theirs = socket.socketpair()
theirs.sendall(b"{}\\n")
raise SystemExit(agent_main.main([str(ours.detach())]))
"""


def test_a_signal_at_the_very_end_kills_no_agent_that_has_done_its_work() -> None:
    done = subprocess.run([sys.executable, "-c", ENDS], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


SELDOM_NEEDED = ("concurrent.futures", "datetime", "getpass", "logging", "platform", "subprocess", "uuid")
IMPORTS = f"""
import sys
from hyperpod_kit.checkpoint.agent import agent_main
print(sorted(set({SELDOM_NEEDED}).intersection(sys.modules)))
"""


def test_a_start_waits_for_no_module_that_is_seldom_needed() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORTS], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr
