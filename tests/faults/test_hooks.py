"""The hooks on real nodes: what the Prolog costs a healthy one, what the ranks of a bare srun are told."""

from __future__ import annotations

import json
import os
import shutil
import statistics
import threading
import time
from pathlib import Path
from typing import Callable, List, cast

import pytest

from hyperpod_kit.model.units import GUARD_TIMER, GUARD_UNIT
from hyperpod_rehearsal.platform.node_files import SLURM_CONF
from tests.faults.job import Job
from tests.faults.machines import MachineSite
from tests.faults.profiles import IN_FOLDERS
from tests.faults.site import Site
from tests.support.wait import until

pytestmark = pytest.mark.machines
Row = Callable[..., None]
PROLOG = "/opt/hyperpod-kit/current/slurm/prolog.sh"
ADDS = 0.3
"""Seconds that the Prolog may add to a job's start on a healthy node."""

TIMED = r"""
TIMEFORMAT='%R %U %S'
for i in $(seq 9); do time env -i SLURM_JOB_ID=9$i SLURM_JOB_USER=root {prolog} || exit 1; done 2>&1"""

BARE = """\
#!/bin/bash
#SBATCH -N2 --auto-resume=1
#SBATCH --chdir={there} --output={there}/{name}.out
export HPK_CHECKPOINT_ROOT={there}/{name}
srun -n8 --ntasks-per-node=4 -O sh -c 'echo "{{\\"resumed\\": \\"$HPK_RESUME_FROM\\", \\"rank\\": $SLURM_PROCID}}"'
"""


@pytest.fixture
def site(site: Site) -> MachineSite:
    return cast(MachineSite, site)


def starts(site: MachineSite, node: str) -> List[float]:
    """Seconds from `srun` to its end, of a job that does nothing."""
    found = []
    for _ in range(7):
        began = time.monotonic()
        site.slurm("srun", "-N1", "-w", node, "true", user=True)
        found.append(time.monotonic() - began)
        until(lambda: site.node(node)[0] == "IDLE", what="idle node")
    return found


def test_the_prolog_of_a_healthy_node(site: MachineSite, row: Row) -> None:
    node = site.nodes[0]
    times = [
        list(map(float, line.split())) for line in site.on(node, "bash", "-c", TIMED.format(prolog=PROLOG)).splitlines()
    ]
    wall, cpu = (statistics.median(found) for found in zip(*((real, user + system) for real, user, system in times)))
    starts(site, node)  # whatever is slow the first time only
    with_it = statistics.median(starts(site, node))
    # The guard of Slurm would put it back.
    site.on("controller", "systemctl", "stop", GUARD_TIMER, GUARD_UNIT)
    site.on("controller", "sh", "-c", f"sed -i.faults 's/^Prolog=/#&/' {SLURM_CONF} && scontrol reconfigure")
    try:
        until(lambda: f" {PROLOG}\n" not in site.slurm("scontrol", "show", "config"), what="no Prolog")
        without = statistics.median(starts(site, node))
    finally:
        site.on("controller", "sh", "-c", f"mv {SLURM_CONF}.faults {SLURM_CONF} && scontrol reconfigure")
        site.on("controller", "systemctl", "start", GUARD_TIMER)
    # Waiting for a core is not the Prolog's: on a machine that others keep busy only its own work can be judged.
    crowded = os.getloadavg()[0] > (os.cpu_count() or 1)
    assert cpu < ADDS and (crowded or max(wall, with_it - without) < ADDS), (cpu, wall, with_it, without)
    row(
        "none: the Prolog of a healthy node",
        f"its own work takes {cpu:.2f} s of CPU, {wall:.2f} s in all; "
        f"`srun true` takes {with_it:.2f} s with it, {without:.2f} s without (medians)",
        None,
        f"load {os.getloadavg()[0]:.0f} on {os.cpu_count()} cores",
    )


@pytest.mark.profiles(*IN_FOLDERS)
def test_eight_ranks_of_a_bare_srun_take_one_decision(job: Job, site: MachineSite, row: Row) -> None:
    """No `job run`: the plugin asks on each node, while another trainer's checkpoints appear."""
    job.submit("--steps", "120", "--every", "2").ended_well(120)
    late = Job(site)
    kept = job.checkpoints()
    late.root.mkdir(mode=0o777)
    late.root.chmod(0o777)
    shutil.copytree(kept[0], late.root / kept[0].name)
    over = threading.Event()
    thread = threading.Thread(target=appear, args=(kept[1:], late.root, over))
    script = site.here / f"{late.name}.sbatch"
    script.write_text(BARE.format(there=site.there, name=late.name))
    late.id = site.slurm("sbatch", "--parsable", f"{site.there}/{script.name}", user=True).strip()
    until(lambda: late.show().get("JobState") == "RUNNING", what="a start")
    thread.start()
    try:
        assert late.finish() == "COMPLETED", late.told()
    finally:
        over.set()
        thread.join()
    assert len(list(late.root.glob("seq-*"))) < len(kept), "they ceased to appear before the ranks had started"
    told = {line["rank"]: line["resumed"] for line in late.lines() if "resumed" in line}
    assert len(told) == 8 and len(set(told.values())) == 1 and told[0].startswith("seq-"), late.told()
    [record] = (late.root / ".hpk" / "decisions").glob("*.json")
    assert json.loads(record.read_text())["from"] == told[0]
    row("8 ranks of a bare `srun` start while checkpoints appear", "one decision, the same for all", None)


def appear(paths: List[Path], root: Path, over: threading.Event) -> None:
    """Whole checkpoints, one each 0.4 s."""
    for path in paths:
        if over.wait(0.4):
            return
        shutil.copytree(path, root / f".{path.name}")
        (root / f".{path.name}").rename(root / path.name)
