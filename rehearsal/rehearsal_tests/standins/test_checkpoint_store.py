"""The checkpoint store's contract on a Mountpoint mount, by its own rules and with those that allow more."""

from __future__ import annotations

from typing import Iterator

import pytest

from hyperpod_kit.checkpoint.repository.store.base import Store
from hyperpod_kit.checkpoint.repository.store.open import open_store
from hyperpod_kit.checkpoint.repository.store.restricted import RestrictedStore
from rehearsal_tests.standins.conftest import BUCKET, needs_mounts
from tests.unit.checkpoint.store_contract import StoreContract

pytestmark = needs_mounts


@pytest.fixture
def bucket(store):
    """The service's store; the tests' `store` is the one on the mount."""
    return store


class TestAsMounted(StoreContract):
    options: tuple[str, ...] = ()

    @pytest.fixture
    def store(self, s3_node, bucket) -> Iterator[Store]:
        target = s3_node.mount_point("mnt")
        s3_node.mount("mount-s3", *self.options, "--prefix", "run/", BUCKET, target)
        made = open_store(str(target))
        assert isinstance(made, RestrictedStore)
        yield made


class TestAllowedToDelete(TestAsMounted):
    options = ("--allow-delete",)
