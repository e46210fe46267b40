"""What a Slurm prints, taken from a real one on loopback, for the tests of what reads it.

    python -m tests.unit.slurm.record forky        (a release of `rehearse up --release`; none: this host's own Slurm)

writes the cases of that Slurm into printed/*.json, in place of what is there of the same version, and its
configurations into tests/unit/job/printed where there are none of that version.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any, Callable, Dict, List

from hyperpod_kit.slurm import records, versions
from hyperpod_kit.slurm.running_config import HOOKS
from tests.support.wait import until
from tests.unit.job.private_slurm import REPOSITORY, PrivateSlurm

HERE = Path(__file__).parent
CONFIGURATIONS = HERE.parent / "job" / "printed"
MARK = "@mark@"
COMMENT = "hpk:auto-resume=1 " + "x" * 300
SLEEPS = "#!/bin/bash\nsrun --job-name=hpk-$SLURM_JOB_ID.0 sleep 300\n"
HOOK_LINES = (REPOSITORY / "slurm" / "hooks.conf").read_text()
TWICE = HOOK_LINES + "Prolog=/bin/true\nEpilog=/bin/true\nEpilog=/bin/ls\n"
APART = f"Prolog={HOOKS}/prolog.sh\nEpilog={HOOKS}/epilog.sh\nPrologFlags=Alloc\nPrologTimeout=60\nEpilogTimeout=90\n"

Case = Dict[str, Any]


class Recorder:
    """Asks one Slurm and keeps what it prints, as cases of RecordingRunner."""

    def __init__(self, slurm: PrivateSlurm, version: str, **more: Any) -> None:
        self.slurm = slurm
        self.cases: List[Case] = []
        self._fixed = {"slurm": version, **more}

    def jobs(self, name: str = "", **more: Any) -> None:
        """As records.query_squeue asks."""
        wanted = ",".join(f"{word}:0{MARK}" for _, word in records.FIELDS)
        array = ["--array"] if "_" in name else []
        argv = ["squeue", "--local", "--all", "--noheader", "--states=all", *array, *(["-j", name] if name else [])]
        self._keep(f"squeue job {name}".strip(), ["env", f"SQUEUE_FORMAT2={wanted}", *argv], more)

    def ask(self, *argv: str, asked: str = "", **more: Any) -> None:
        self._keep(asked or " ".join(argv), list(argv), more)

    def _keep(self, asked: str, argv: List[str], more: Dict[str, Any]) -> None:
        code, printed = self._run(argv)
        self.cases.append({**self._fixed, **more, "asked": asked, "code": code, "printed": printed})

    def _run(self, argv: List[str]) -> tuple[int, str]:
        # The code as a last line: `call` has a deadline and the right root, and tells no code.
        text = self.slurm.call("sh", "-c", '"$@"; echo "code $?"', "sh", *argv, check=False)
        found = re.search(r"^code (\d+)\n", text, re.M)
        assert found, text
        return int(found.group(1)), text[: found.start()] + text[found.end() :]


def started(release: str, use: Callable[[PrivateSlurm], None], *, more: str = "") -> None:
    """A Slurm of that release, while `use` runs."""
    base = Path(tempfile.mkdtemp(prefix="hpk-record-"))
    slurm = PrivateSlurm(base, nodes=3, more=more, release=release)
    try:
        slurm.start()
        base.chmod(0o777)
        for name, text in (("sleeps", SLEEPS), ("gives-up", "#!/bin/bash\nexit 86\n")):
            (base / name).write_text(text)
            (base / name).chmod(0o755)
        use(slurm)
    finally:
        slurm.stop()
        shutil.rmtree(base, ignore_errors=True)


def version_of(slurm: PrivateSlurm) -> str:
    return slurm.call("slurmctld", "-V").split()[-1]


def steps_of(slurm: PrivateSlurm, count: int) -> None:
    """Wait until so many steps of ours run."""
    until(lambda: slurm.call("squeue", "--steps", "-h", "-o", "%j").count("hpk-") == count, what=f"{count} steps")


def arrays(slurm: PrivateSlurm) -> List[Case]:
    """An array of four tasks on three nodes: the last one waits, and has the array's own number."""
    kept = Recorder(slurm, version_of(slurm))
    assert slurm.sbatch("--array=0-3", "-N1", "--exclusive", f"--comment={COMMENT}", "sleeps", cwd=slurm.base) == "1"
    steps_of(slurm, 3)
    for name in ("1", "1_0", "1_3", "1_9", "999", ""):
        kept.jobs(name)
    for name in ("1", "1_1"):
        kept.ask("squeue", "--steps", "--noheader", "-j", name, "-o", "%i %j")
    return kept.cases


def components(slurm: PrivateSlurm) -> List[Case]:
    """A heterogeneous job of two components, with a comment that would be other jobs' records."""
    kept = Recorder(slurm, version_of(slurm), het=True)
    comment = '--comment=a b "c" JobId=4\nJobId=5'
    assert slurm.sbatch("-N1", comment, ":", "-N1", comment, "sleeps", cwd=slurm.base) == "1"
    steps_of(slurm, 1)
    for name in ("1", "2"):
        kept.jobs(name)
    return kept.cases


def lives(slurm: PrivateSlurm) -> List[Case]:
    """Nodes and jobs in the states that are told apart: `what` says which."""
    kept = Recorder(slurm, version_of(slurm))
    ids = {
        what: slurm.sbatch("-N1", "--exclusive", "-o", "/dev/null", *options, cwd=slurm.base)
        for what, options in (
            ("running", ["-w", "n1", "sleeps"]),
            ("node down", ["-w", "n2", "sleeps"]),
            ("gave up", ["-w", "n3", "gives-up"]),
        )
    }
    steps_of(slurm, 2)
    until(lambda: slurm.state(ids["gave up"]) == "SPECIAL_EXIT", what="a job that gave up")
    slurm.call("scontrol", "update", "nodename=n2", "state=down", "reason=hyperpod-kit:mount:fsx: a b")
    slurm.call("scontrol", "update", "nodename=n3", "state=drain", "reason=line\nNodeName=n1 State=DOWN")
    until(lambda: slurm.state(ids["node down"]) == "PENDING", what="a requeued job")
    kept.ask("scontrol", "-o", "show", "node")
    kept.ask("scontrol", "-o", "show", "node", "n3")
    kept.ask("sinfo", "-h", "-N", "-o", "%N|%T|%E")
    kept.ask("scontrol", "ping")
    kept.ask("srun", "--help")
    for what, number in ids.items():
        kept.jobs(number, what=what)
    held = slurm.sbatch("-N1", "-H", "sleeps", cwd=slurm.base)
    kept.jobs(held, what="held")
    slurm.call("scancel", ids["running"])
    until(lambda: slurm.state(ids["running"]) == "CANCELLED", what="a cancelled job")
    kept.jobs(ids["running"], what="cancelled")
    return kept.cases


def write(name: str, found: List[Case]) -> None:
    """Into printed/NAME, beside the cases of other versions."""
    path = HERE / "printed" / name
    version = found[0]["slurm"]
    old = json.loads(path.read_text()) if path.exists() else []
    cases = [case for case in old if case["slurm"] != version] + found
    cases.sort(key=lambda case: str(case["slurm"]))
    path.write_text(json.dumps(cases, indent=1) + "\n")


def main(release: str) -> None:
    found: Dict[str, List[Case]] = {"arrays.json": [], "lives.json": []}
    started(release, lambda slurm: found["arrays.json"].extend(arrays(slurm)))
    started(release, lambda slurm: found["arrays.json"].extend(components(slurm)))
    started(release, lambda slurm: found["lives.json"].extend(lives(slurm)))
    for name, cases in found.items():
        write(name, cases)

    version = str(found["lives.json"][0]["slurm"])
    apart = [("-apart", APART)] if versions.parse_major_minor_or_zero(version) >= versions.APART_TIMEOUTS else []
    for mark, more in [("", HOOK_LINES), ("-none", ""), ("-twice", TWICE), *apart]:
        path = CONFIGURATIONS / f"slurm-{version}{mark}"
        if not path.exists():  # those of older versions are of machines, and of hooks that bundles had then
            started(release, lambda slurm, path=path: configuration(slurm, path), more=more)  # type: ignore[misc]


def configuration(slurm: PrivateSlurm, path: Path) -> None:
    path.write_text(slurm.call("scontrol", "show", "config").replace(str(slurm.base), "/tmp/hpk"))


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "")
