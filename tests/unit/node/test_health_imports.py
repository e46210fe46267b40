"""What a check makes the interpreter load: it runs twice a minute on every node."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def imported(modules: str) -> set[str]:
    """What the standard library is made to load by these modules, in a new interpreter as units start it."""
    checkout = str(Path(__file__).parents[3])
    program = f"import sys; sys.path.insert(0, {checkout!r}); import {modules}; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", program], text=True, timeout=30, stdout=subprocess.PIPE, check=True
    )
    return set(done.stdout.split())


def test_a_check_imports_nothing_that_it_does_not_need() -> None:
    """Each of these costs as much as the probes of ten mounts."""
    node = "hyperpod_kit.node"
    dear = {"argparse", "socket", "subprocess", "shutil", "configparser", "calendar", "datetime", "threading"}
    dear |= {"hashlib", "tempfile", "random", "urllib", "logging", f"{node}.slurm.drain"}
    assert not dear & imported(f"{node}.cli, {node}.commands.mount_commands, {node}.health.check_cycle")


def test_a_look_for_what_jobs_left_loads_nothing_that_saves_it() -> None:
    loaded = imported(
        "hyperpod_kit.node.cli, hyperpod_kit.node.commands.mount_commands, hyperpod_kit.node.memory.cleanup"
    )
    assert not {"argparse", "hashlib", "concurrent.futures", "hyperpod_kit.checkpoint.agent.flush.flush"} & loaded


def test_the_program_that_touches_mounts_imports_only_what_is_compiled_in() -> None:
    modules = (
        "hyperpod_kit.node.observe.prober",
        "hyperpod_kit.node.packets.ruleset",
        "hyperpod_kit.checkpoint.agent.shm.shm_paths",
    )
    assert not {"re", "typing", "enum", "dataclasses", "json", "contextlib"} & imported(", ".join(modules))
