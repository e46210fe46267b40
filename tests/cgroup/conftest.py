from __future__ import annotations

from typing import Iterator

import pytest

from tests.cgroup.site import Site, a_site


@pytest.fixture(scope="module")
def slurm_site() -> Iterator[Site]:
    """Four nodes that write 40 MB a second together, and jobs that may ask for 1,500 MB of each."""
    with a_site(nodes=4, memory=1500, rate=20 << 20) as made:
        yield made


@pytest.fixture
def site(slurm_site: Site) -> Iterator[Site]:
    """Its jobs are ended after each test, also when it failed: the next one needs the nodes."""
    yield slurm_site
    slurm_site.slurm.end_jobs()
