"""What the documents tell an admin, somebody on a node and the owner of a job to type, typed on machines."""

from __future__ import annotations

import shlex
import time
from pathlib import Path
from typing import Any

import boto3
import pytest
from driver import LIVE, TRAIN, Driver, wait_until
from moto import mock_aws

from docs_build.blocks import Block, before, blocks_of, pages
from hyperpod_rehearsal.records.layout import DEFAULT_NAME
from tests.docs import pasted
from tests.docs.moto_endpoint import MotoEndpoint
from tests.unit.cli.test_cli_events_connect import ssm  # noqa: F401

HERE = "/fsx/trainer/pasted"
TRAINER = f"""
import os, sys
sys.path.insert(0, "{TRAIN}/gpt")
import torch, world
total = 101
torch.manual_seed(0)
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.AdamW(model.parameters())
world.join(dict(os.environ), timeout=180)

def train_step(step):
    loss = model(torch.ones(4)).square().sum()
    loss.backward()
    optimizer.step()
    return loss.item()
"""
"""What a training script has above the loop that the page shows."""


def marked(marker: str) -> list[Any]:
    return [pytest.param(blocks, id=page) for page, blocks in pages(marker).items()]


def readme_first(marker: str) -> list[Any]:
    """As `marked`; only README.md's is in the gate."""
    return [
        pytest.param(blocks, id=page, marks=[] if page == "README.md" else pytest.mark.full)
        for page, blocks in pages(marker).items()
    ]


@pytest.mark.parametrize("blocks", readme_first("runs: rehearsal"))
def test_an_admin_types_it(cluster: Driver, blocks: list[Block], tmp_path: Path) -> None:
    directory = pasted.project(tmp_path / "project")
    (directory / ".ssh").mkdir(0o700)
    pasted.run_page(blocks, directory, cluster.environment)


@pytest.mark.full
@pytest.mark.parametrize("blocks", marked("runs: logs"))
def test_an_admin_reads_what_nodes_have_logged(cluster: Driver, blocks: list[Block], tmp_path: Path) -> None:
    """HyperPod's agent ships each node's log to a stream of its own; here this test does."""
    identifier = cluster.aws("sagemaker", "describe-cluster", "--cluster-name", "demo")["ClusterArn"].split("/")[-1]
    group = f"/aws/sagemaker/Clusters/demo/{identifier}"
    with mock_aws(), MotoEndpoint() as moto:
        logs = boto3.client("logs", "us-east-1", endpoint_url=moto.url)
        logs.create_log_group(logGroupName=group)
        for node in cluster.nodes():
            where = {"logGroupName": group, "logStreamName": f"LifecycleConfig/{node['group']}/{node['instance_id']}"}
            logs.create_log_stream(**where)
            # A round of the timer, in case that it has had none since the creation.
            log = "systemctl start hyperpod-kit-health.service; cat /var/log/provision/provisioning.log"
            lines = cluster.on(node["instance_id"], log).splitlines()
            now = int(time.time() * 1000)
            logs.put_log_events(**where, logEvents=[{"timestamp": now, "message": line} for line in lines])
        there = {**cluster.environment, "AWS_ENDPOINT_URL_CLOUDWATCH_LOGS": moto.url}
        pasted.run_page(blocks, pasted.project(tmp_path / "project"), there)


PLUGIN = """#!/bin/sh
if [ "$1" = --version ]; then echo 1.2.707.0; exit; fi
printf '\\nStarting session with SessionId: s-1\\n'
exec hyperpod-kit rehearse exec --name test "$(printf %s "$5" | grep -o 'i-[0-9a-f]\\{17\\}')"
"""
"""session-manager-plugin is AWS's. This one takes its arguments, and opens a login shell on the session's target."""


@pytest.mark.full
@pytest.mark.parametrize("blocks", marked("runs: sessions"))
def test_an_admin_has_sessions(
    cluster: Driver,
    ssm: str,  # noqa: F811
    blocks: list[Block],
    tmp_path: Path,
) -> None:
    directory = pasted.project(tmp_path / "project")
    plugin = directory / ".programs" / "session-manager-plugin"
    plugin.parent.mkdir()
    plugin.write_text(PLUGIN)
    plugin.chmod(0o755)
    pasted.run_page(blocks, directory, {**cluster.environment, "AWS_ENDPOINT_URL_SSM": ssm})


@pytest.mark.full
@pytest.mark.parametrize("blocks", marked("runs: node"))
def test_root_types_it_on_a_node(cluster: Driver, blocks: list[Block]) -> None:
    for block in blocks:
        cluster.on("worker-group/0", f"set -euo pipefail\n{block.text}", timeout=180)


@pytest.mark.full
@pytest.mark.parametrize("blocks", marked("runs: job"))
def test_the_owner_of_a_job_types_it(cluster: Driver, blocks: list[Block]) -> None:
    submit, *looks = blocks
    (script,) = before(submit, "bash", "job script")
    (loop, *_) = [block for block in blocks_of(submit.document) if block.language == "python"]
    cluster.on("controller", f"install -d -o trainer -g trainer /fsx/trainer {HERE} && ln -sfn /fsx/trainer /fsx/me")
    for name, text in (("train.sbatch", script.text), ("train.py", TRAINER + loop.text)):
        cluster.on("controller", f"printf %s {shlex.quote(text)} >{HERE}/{name}")
    typed(cluster, submit)
    job = max(cluster.on("controller", "squeue -h -u trainer -o %A").split(), key=int)
    state = wait_until("end of the job", lambda: ended(cluster, job), timeout=180)
    assert state == "COMPLETED", cluster.on("controller", f"cat {HERE}/slurm-{job}.out", check=False)
    for block in looks:
        typed(cluster, block)


def typed(driver: Driver, block: Block) -> None:
    """Type a block as the job's owner, with the environment for training on PATH."""
    there = f"cd {HERE}\nexport PATH={TRAIN}/bin:$PATH\nset -euo pipefail\n"
    driver.on("controller", there + block.text, user="trainer")


def ended(driver: Driver, job: str) -> str:
    state = driver.job_state(job)
    return "" if state in LIVE else state


@pytest.mark.full
@pytest.mark.parametrize("blocks", marked("runs: full"))
def test_a_rehearsal_of_its_own(blocks: list[Block], tmp_path: Path, request: pytest.FixtureRequest) -> None:
    directory = pasted.project(tmp_path / "project")
    driver = Driver(DEFAULT_NAME, tmp_path)
    request.addfinalizer(driver.down)
    pasted.run_page(blocks, directory, {}, timeout=600)
