"""Slurm signals a step whose processes it tracks by cgroup: it tells the tasks alone, and those are our wrappers."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from tests.cgroup.site import MAIN, Site
from tests.support.wait import until

pytestmark = [pytest.mark.rehearsal, pytest.mark.needs("slurm", "cgroup-v1", "system-python")]

SCRIPT = """\
#!/bin/bash
#SBATCH -N2 -n2 --open-mode=append --requeue -o {place}/out --auto-resume=1
exec /usr/bin/python3 -I -S {main} run --json-lines --checkpoint-root {place}/root -- /bin/sh {place}/rank
"""
RANK = """\
trap 'echo heard >>{place}/heard.$SLURM_PROCID; sleep 1; exit 75' USR1
touch {place}/ready.$SLURM_PROCID
while :; do sleep 0.1; done
"""


def test_ranks_hear_the_warning_once_and_the_job_is_queued_again(site: Site) -> None:
    place = Path(tempfile.mkdtemp(prefix="job-", dir=site.base))
    place.chmod(0o777)
    for name, text in (("job", SCRIPT), ("rank", RANK)):
        (place / name).write_text(text.format(place=place, main=MAIN))
    job = site.slurm.sbatch(str(place / "job"), cwd=place)
    until(lambda: len([*place.glob("ready.*")]) == 2, what="two ranks")
    site.slurm.call("scancel", "--batch", "--signal=USR1", job, as_user=True)
    until(lambda: site.slurm.state(job) == "PENDING", 40, what="a requeue")
    try:
        assert [(place / f"heard.{rank}").read_text().split() for rank in range(2)] == [["heard"], ["heard"]]
        assert (
            '"class": "preempted"' in (place / "out").read_text() or '"class": "again"' in (place / "out").read_text()
        )
    finally:
        site.slurm.call("scancel", job, as_user=True)
