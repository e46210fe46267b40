"""The parts of the test suite: which tests each has, and which may run beside each other.

A part runs in one pytest process. Lanes run beside each other, the parts of one lane one after the other; of the lane
PROCESSOR as many at once as there are workers. What mostly waits has a lane of its own, for a worker that waits leaves
a processor idle. So each test is collected by one process, and that process has imported
what its part needs and nothing more: a test that forks pays for each page of the process that it is in. A part that
runs alone has workers of its own.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Iterable, List, Tuple

OTHER_TESTS = ("rehearsal/rehearsal_tests", "lab/lab_tests")
"""Where the tests of the other two distributions are: a package each, of a name of its own."""
MACHINES = "tests/rehearsal"
"""Where the tests that boot machines are."""
MOUNT_FAULTS = "tests/rehearsal/storage"
MOUNTING = (
    "rehearsal/rehearsal_tests/standins",
    *(f"tests/unit/node/test_{name}.py" for name in ("bundle_in_place", "check_cycle_hangs", "peers", "probe")),
    "tests/unit/storage/audit/test_watched_files.py",
    "tests/unit/storage/preload/test_preload_job.py",
)
"""Of what is marked `rehearsal` and boots no machine: what mounts something. The others run a Slurm.

By their names, for to collect a directory for some files of it costs more than some of its tests."""
RUNNING_SLURM = (
    "tests/cgroup",
    "tests/faults",
    "tests/hostile/test_root_in_a_users_job.py",
    "tests/hostile/test_sweep_rights.py",
    "tests/hostile/test_words_in_slurm.py",
    "tests/unit/checkpoint/test_fabric.py",
    "tests/unit/job/goodput/test_measured_job.py",
    *(
        f"tests/unit/job/test_{name}.py"
        for name in (
            "bundle_under_a_job",
            "cancelled_on_slurm",
            "fan_out",
            "hang_on_slurm",
            "job_scripts",
            "no_decision",
            "proving",
            "real_slurm",
            "two_job_runs",
            "warned_on_slurm",
        )
    ),
)
"""Where those are."""
OWN_CLUSTERS = tuple(
    f"{MACHINES}/test_{name}.py"
    for name in (
        "aws_scripts",
        "creation_sweep",
        "full_disk",
        "heads",
        "life",
        "nodes_leave",
        "optional_containers",
        "optional_software",
        "optional_steps",
        "shares",
        "slurm_guard",
        "training_environment",
    )
)
"""Long tests that boot a cluster for themselves."""


class Lane(enum.Enum):
    """What the tests of a part mostly do."""

    MACHINES = "boot machines, and mostly wait for them"
    SLURM = "run a Slurm on loopback, and mostly wait"
    MOUNTS = "mount something, and mostly wait"
    STEPS = "run steps of jobs as processes, and mostly wait"
    PROCESSOR = "compute"


@dataclass(frozen=True)
class Part:
    """One pytest run. `paths` may be patterns."""

    name: str
    lane: Lane
    paths: Tuple[str, ...]
    ignored: Tuple[str, ...] = ()
    marks: str = ""
    timeout: int = 1200
    options: Tuple[str, ...] = ()

    def arguments(self, checkout: Path, workers: int) -> List[str]:
        """What pytest is given. `workers`: processes of this part alone."""
        arguments = [*self.options, "--timeout", str(self.timeout), *(f"--ignore={path}" for path in self.ignored)]
        if self.marks:
            arguments += ["-m", self.marks]
        if workers > 1:
            arguments += ["-n", str(workers), "--dist", "worksteal"]
        return arguments + [str(path) for path in self.files(checkout)]

    def files(self, checkout: Path) -> List[Path]:
        """The paths, relative to the checkout, with patterns replaced by what they match."""
        return _files(self.paths, checkout)

    def has(self, checkout: Path, file: Path) -> bool:
        """Whether a test file, relative to the checkout, is below the paths and is not ignored."""
        around = {file, *file.parents}
        return bool(around & set(self.files(checkout))) and not around & {Path(path) for path in self.ignored}


@lru_cache(maxsize=None)
def _files(patterns: Tuple[str, ...], checkout: Path) -> List[Path]:
    matches = [path for pattern in patterns for path in sorted(checkout.glob(pattern))]
    return [path.relative_to(checkout) for path in matches]


_PARSERS = tuple(
    f"hostile/test_{name}.py"
    for name in ("among_trainers", "bombs", "fuzz", "job_among_strangers", "outputs_among_others", "random_acts")
)
"""What of `hostile` imports torch: the others fork thousands of children, each of which would pay for its pages."""

_COMPUTING = {
    "job": ("unit/job", "unit/slurm", "faults", "cgroup"),
    "checkpoint-j-z": ("unit/checkpoint/test_[j-z]*.py",),
    "checkpoint-a-i": ("unit/checkpoint/test_[a-i]*.py", "gpu"),
    "node": ("unit/node", "unit/system", "unit/untrusted"),
    "hostile": ("hostile", "property"),
    "docs": ("docs", "formats", "test_*.py", "unit/test_*.py", "toy_kind", "toy_tier"),
    "data": ("unit/data",),
    "cluster": ("unit/aws", "unit/bundle", "unit/cluster", "unit/infra", "unit/preflight", "unit/remote"),
    "admin": ("unit/cli", "unit/config", "unit/s3", "unit/signing", "rehearsal/rehearsal_tests"),
    "storage": ("unit/storage",),
    "ranks": ("distributed", "zoo", "lab/lab_tests"),
    "parsers": _PARSERS,
}
"""Part -> its directories and files below tests/, or those of the tests of another distribution, without the files in
them that another part names.

The longest come first, so that the last ones to end are short."""
WAITING_FOR_STEPS = "job"
"""The one of them that waits more than it computes: it takes no worker from the others."""


def _lane(name: str) -> Lane:
    return Lane.STEPS if name == WAITING_FOR_STEPS else Lane.PROCESSOR


def _computing(marks: str, timeout: int, options: Tuple[str, ...] = ()) -> Tuple[Part, ...]:
    return tuple(
        Part(name, _lane(name), _below_tests(paths), _below_tests(_of_others(name)), marks, timeout, options)
        for name, paths in _COMPUTING.items()
    )


def _below_tests(paths: Iterable[str]) -> Tuple[str, ...]:
    return tuple(path if path.startswith(OTHER_TESTS) else f"tests/{path}" for path in paths)


def _of_others(name: str) -> List[str]:
    """The files of other parts that lie in this one's directories."""
    others = [path for other, paths in _COMPUTING.items() if other != name for path in paths]
    return [path for path in others if any(path.startswith(f"{directory}/") for directory in _COMPUTING[name])]


_FEWER_EXAMPLES = ("--hypothesis-profile=gate",)  # tests/support/examples.py
GATE = (
    Part("machines", Lane.MACHINES, (MACHINES,), marks="not full", timeout=840),
    Part("slurm", Lane.SLURM, RUNNING_SLURM, (), "rehearsal and not full", 840, _FEWER_EXAMPLES),
    Part("mounts", Lane.MOUNTS, MOUNTING, marks="rehearsal and not full", timeout=840, options=_FEWER_EXAMPLES),
    *_computing("not rehearsal and not full", 400, _FEWER_EXAMPLES),
)
"""`make test`."""

ALL = (
    Part("machines", Lane.MACHINES, (MACHINES,), (MOUNT_FAULTS, *OWN_CLUSTERS)),
    Part("mount-faults", Lane.MACHINES, (MOUNT_FAULTS,)),
    Part("clusters", Lane.MACHINES, OWN_CLUSTERS),
    Part("slurm", Lane.SLURM, RUNNING_SLURM, marks="rehearsal"),
    Part("mounts", Lane.MOUNTS, MOUNTING, marks="rehearsal"),
    *_computing("not rehearsal", 1200),
)
"""`make test-all`, which runs everything that `make test` runs, and what is marked `full`."""
