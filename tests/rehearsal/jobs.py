"""The example's training job on the session's cluster: submitted, waited for, and what its output says."""

from __future__ import annotations

import contextlib
from typing import Any, Iterator

from driver import LIVE, TRAIN, DemoError, Driver, events, wait_until

SCRIPT = f"{TRAIN}/gpt/train.sbatch"
SMALL = ("--layers", "1", "--width", "48", "--context", "32")
"""A model whose steps cost a tenth of a second less than the example's: what is shown is what a job goes on from."""


@contextlib.contextmanager
def told(driver: Driver, job: str) -> Iterator[None]:
    """A wait for a job that is in vain says what Slurm and the job itself say."""
    try:
        yield
    except DemoError as err:
        look = f"scontrol -o show job {job}; sinfo -N -l; squeue -l; tail -n 80 /var/log/slurmctld.log"
        record = driver.on("controller", look, check=False)
        raise DemoError(f"{err}\n{record}\n{driver.output(job)}") from None


def finish(driver: Driver, job: str, timeout: float = 300) -> str:
    """Wait for the end of a job and return its last state."""

    def ended() -> str:
        state = driver.job_state(job)
        held = state == "PENDING" and "JobHeld" in driver.on("controller", f"scontrol -o show job {job}", check=False)
        return "HELD" if held else ("" if state in LIVE or not state else state)

    with told(driver, job):
        return wait_until(f"end of job {job}", ended, timeout=timeout, every=1)


def restored(output: str) -> dict[str, Any]:
    return [event["restored"] for event in events(output) if "restored" in event][-1]


def weights(output: str) -> str:
    return str([event["weights_sha256"] for event in events(output) if "weights_sha256" in event][-1])


def attempts(driver: Driver, root: str) -> list[str]:
    """Committed attempts, newest last."""
    return attempts_on(driver, "controller", root)


def attempts_on(driver: Driver, node: str, root: str) -> list[str]:
    """The same of a root on a machine's own disk."""
    listed = driver.on(node, f"ls -d {root}/seq-*/MANIFEST.json", user="trainer").split()
    return sorted(path.split("/")[-2] for path in listed)


def until_committed(driver: Driver, job: str, root: str, count: int, timeout: float = 300) -> None:
    """Wait until a running job has `count` committed checkpoints."""

    def committed() -> bool:
        listed = driver.on("controller", f"ls {root}/seq-*/MANIFEST.json 2>/dev/null | wc -l", check=False)
        return int(listed or 0) >= count

    with told(driver, job):
        wait_until(f"{count} committed checkpoints", committed, timeout=timeout)
