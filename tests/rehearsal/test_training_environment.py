"""The training environment on a cluster of four machines, by the real uv: made once, found by a node that is replaced.

uv and the wheels come to the nodes as they do where there is no package index: by a script of one's own.
"""

from __future__ import annotations

import base64
import json
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any, Dict, Iterator, List

import pytest
from driver import CONFIG, Driver, wait_until

from tests.faults import trainer
from tests.support.wheels import make_wheel, sha256_of, wheel_of_installed

pytestmark = [
    pytest.mark.full,  # minutes of machines of its own
    pytest.mark.needs("uv"),
]

NAME = "environments"
TOP = "/fsx/environments/training"
GO = "/fsx/environments-go"
NEEDED_BY_THE_KIT = ("click", "rich", "markdown-it-py", "mdurl", "pygments")
STEPS = 400
IN_THE_ENVIRONMENT = """\
import json, os, runpy, sys
import train_code
line = {"prefix": sys.prefix, "version": train_code.VERSION, "at": os.environ["HPK_ATTEMPT"]}
os.write(1, (json.dumps(line) + chr(10)).encode())
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""What each rank runs: it names its environment, and is then the trainer of the faults."""

JOB_SCRIPT = f"""\
#!/bin/bash
#SBATCH --nodes=3 --ntasks-per-node=1 --exclusive
#SBATCH --auto-resume=1 --requeue --open-mode=append --output=/fsx/goes-on.out
source "{TOP}/$(uname -m)/bin/activate"
library=$(python -c 'import hyperpod_kit, os; print(os.path.dirname(os.path.dirname(hyperpod_kit.__file__)))')
exec hyperpod-kit job run --checkpoint-root /fsx/goes-on -- \\
  python /fsx/in_the_environment.py /fsx/trainer.py "$library" --steps {STEPS} --pause 0.1
"""
BRING = """\
#!/bin/bash
set -e
mkdir -p /opt/wheels
cp *.whl /opt/wheels/
install -m 0755 uv /usr/local/bin/uv
"""


class Site:
    """The cluster `environments` of the session's rehearsal."""

    def __init__(self, driver: Driver, beside: Path) -> None:
        self.driver, self.beside, self.config = driver, beside, beside / "config.json"

    def nodes(self, group: str) -> List[str]:
        found = self.driver.data("list-cluster-nodes", str(self.config))["nodes"]
        return [node["instance_id"] for node in found if node["group"] == group and node["status"] == "Running"]

    @property
    def head(self) -> str:
        return self.nodes("controller-machine")[0]

    @property
    def workers(self) -> List[str]:
        return self.nodes("worker-group")

    def on(self, command: str, node: str, user: str = "") -> str:
        line = f"cd /tmp; exec 2>&1; {command}"
        words = f"runuser -u {user} -- bash -c {shlex.quote(line)}" if user else line
        return self.driver.on(node, words, check=False, timeout=300).strip()

    def step(self, node: str) -> Dict[str, Any]:
        """The last line of the step in provisioning.log."""
        lines = self.on("grep '^{' /var/log/provision/provisioning.log", node).splitlines()
        return [entry for entry in map(json.loads, lines) if entry["step"] == "training-environment"][-1]

    def lock(self, version: str) -> None:
        """A lock file of this version of the training code, and of what the kit needs."""
        wheels = [make_wheel(self.beside / "bring", "train-code", version, f"VERSION = {version!r}\n")]
        wheels += [wheel_of_installed(self.beside / "bring", name) for name in NEEDED_BY_THE_KIT]
        lines = ["--no-index", "--find-links /opt/wheels"]
        for file in wheels:
            name, number = file.name.split("-")[:2]
            lines.append(f"{name}=={number} --hash=sha256:{sha256_of(file)}")
        (self.beside / "requirements.lock").write_text("\n".join([*lines, ""]))

    def all_idle(self) -> None:
        wait_until(
            "idle nodes", lambda: self.on("sinfo -h -o %t | sort -u", self.head).split() == ["idle"], timeout=240
        )

    def write(self, path: str, text: str) -> None:
        """Write a file of the user `trainer` on the shared mount."""
        encoded = base64.b64encode(text.encode()).decode()
        self.on(f"base64 -d <<<{encoded} >{path}", self.head, "trainer")

    def lines(self, output: str) -> List[Dict[str, Any]]:
        """Return the JSON objects of a job's output."""
        text = self.on(f"cat {output}", self.head)
        return [json.loads(line) for line in text.splitlines() if line.startswith("{")]

    def version_in_a_job(self) -> List[str]:
        """What ranks on all workers import."""
        ranks = "python -c 'import hyperpod_kit, train_code; print(train_code.VERSION)'"
        job = f"source {TOP}/$(uname -m)/bin/activate; srun -Q -N3 -t2 {ranks}"
        return self.on(job, self.head, "trainer").split()


@pytest.fixture(scope="module")
def site(endpoint: Driver, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    beside = tmp_path_factory.mktemp("environments")
    (beside / "bring").mkdir()
    (beside / "bring/install.sh").write_text(BRING)
    uv = shutil.which("uv", path=f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin")
    assert uv is not None
    shutil.copy(uv, beside / "bring/uv")
    site = Site(endpoint, beside)
    site.lock("1.0")
    values: Dict[str, Any] = json.loads(CONFIG.read_text())
    kit = values["hyperpod_kit"]
    kit["cluster"]["name"] = NAME
    kit["cluster"]["instance_groups"][1]["count"] = 3
    kit["scripts"] = [{"name": "bring", "path": "bring", "run": "install.sh", "when": "before-mounts"}]
    kit["steps"] = {
        "training_environment": {
            "path": "/fsx/environments",
            "requirements": {"x86_64": "requirements.lock", "arm64": "requirements.lock"},
        }
    }
    site.config.write_text(json.dumps(values))
    endpoint.kit("validate", str(site.config))
    endpoint.kit("upload", str(site.config))
    try:
        endpoint.kit("create-cluster", str(site.config), "--wait", timeout=900)
        yield site
    finally:
        endpoint.kit("delete-cluster", "--cluster", NAME, "--yes", check=False)
        wait_until(
            "end of the cluster",
            lambda: NAME not in endpoint.kit("list-clusters", "--json", check=False),
            timeout=240,
        )


def test_one_worker_makes_it_and_the_others_find_it(site: Site) -> None:
    site.all_idle()
    steps = [site.step(node) for node in site.workers]
    assert [step["status"] in ("ok", "changed") for step in steps] == [True] * 3, steps
    assert sum("made " in step["detail"] for step in steps) == 1, steps
    assert len(site.on(f"ls {TOP}/versions", site.workers[0]).split()) == 1
    assert site.on(f"stat -c %U {TOP}/versions/*/bin/activate", site.workers[0]) == "ubuntu"
    assert site.version_in_a_job() == ["1.0"] * 3
    plan = site.on("hyperpod-kit node plan", site.head)
    assert "mount" in plan and "training" not in plan, plan


def test_a_replaced_worker_finds_it(site: Site) -> None:
    version = site.on(f"readlink -f {TOP}/$(uname -m)", site.head)
    old = site.workers[0]
    site.driver.kit("rehearse", "kill-node", "--name", site.driver.name, old)
    wait_until("another worker", lambda: old not in site.workers, timeout=120)
    wait_until("three of them", lambda: len(site.workers) == 3, timeout=400, every=2.0)
    site.all_idle()
    for node in site.workers:
        step = site.step(node)
        assert step["status"] in ("ok", "changed") and version in step["detail"], step
    assert len(site.on(f"ls {TOP}/versions", site.head).split()) == 1, "none was made again"
    assert site.version_in_a_job() == ["1.0"] * 3


def test_a_job_whose_node_is_replaced_goes_on_in_it(site: Site) -> None:
    version = site.on(f"readlink -f {TOP}/$(uname -m)", site.head)
    site.write("/fsx/in_the_environment.py", IN_THE_ENVIRONMENT)
    site.write("/fsx/trainer.py", Path(trainer.__file__).read_text())
    site.write("/fsx/goes-on.sbatch", JOB_SCRIPT)
    job = site.on("cd /fsx; sbatch --parsable goes-on.sbatch", site.head, "trainer")
    wait_until(
        "two checkpoints", lambda: sum("saved" in line for line in site.lines("/fsx/goes-on.out")) > 1, timeout=120
    )
    old = site.workers[-1]
    site.driver.kit("rehearse", "kill-node", "--name", site.driver.name, old)
    wait_until("its end", lambda: not site.on(f"squeue -h -j {job} -o %T", site.head), timeout=600)

    lines = site.lines("/fsx/goes-on.out")
    output = site.on("cat /fsx/goes-on.out", site.head)
    starts = [line for line in lines if "resumed" in line]
    assert old not in site.workers and len(site.workers) == 3
    assert len(starts) == 6 and all(start["at"] > 0 for start in starts[3:]), output
    assert [line["prefix"] for line in lines if "prefix" in line] == [version] * 6, output
    final = {line["rank"]: line["weights"] for line in lines if "weights" in line}
    assert [final[rank] for rank in range(3)] == trainer.weights(3, STEPS), output


def test_a_job_keeps_its_version_when_there_is_a_newer_one(site: Site) -> None:
    site.on(f"rm -f {GO}", site.head)
    wait = f"until [ -e {GO} ]; do sleep 1; done"
    ranks = f"python -c 'import os; os.system(\"{wait}\"); import train_code; print(train_code.VERSION)'"
    wrapped = f". {TOP}/$(uname -m)/bin/activate; srun -Q {ranks}"
    job = site.on(f"sbatch --parsable -N3 -o /fsx/kept.out --wrap {shlex.quote(wrapped)}", site.head, "trainer")
    wait_until("its start", lambda: "RUNNING" in site.on(f"squeue -h -j {job} -o %T", site.head), timeout=60)
    site.lock("2.0")
    site.driver.kit("upload", str(site.config))
    site.driver.kit("rollout", "start", str(site.config), "--yes", "--batch", "3", timeout=900)
    site.on(f"touch {GO}", site.head)
    wait_until("its end", lambda: not site.on(f"squeue -h -j {job} -o %T", site.head), timeout=240)
    assert site.on("cat /fsx/kept.out", site.head).split() == ["1.0"] * 3
    assert site.version_in_a_job() == ["2.0"] * 3
    assert len(site.on(f"ls {TOP}/versions", site.head).split()) == 2
