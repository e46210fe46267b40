"""Another bundle is installed in place, on machines on which a job runs."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Callable, List, cast

import pytest

from hyperpod_kit.model.states import LifecycleMode
from tests.faults.job import Job
from tests.faults.machines import MachineSite
from tests.faults.profiles import PROFILE
from tests.faults.site import Site
from tests.support import bundles
from tests.support.bundles import REPOSITORY

pytestmark = [pytest.mark.machines, pytest.mark.needs("mounts", "git-history")]
Row = Callable[..., None]
STEPS = 400
ENTRY = "on_create.sh" if PROFILE.mode is LifecycleMode.ON_CREATE else "on_init_complete.sh"
HOME = "/opt/hyperpod-kit"
EARLIER, THIS = "bundle-earlier", "bundle-this"
ENVIRONMENT = "environment"


@pytest.fixture
def site(site: Site) -> MachineSite:
    return cast(MachineSite, site)


UNKNOWN_TO_THE_EARLIER_BUNDLE = ("capacity",)
"""Keys of an instance group that the earlier sources do not know; no node reads them."""


def earlier_configuration(site: MachineSite, directory: Path) -> Path:
    """The site's configuration as the earlier sources can read it."""
    parameters = json.loads(site.config.read_text())
    for group in parameters["hyperpod_kit"]["cluster"]["instance_groups"]:
        for key in UNKNOWN_TO_THE_EARLIER_BUNDLE:
            group.pop(key, None)
    path = directory / site.config.name
    path.write_text(json.dumps(parameters))
    return path


def render(tree: Path, site: MachineSite, name: str, configuration: Path) -> None:
    """That release's bundle of a configuration, where all machines see it."""
    argv = [
        sys.executable,
        "-m",
        "hyperpod_kit.cli.main",
        "render",
        str(configuration),
        "-o",
        str(site.here / name),
    ]
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    subprocess.run(argv, env=environment, cwd=tree, check=True, timeout=120, stdout=subprocess.DEVNULL)


def install(site: MachineSite, node: str, name: str) -> str:
    """As an administrator does on a machine that runs; the id of what was installed."""
    config = "SAGEMAKER_RESOURCE_CONFIG_PATH=/opt/ml/config/resource_config.json"
    site.on(node, "env", config, "bash", f"{site.there}/{name}/{ENTRY}")
    return site.on(node, "readlink", f"{HOME}/current").strip()


def nodes_of(job: Job) -> List[str]:
    """The batch host first."""
    host = job.show()["BatchHost"]
    return sorted(job.rows("attempt")[-1]["nodes"], key=lambda name: name != host)


@pytest.fixture
def own_environment(site: MachineSite, monkeypatch: pytest.MonkeyPatch) -> None:
    """The trainer has the kit of its job's environment, as jobs of users have, and not that of the node's bundle.
    `job run` is the earlier bundle's, which prints JSON and has no option for it."""
    package = site.here / ENVIRONMENT / "hyperpod_kit"
    shutil.copytree(REPOSITORY / "hyperpod_kit", package, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(site, "library", f"{site.there}/{ENVIRONMENT}")
    monkeypatch.setattr(site, "run", site.run.replace(" --json-lines", ""))


@pytest.mark.usefixtures("own_environment")
def test_another_bundle_is_installed_in_place(job: Job, site: MachineSite, row: Row, tmp_path: Path) -> None:
    """From the earlier bundle to this one, machine by machine, and back; a rank is killed after each change."""
    render(bundles.earlier_sources(tmp_path / "earlier"), site, EARLIER, earlier_configuration(site, tmp_path))
    render(REPOSITORY, site, THIS, site.config)
    try:
        for node in site.nodes:
            earlier = install(site, node, EARLIER)
        job.submit("--steps", str(STEPS), "--pause", "0.1").running()
        host, other = nodes_of(job)
        # As if it had been replaced: it has never had the bundle that the batch host's `job run` is of.
        assert install(site, other, THIS) != earlier
        site.on(other, "rm", "-rf", f"{HOME}/{earlier}")
        install(site, host, THIS)
        changed = job.running().resumed(job.send(signal.SIGKILL, rank=1))
        for node in (host, other):
            assert install(site, node, EARLIER) == earlier
        back = job.running().resumed(job.send(signal.SIGKILL, rank=0))
        job.ended_well(STEPS)
    finally:
        for node in site.nodes:
            install(site, node, THIS)
    assert job.classes == ["crash", "crash", "done"] and job.show()["Restarts"] == "0"
    assert all(started["rejected"] == [] for started in job.rows("attempt")), "no checkpoint is blamed"
    row(
        "another bundle is installed in place under a job, machine by machine, then a rank is SIGKILLed",
        "retried in the allocation, from an older bundle to this one and back",
        max(changed, back),
        f"start-up {job.start_up()}",
    )
