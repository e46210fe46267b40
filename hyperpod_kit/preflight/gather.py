"""Ask AWS everything that the checks want to know: reads only, in parallel, at most WORKERS calls at a time.

First what stands by itself, then what follows from it: route tables of the subnets' VPC, rules of the security groups
of the file systems that were found. What is wrong already is not asked about.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Callable, Hashable, Mapping, TypeVar

from hyperpod_kit.aws import iam
from hyperpod_kit.aws.back_off import patiently
from hyperpod_kit.config.settings import Settings
from hyperpod_kit.preflight import placement
from hyperpod_kit.preflight.facts import AccountFacts, group_ids
from hyperpod_kit.preflight.mounts.registry import INQUIRIES
from hyperpod_kit.preflight.needs import needs
from hyperpod_kit.preflight.queries import buckets, fsx, limits, network, role, shared
from hyperpod_kit.preflight.queries.client import QueryClient

WORKERS = 8
"""Calls at a time. Each service allows some per second; IAM and EFS are the strictest."""

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


def gather(settings: Settings, sound: Callable[[str], bool] = lambda path: True) -> AccountFacts:
    """The facts about a configuration. `sound(path)`: whether nothing is wrong with that part of it yet.

    Raises Unreachable or AwsError when AWS cannot say who asks: then nothing else can be asked either. Everything else
    that fails is in `AccountFacts.not_queried`.
    """
    caller = patiently(lambda: iam.caller(settings.cluster.region))
    client = QueryClient(WORKERS)
    pool = ThreadPoolExecutor(WORKERS, thread_name_prefix="preflight")

    def ask(function: Callable[..., T], *arguments: Any) -> Future[T]:
        return pool.submit(function, client, *arguments)

    try:
        subnets = ask(network.subnets, settings)
        shares = {
            kind: {
                (want.region, want.id): ask(its.shared.query, want)
                for want in shared.wanted(settings, kind)
                if sound(want.path) and sound(want.region_path)
            }
            for kind, its in INQUIRIES.items()
            if its.shared is not None
        }
        of_fsx = {
            (want.region, want.id): ask(fsx.file_system, want) for want in fsx.wanted(settings) if sound(want.path)
        }
        roles = [wanted for wanted in placement.roles(settings) if sound(wanted.path)]
        there = {wanted.arn: ask(role.role, settings, wanted) for wanted in roles}
        decisions = {
            (wanted.arn, need.sid): ask(role.decisions, settings, wanted, need)
            for wanted in roles
            if wanted.account == caller.account
            for need in needs(settings, wanted)
            if sound(need.path)
        }
        looked = {
            name: ask(buckets.look, settings, name, path)
            for name, path in buckets.wanted(settings).items()
            if sound(path)
        }
        empty = {
            key: ask(buckets.is_empty, settings, *key, path)
            for key, path in buckets.read_prefixes(settings).items()
            if sound(path)
        }
        secrets = {
            secret.arn: ask(limits.secret, secret, f"hyperpod_kit.secrets[{index}].arn")
            for index, secret in enumerate(settings.secrets)
            if sound(f"hyperpod_kit.secrets[{index}].arn")
        }
        types, offered = ask(network.instance_types, settings), ask(network.offered, settings)
        quotas, used = ask(limits.quotas, settings), ask(limits.used, settings)
        file_systems = {kind: _results(asked) for kind, asked in shares.items()}
        fsx_systems = _results(of_fsx)
        nodes = [group for one in placement.placements(settings) for group in one.vpc.security_group_ids]
        stores = [system for found in file_systems.values() for system in found.values()]
        groups = {*nodes, *group_ids([*stores, *fsx_systems.values()])}
        surroundings = network.surroundings(client, settings, subnets.result(), groups)
        return AccountFacts(
            caller,
            surroundings if placement.placements(settings) else None,
            _results(there),
            _results(decisions),
            _results(looked),
            _results(empty),
            file_systems,
            fsx_systems,
            types.result(),
            offered.result(),
            quotas.result(),
            used.result(),
            _results(secrets),
            tuple(sorted(dict.fromkeys(client.not_queried), key=lambda one: (one.path, one.action, one.what))),
        )
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _results(futures: Mapping[K, Future[T]]) -> dict[K, T]:
    return {key: future.result() for key, future in futures.items()}
