"""moto with what it lacks, and an account on it in which the example is right."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import Iterator

import pytest
from moto import mock_aws

from hyperpod_kit.config.load import load
from hyperpod_kit.preflight.run.gather import gather_account_facts
from tests.unit.preflight import iam_simulation, moto_more
from tests.unit.preflight.account import Case
from tests.unit.preflight.world import World, build


@contextmanager
def account(directory: Path, *, made: bool = True) -> Iterator[World]:
    """The account, as long as it is needed; nothing of it reaches other tests. `made`: or else an empty one."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("AWS_ENDPOINT_URL", "AWS_PROFILE"):
            patch.delenv(name, raising=False)
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            patch.setenv(name, "test")
        patch.setenv("MOTO_EC2_LOAD_DEFAULT_AMIS", "false")  # thousands that nobody asks for
        iam_simulation.install(patch)
        moto_more.install(patch)
        with mock_aws():
            yield build(directory) if made else World({})


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """An account to break something in."""
    with account(tmp_path) as made:
        yield made


@pytest.fixture(scope="session")
def right(tmp_path_factory: pytest.TempPathFactory) -> Case:
    """What the account says, asked once."""
    directory = tmp_path_factory.mktemp("account")
    with account(directory) as made:
        settings = load(made.write(directory))
        return Case(settings, gather_account_facts(settings))
