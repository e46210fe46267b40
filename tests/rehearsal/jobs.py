"""The example's training job on the session's cluster: submitted, waited for, and what its output says."""

from __future__ import annotations

from driver import LIVE, TRAIN, Driver, events, wait_until

SCRIPT = f"{TRAIN}/gpt/train.sbatch"


def finish(driver: Driver, job: str, timeout: float = 200) -> str:
    """Wait for the end of a job and return its last state."""
    def ended() -> str:
        state = driver.job_state(job)
        held = state == "PENDING" and "JobHeld" in driver.on("controller", f"scontrol -o show job {job}", check=False)
        return "HELD" if held else ("" if state in LIVE or not state else state)

    return wait_until(f"end of job {job}", ended, timeout=timeout, every=1)


def restored(output: str) -> dict[str, object]:
    return [event["restored"] for event in events(output) if "restored" in event][-1]


def weights(output: str) -> str:
    return str([event["weights_sha256"] for event in events(output) if "weights_sha256" in event][-1])


def attempts(driver: Driver, root: str) -> list[str]:
    """Committed attempts, newest last."""
    listed = driver.on("controller", f"ls -d {root}/seq-*/MANIFEST.json", user="trainer").split()
    return sorted(path.split("/")[-2] for path in listed)


def committed(driver: Driver, root: str) -> int:
    return int(driver.on("controller", f"ls {root}/seq-*/MANIFEST.json 2>/dev/null | wc -l", check=False) or 0)
