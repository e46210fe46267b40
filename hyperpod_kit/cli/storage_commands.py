"""storage: the group; what its commands do is imported when they are called."""

from __future__ import annotations

import click

from hyperpod_kit.cli.storage.storage_audit_commands import audit
from hyperpod_kit.cli.storage.storage_bench_command import bench
from hyperpod_kit.cli.storage.storage_plan_command import plan
from hyperpod_kit.cli.storage.storage_preload_command import preload
from hyperpod_kit.cli.storage.storage_quota_commands import quota
from hyperpod_kit.cli.storage.storage_request_commands import request, requests
from hyperpod_kit.cli.storage.storage_tier_command import tier
from hyperpod_kit.cli.storage.storage_usage_command import usage
from hyperpod_kit.cli.terminal.lazy import SummaryGroup


@click.group(cls=SummaryGroup)
def storage() -> None:
    """Plan, measure and manage storage."""


storage.add_command(plan)
storage.add_command(bench)
storage.add_command(usage)
storage.add_command(quota)
storage.add_command(request)
storage.add_command(requests)
storage.add_command(tier)
storage.add_command(preload)
storage.add_command(audit)
