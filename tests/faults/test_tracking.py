"""Processes tracked by cgroup: the end of a step takes all that it has started, and the node saves what was captured.

What an agent would have saved is then in shared memory alone. The Epilog hands it over to a unit of its node.
"""

from __future__ import annotations

import json
import signal
import time
import uuid
from typing import Callable, List, cast

import pytest

from hyperpod_kit.checkpoint.repository.read import verify
from hyperpod_rehearsal.records.profiles import BY_CGROUP, PROFILES
from tests.faults.machines import MachineSite
from tests.faults.site import Site
from tests.support.wait import until

pytestmark = [
    pytest.mark.machines,
    pytest.mark.profiles(*(name for name, profile in PROFILES.items() if profile.tracking == BY_CGROUP)),
]
Row = Callable[..., None]

CAPTURING = """\
#!/bin/bash
#SBATCH -N2 --ntasks-per-node=1 --no-requeue --chdir={there} --output={root}.out
srun bash -c 'setsid sleep {apart} & exec /usr/bin/python3 -I {there}/capturer.py {library} {root}'
"""
WORDS = {"cancelled": "is cancelled", "killed": "loses all ranks by SIGKILL"}


@pytest.fixture
def site(site: Site) -> MachineSite:
    return cast(MachineSite, site)


def processes(site: MachineSite, node: str, words: str) -> List[str]:
    """Pids on a node, of processes with these words."""
    return site.on(node, "pgrep", "-f", words, check=False).split()


def saved_by_a_unit(site: MachineSite, node: str, job: str) -> None:
    """Nothing is left on the node, and the journal has whose work that was. Raises AssertionError."""
    until(lambda: not site.on(node, "find", "/dev/shm", "-type", "f").split(), what="free memory")
    unit = f"hyperpod-kit-flush@{job}."
    said = [json.loads(line) for line in site.on(node, "journalctl", "-o", "json", "--no-pager").splitlines()]
    mine = [one["MESSAGE"] for one in said if str(one.get("_SYSTEMD_UNIT", "")).startswith(unit)]
    assert any("committed" in words or "handed in" in words for words in mine), mine
    until(lambda: not site.on(node, "find", "/run/hyperpod-kit", "-name", "flush-*").split(), what="no note")


@pytest.mark.parametrize("end", WORDS)
def test_a_step_ends_with_captures_in_memory(site: MachineSite, row: Row, end: str) -> None:
    name, apart = f"end-{uuid.uuid4().hex[:8]}", str(int(time.time() * 1000))
    root, log = site.here / name, site.here / f"{name}.out"
    root.mkdir(mode=0o777)
    root.chmod(0o777)
    script = site.here / f"{name}.sbatch"
    script.write_text(
        CAPTURING.format(there=site.there, library=site.library, root=f"{site.there}/{name}", apart=apart)
    )
    job = site.slurm("sbatch", "--parsable", f"{site.there}/{script.name}", user=True).strip()
    until(lambda: log.exists() and log.read_text().count("captured") == 2, what="two captures")
    nodes = [node for node in site.nodes if processes(site, node, f"sleep {apart}")]
    assert len(nodes) == 2 and not [*root.glob("seq-*/MANIFEST.json")]
    began = time.monotonic()
    if end == "cancelled":
        site.slurm("scancel", job, user=True)
    else:
        for node in nodes:
            site.on(node, "kill", f"-{signal.SIGKILL}", *processes(site, node, f"^/usr/bin/python3 .*/{root.name}"))
    until(lambda: [*root.glob("seq-*/MANIFEST.json")], what="the commit")
    seconds = time.monotonic() - began
    [manifest] = root.glob("seq-*/MANIFEST.json")
    verify.verify_checkpoint(str(root), manifest.parent.name)
    for node in nodes:
        assert not processes(site, node, f"sleep {apart}"), "nothing has been tracked by cgroup here"
        saved_by_a_unit(site, node, job)
    row(
        f"a job {WORDS[end]} with captures in memory, processes tracked by cgroup",
        "all that the step had started dies with it; a unit of each node saves what was captured, the memory is free",
        None,
        f"committed {seconds:.1f} s after the end",
    )
