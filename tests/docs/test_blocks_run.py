"""Blocks that are marked to run are run: real bash, the real program, the example configuration."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Iterator

import pytest

from docs_build.blocks import ROOT, Block, blocks_of, documents
from hyperpod_kit.rehearsal.s3.store import S3Store
from hyperpod_kit.rehearsal.sagemaker.server import serve
from tests.unit.cli.conftest import Control

BLOCKS = [block for document in documents() for block in blocks_of(document)]
NO_NETWORK = {"AWS_ENDPOINT_URL": "http://127.0.0.1:1", "AWS_MAX_ATTEMPTS": "1"}


def marked(marker: str) -> list[Block]:
    return [block for block in BLOCKS if block.marker == marker]


def run(block: Block, directory: Path, environment: dict[str, str]) -> None:
    """Run a block as somebody who pastes it would; its first failing command ends it."""
    programs = directory / ".programs"
    programs.mkdir()
    program = programs / "hyperpod-kit"
    program.write_text(f"#!/bin/sh\nexec '{sys.executable}' -m hyperpod_kit.cli.main \"$@\"\n")
    program.chmod(0o755)
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", block.text],
        cwd=directory,
        env={
            **os.environ,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_EC2_METADATA_DISABLED": "true",
            "HOME": str(directory),
            "PYTHONPATH": str(ROOT),
            # AWS's own command line lies beside the interpreter, which nobody has to have activated.
            "PATH": f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            **environment,
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.returncode == 0, f"{block.place}\n{done.stdout}\n{done.stderr}"
    assert "\x1b" not in done.stdout + done.stderr, f"{block.place}: colours or a moving line where no terminal is"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    directory = tmp_path / "project"
    directory.mkdir()
    shutil.copy(ROOT / "provisioning_parameters.example.json", directory / "provisioning_parameters.json")
    shutil.copytree(ROOT / "slurm" / "jobs", directory / "jobs")
    return directory


@pytest.mark.parametrize("block", marked("runs: offline"), ids=lambda block: block.place)
def test_offline(block: Block, project: Path) -> None:
    run(block, project, NO_NETWORK)


@pytest.fixture
def cloud(tmp_path: Path) -> Iterator[dict[str, str]]:
    """An endpoint on loopback: SageMaker and S3 of the rehearsal; clusters come up at once, without machines."""
    store = S3Store(tmp_path / "s3")
    store.create_bucket("sagemaker-hyperpod-kit-demo")
    server = serve([("127.0.0.1", 0)], store, Control())
    yield {"AWS_ENDPOINT_URL": server.url, "HPK_POLL_INTERVAL": "0.2"}
    server.close()


@pytest.mark.parametrize("block", marked("runs: cloud"), ids=lambda block: block.place)
def test_cloud(block: Block, project: Path, cloud: dict[str, str]) -> None:
    run(block, project, cloud)


def test_a_block_that_fails_is_noticed(project: Path) -> None:
    document = ROOT / "README.md"
    with pytest.raises(AssertionError, match="no such command"):
        run(Block(document, 1, "bash", "", "hyperpod-kit validate\nhyperpod-kit validat\ntrue\n"), project, NO_NETWORK)
