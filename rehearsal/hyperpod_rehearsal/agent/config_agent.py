"""HyperPod's agent of Slurm's configuration, on the controller: it keeps the topology files and rewrites slurm.conf.

That it does both is public (AWS, 2026-04-23: automatic Slurm topology; pull requests 14 and 23 of
aws-samples/sample-physical-ai-scaffolding-kit, which had to write a guard: "the cluster agent rewrites the file"). When
it does so, and how its own lines look afterwards, is assumed: at moments that a seed gives, in another order and with
blank lines.

Standard library only, Python 3.8: this file runs in a node.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import time
from typing import Any, Dict, List, Optional, Sequence, Tuple

from hyperpod_kit.system import atomic_file
from hyperpod_rehearsal.agent.main import is_already_created

RENDERED = "/opt/sagemaker_cluster/rendered"
"""What the platform wants on the controller: slurm.conf, topology.conf, topology.yaml, and agent.json for this."""

SLURM_ETC = "/opt/slurm/etc"
TOPOLOGY = ("topology.conf", "topology.yaml")
MERGE, OVERWRITE = "Merge", "Overwrite"
BEGIN, END = "# BEGIN nodes (kept by the platform)", "# END nodes"
INTERVAL = 1.0


def rewritten(existing: str, rendered: str, strategy: str, draw: random.Random) -> str:
    """slurm.conf as the agent leaves it: its own lines rendered anew, under MERGE those of others behind them.

    Lines of others keep their order. SlurmctldHost names the primary controller first, so its lines keep theirs too.
    """
    settings, nodes = _split_nodes(rendered)
    hosts = [line for line in settings if line.startswith("SlurmctldHost")]
    shuffled = [line for line in settings if line not in hosts]
    draw.shuffle(shuffled)
    lines: List[str] = []
    for line in [*hosts, *shuffled]:
        lines += [line, *[""] * draw.choice((0, 0, 0, 1))]
    lines += nodes
    if strategy == MERGE:
        own = {_words(line) for line in settings}
        others, _ = _split_nodes(existing)
        lines += [line for line in others if line.strip() and _words(line) not in own]
    return "\n".join(lines) + "\n"


def has_nodes_of(existing: str, rendered: str) -> bool:
    """Whether slurm.conf has the node and partition lines that the platform wants."""
    return _split_nodes(existing)[1] == _split_nodes(rendered)[1]


def _split_nodes(text: str) -> Tuple[List[str], List[str]]:
    """(the other lines, the platform's block of nodes and partitions with its marks)."""
    lines = text.splitlines()
    if BEGIN not in lines or END not in lines:
        return lines, []
    begin, end = lines.index(BEGIN), lines.index(END)
    return lines[:begin] + lines[end + 1 :], lines[begin : end + 1]


def _words(line: str) -> str:
    return " ".join(line.split())


def _read(path: str) -> Optional[str]:
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return None


class ConfigAgent:
    """Looks once a second; `clock` is monotonic."""

    def __init__(self, rendered: str = RENDERED, etc: str = SLURM_ETC) -> None:
        self._rendered = rendered
        self._etc = etc
        self._settings: Dict[str, Any] = {}
        self._draw = random.Random()
        self._next_at = 0.0

    def look(self, now: float) -> List[str]:
        """Write what is due; the names of the files that were written."""
        settings = json.loads(_read(f"{self._rendered}/agent.json") or "{}")
        if settings != self._settings:
            self._settings = settings
            self._draw = random.Random(settings["seed"])
            self._next_at = now + self._draw.uniform(*settings["pauses"])
        written = [name for name in TOPOLOGY if self._keep(name)]
        rendered, existing = _read(f"{self._rendered}/slurm.conf"), _read(f"{self._etc}/slurm.conf")
        if rendered is None or existing is None:
            return written
        is_due = now >= self._next_at
        if is_due or not has_nodes_of(existing, rendered):
            self._next_at = now + self._draw.uniform(*self._settings["pauses"])
            self._write("slurm.conf", rewritten(existing, rendered, self._settings["strategy"], self._draw))
            written.append("slurm.conf")
        return written

    def _keep(self, name: str) -> bool:
        rendered = _read(f"{self._rendered}/{name}")
        if rendered is None or _read(f"{self._etc}/{name}") == rendered:
            return False
        self._write(name, rendered)
        return True

    def _write(self, name: str, text: str) -> None:
        atomic_file.write_atomically(f"{self._etc}/{name}", text.encode(), 0o644)


def _runs_slurmctld() -> bool:
    return subprocess.run(["systemctl", "is-active", "--quiet", "slurmctld"], timeout=20).returncode == 0


def _reconfigure() -> str:
    done = subprocess.run(
        ["/opt/slurm/bin/scontrol", "reconfigure"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        universal_newlines=True,
        timeout=60,
    )
    return done.stdout.strip() or f"exit code {done.returncode}"


def main(argv: Sequence[str]) -> int:
    """Look for ever, once the node is created; before that its lifecycle script is at work on the same files."""
    agent = ConfigAgent()
    while True:
        time.sleep(INTERVAL)
        try:
            if not os.path.isdir(RENDERED) or not is_already_created() or not _runs_slurmctld():
                continue
            written = agent.look(time.monotonic())
            if written:
                print(f"{time.strftime('%Y-%m-%dT%H:%M:%S')} wrote {', '.join(written)}: {_reconfigure()}", flush=True)
        except (OSError, ValueError, KeyError, subprocess.SubprocessError) as err:
            print(f"{time.strftime('%Y-%m-%dT%H:%M:%S')} {err!r}", flush=True)
