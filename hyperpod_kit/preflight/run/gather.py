"""Ask AWS everything that the checks want to know: reads only, in parallel, at most WORKERS calls at a time.

First what stands by itself, then what follows from it: route tables of the subnets' VPC, rules of the security groups
of the file systems that were found. What is wrong already is not asked about.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Callable, Hashable, Mapping, TypeVar

from hyperpod_kit.aws import iam
from hyperpod_kit.aws.back_off import retry_while_throttled
from hyperpod_kit.config.settings.settings import Settings
from hyperpod_kit.preflight import placement
from hyperpod_kit.preflight.aws_facts import buckets, fsx, limits, network, role
from hyperpod_kit.preflight.checks.required_permissions import required_permissions
from hyperpod_kit.preflight.client import QueryClient
from hyperpod_kit.preflight.facts import AccountFacts, endpoint_security_group_ids
from hyperpod_kit.preflight.mounts import shared_file_systems as shared
from hyperpod_kit.preflight.mounts.registry import INQUIRIES

WORKERS = 8
"""Calls at a time. Each service allows some per second; IAM and EFS are the strictest."""

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


def gather_account_facts(
    settings: Settings, is_config_path_valid: Callable[[str], bool] = lambda path: True
) -> AccountFacts:
    """Query AWS for all facts about a configuration. `is_valid(path)`: whether nothing is wrong with that part
    of it yet; what is wrong is not queried.

    Raises Unreachable or AwsError when AWS cannot say who the caller is: then nothing else can be queried
    either. Everything else that fails is in `AccountFacts.not_queried`.
    """
    caller = retry_while_throttled(lambda: iam.caller_identity(settings.cluster.region))
    client = QueryClient(WORKERS)
    pool = ThreadPoolExecutor(WORKERS, thread_name_prefix="preflight")

    def submit(function: Callable[..., T], *arguments: Any) -> Future[T]:
        return pool.submit(function, client, *arguments)

    try:
        subnets = submit(network.fetch_subnets, settings)
        shares = {
            kind: {
                (requested.region, requested.id): submit(its.shared.fetch, requested)
                for requested in shared.file_system_queries(settings, kind)
                if is_config_path_valid(requested.path) and is_config_path_valid(requested.region_config_path)
            }
            for kind, its in INQUIRIES.items()
            if its.shared is not None
        }
        of_fsx = {
            (requested.region, requested.id): submit(fsx.fetch_file_system, requested)
            for requested in fsx.file_system_queries(settings)
            if is_config_path_valid(requested.path)
        }
        roles = [node_role for node_role in placement.execution_roles(settings) if is_config_path_valid(node_role.path)]
        role_facts = {node_role.arn: submit(role.fetch_role, settings, node_role) for node_role in roles}
        decisions = {}
        for node_role in roles:
            if node_role.account != caller.account:
                continue
            for permission in required_permissions(settings, node_role):
                if is_config_path_valid(permission.path):
                    decision = submit(role.simulate_decisions, settings, node_role, permission)
                    decisions[node_role.arn, permission.sid] = decision
        heads = {
            name: submit(buckets.fetch_head, settings, name, path)
            for name, path in buckets.bucket_config_paths(settings).items()
            if is_config_path_valid(path)
        }
        empty = {
            key: submit(buckets.query_prefix_is_empty, settings, *key, path)
            for key, path in buckets.read_only_prefix_config_paths(settings).items()
            if is_config_path_valid(path)
        }
        secrets = {
            secret.arn: submit(limits.query_secret_or_parameter_exists, secret, f"hyperpod_kit.secrets[{index}].arn")
            for index, secret in enumerate(settings.secrets)
            if is_config_path_valid(f"hyperpod_kit.secrets[{index}].arn")
        }
        types, offered = submit(network.fetch_instance_types, settings), submit(network.fetch_offerings, settings)
        quotas, used = submit(limits.fetch_quotas, settings), submit(limits.fetch_node_counts_by_cluster, settings)
        file_systems = {kind: _await_results(futures) for kind, futures in shares.items()}
        fsx_systems = _await_results(of_fsx)
        nodes = [
            group
            for node_placement in placement.network_placements(settings)
            for group in node_placement.vpc.security_group_ids
        ]
        stores = [system for systems in file_systems.values() for system in systems.values()]
        groups = {*nodes, *endpoint_security_group_ids([*stores, *fsx_systems.values()])}
        surroundings = network.fetch_network(client, settings, subnets.result(), groups)
        network_facts = None
        if placement.network_placements(settings):
            network_facts = surroundings
        return AccountFacts(
            caller,
            network_facts,
            _await_results(role_facts),
            _await_results(decisions),
            _await_results(heads),
            _await_results(empty),
            file_systems,
            fsx_systems,
            types.result(),
            offered.result(),
            quotas.result(),
            used.result(),
            _await_results(secrets),
            tuple(
                sorted(
                    dict.fromkeys(client.not_queried),
                    key=lambda unanswered: (unanswered.path, unanswered.action, unanswered.what),
                )
            ),
        )
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _await_results(futures: Mapping[K, Future[T]]) -> dict[K, T]:
    return {key: future.result() for key, future in futures.items()}
