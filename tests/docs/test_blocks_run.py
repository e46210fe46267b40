"""Blocks that are marked to run beside the example configuration, or against AWS's API on loopback, are run."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Iterator, cast

import pytest

from docs_build.blocks import ROOT, Block, pages
from hyperpod_rehearsal.credentials.keys import Key
from hyperpod_rehearsal.efs.service import EfsService
from hyperpod_rehearsal.records import state
from hyperpod_rehearsal.s3.store import StoredBuckets
from hyperpod_rehearsal.server import serve
from tests.docs import pasted
from tests.unit.cli.conftest import Control

NO_NETWORK = {"AWS_ENDPOINT_URL": "http://127.0.0.1:1", "AWS_MAX_ATTEMPTS": "1"}


def marked(marker: str) -> list[Any]:
    return [pytest.param(blocks, id=page) for page, blocks in pages(marker).items()]


def readme_first(marker: str) -> list[Any]:
    """As `marked`; only README.md's are in the gate, which parses all of them (test_blocks.py)."""
    return [
        pytest.param(blocks, id=page, marks=[] if page == "README.md" else pytest.mark.full)
        for page, blocks in pages(marker).items()
    ]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return pasted.project(tmp_path / "project")


@pytest.mark.parametrize("blocks", marked("runs: offline"))
def test_offline(blocks: list[Block], project: Path) -> None:
    pasted.run_page(blocks, project, NO_NETWORK)


@pytest.mark.parametrize("blocks", marked("runs: empty directory"))
def test_empty_directory(blocks: list[Block], tmp_path: Path) -> None:
    pasted.run_page(blocks, tmp_path, NO_NETWORK)


@pytest.mark.full
@pytest.mark.parametrize("blocks", marked("runs: training"))
def test_training(blocks: list[Block], project: Path) -> None:
    pytest.importorskip("torch")
    shm = project / "shm"
    shm.mkdir()
    here = {"ROOT": "ROOT", "STEPS": "20", "HPK_SHM_DIR": str(shm), "OMP_NUM_THREADS": "1"}
    pasted.run_page(blocks, project, {**NO_NETWORK, **here})
    if any("model.safetensors" in block.text for block in blocks):
        assert (project / "model.safetensors").stat().st_size


@pytest.fixture
def cloud(tmp_path: Path) -> Iterator[dict[str, str]]:
    """An endpoint on loopback: the rehearsal's S3, SageMaker and EFS; clusters come up at once, without machines."""
    store = StoredBuckets(tmp_path / "s3")
    store.create_bucket("sagemaker-hyperpod-kit-demo")
    efs = tmp_path / "efs"
    efs.mkdir()
    state.write_json(efs / "registry.json", {"file_systems": ["fs-0fedcba9876543210"]}, 0o644)
    control = Control()
    control.events = []
    server = serve([("127.0.0.1", 0)], store, cast(Any, control), EfsService(efs), keys={"test": Key("test", "test")})
    yield {"AWS_ENDPOINT_URL": server.url, "HPK_POLL_INTERVAL": "0.2"}
    server.close()


@pytest.mark.full
@pytest.mark.parametrize("blocks", readme_first("runs: cloud"))
def test_cloud(blocks: list[Block], project: Path, cloud: dict[str, str]) -> None:
    pasted.run_page(blocks, project, cloud)


def test_a_block_that_fails_is_noticed(project: Path) -> None:
    text = "hyperpod-kit validate\nhyperpod-kit validat\ntrue\n"
    with pytest.raises(AssertionError, match="No such command"):
        pasted.run(Block(ROOT / "README.md", 1, "bash", "", text), project, NO_NETWORK)
