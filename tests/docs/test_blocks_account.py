"""Blocks that ask an AWS account are run against moto, by programs of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from moto import mock_aws

from docs_build.blocks import pages
from tests.docs import pasted
from tests.docs.moto_endpoint import MotoEndpoint
from tests.unit.preflight.conftest import account


def readme_first(marker: str) -> list[Any]:
    """As in test_blocks_run.py."""
    return [pytest.param(page, marks=[] if page == "README.md" else pytest.mark.full) for page in pages(marker)]


def at(moto: MotoEndpoint) -> dict[str, str]:
    return {"AWS_ENDPOINT_URL": moto.url, "AWS_DEFAULT_REGION": "us-east-1"}


@pytest.mark.full
@pytest.mark.parametrize("page", readme_first("runs: account"))
def test_an_account_in_which_the_configuration_is_right(page: str, tmp_path: Path) -> None:
    directory = pasted.project(tmp_path / "project")
    with account(tmp_path) as world, MotoEndpoint() as moto:
        world.write(directory)
        pasted.run_page(pages("runs: account")[page], directory, at(moto))


@pytest.mark.full
@pytest.mark.parametrize("page", pages("runs: empty account"))
def test_an_empty_account(page: str, tmp_path: Path) -> None:
    with mock_aws(), MotoEndpoint() as moto:
        pasted.run_page(pages("runs: empty account")[page], pasted.project(tmp_path / "project"), at(moto))
