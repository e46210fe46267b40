"""Two copies of slurmctld's state: the newer one goes on, and where neither is, a person chooses."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from typing import Callable, Iterator, List, cast

import pytest

from hyperpod_kit.model.units import GUARD_TIMER, GUARD_UNIT
from hyperpod_kit.node.slurm.hooks import parse_slurm_conf_settings, without_kit_block
from tests.faults.job import Job
from tests.faults.machines import MachineSite
from tests.faults.site import Site
from tests.support.slurm_guard import CONF, KIT
from tests.support.slurm_guard import without_block as taken_out
from tests.support.wait import until

pytestmark = pytest.mark.machines
Row = Callable[..., None]
HELD = ("sbatch", "--parsable", "--hold", "--chdir=/tmp", "--output=/dev/null", "--wrap=true")


@dataclass
class Copies:
    """slurmctld's state on shared storage, and in `own`, the place that the platform's slurm.conf names."""

    site: MachineSite
    shared: str
    own: str

    def shell(self, line: str, *, check: bool = True) -> str:
        return self.site.on("controller", "sh", "-c", line, check=check)

    def begin_in_own(self, fill: str) -> None:
        """slurmctld without our lines, in a directory of its own that the shell line `fill` makes."""
        self.shell(f"systemctl stop slurmctld && rm -rf {self.own} && {fill} && {taken_out(CONF)}")
        stopped = int(time.time())
        until(lambda: int(time.time()) > stopped, what="another second: of copies of the same one neither is newer")
        self.site.start_controller()
        until(lambda: self.location() == self.own, what="slurmctld in its own place")

    def location(self) -> str:
        shown = self.site.slurm("scontrol", "show", "config", check=False)
        found = re.search(r"(?m)^StateSaveLocation\s*=\s*(\S+)", shown)
        return found.group(1) if found else ""

    def kept(self) -> List[str]:
        """Copies that were put aside."""
        return self.shell(f"ls -d {self.shared}.kept-* {self.own}.kept-* 2>/dev/null", check=False).split()

    def submit_held(self) -> str:
        return self.site.slurm(*HELD, user=True).strip()

    def known(self) -> List[str]:
        """Jobs that are not over."""
        return self.site.slurm("squeue", "-h", "-o", "%i").split()


@pytest.fixture
def copies(site: Site) -> Iterator[Copies]:
    found = cast(MachineSite, site)
    shared = re.search(r"(?m)^StateSaveLocation\s*=\s*(\S+)", found.slurm("scontrol", "show", "config"))
    own = parse_slurm_conf_settings(without_kit_block(found.on("controller", "cat", CONF))).get("statesavelocation", "")
    assert shared and own and shared.group(1) != own
    # The guard would put our lines back before `node apply` does.
    found.on("controller", "systemctl", "stop", GUARD_TIMER, GUARD_UNIT)
    try:
        yield Copies(found, shared.group(1), own)
    finally:
        found.on("controller", KIT, "node", "apply", "--slurm-state", "shared")
        found.on("controller", "systemctl", "start", GUARD_TIMER)


def test_the_state_of_slurmctld_has_two_ages(job: Job, copies: Copies, row: Row) -> None:
    job.submit("--steps", "100000", "--pause", "0.1").running()
    cancelled = copies.submit_held()
    copies.begin_in_own(f"cp -a {copies.shared} {copies.own}")
    copies.site.slurm("scancel", cancelled)
    submitted = copies.submit_held()
    before = len(copies.kept())
    newer = copies.shell(f"{KIT} node apply")
    assert copies.location() == copies.shared and len(copies.kept()) > before, newer
    assert submitted in copies.known() and cancelled not in copies.known(), "Slurm went back in time"

    # The other way round: what lies in the platform's place is the older one now.
    copies.shell(
        f"{taken_out(CONF)} && rm {copies.own} && cp -a $(ls -d {copies.shared}.kept-* | tail -n 1) {copies.own}"
    )
    copies.shell(f"{KIT} node apply")
    assert copies.location() == copies.shared and submitted in copies.known() and cancelled not in copies.known()
    done = len(job.progress())
    job._wait("steps after it", lambda: len(job.progress()) > done + 20, 120)
    assert len(job.rows("attempt")) == 1 and job.show()["JobState"] == "RUNNING", job.told()
    row(
        "two copies of slurmctld's state, of two ages, at `node apply` under a job",
        "the newer one goes on, wherever it is, the other one is kept; no job is lost, a running one does not notice",
        None,
    )


def test_two_states_that_cannot_be_compared(copies: Copies, row: Row) -> None:
    submitted = [copies.submit_held() for _ in range(3)]
    copies.begin_in_own(f"install -d -o $(stat -c %U {copies.shared}) -m 700 {copies.own}")
    other = copies.submit_held()
    assert int(other) < int(submitted[-1])
    # slurmctld saves a new job some seconds after it has taken it; `node apply` stops it first, which saves too.
    until(lambda: f"{copies.own}: saved" in copies.shell(f"{KIT} node plan 2>&1", check=False), what="the job saved")
    for command in ("plan", "apply"):
        refused = copies.shell(f"{KIT} node {command} 2>&1", check=False)
        assert f"{copies.shared}: saved" in refused and f"{copies.own}: saved" in refused, refused
        assert "node apply --slurm-state shared" in refused, refused
    assert copies.location() == copies.own and copies.known() == [other], "nothing has changed"
    copies.shell(f"{KIT} node apply --slurm-state shared")
    assert copies.location() == copies.shared and sorted(copies.known()) == sorted(submitted)
    row(
        "two copies of slurmctld's state, neither of which is the newer one, at `node apply`",
        "stops, names both with their ages and changes nothing; `--slurm-state shared` or `own` decides",
        None,
    )
