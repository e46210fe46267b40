"""What all ranks agree on when a run starts: who it is, its agents, its epoch."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from hyperpod_kit.checkpoint.agent.protocol.trainer_channel import AgentEvent, Connect, TrainerMessage
from hyperpod_kit.checkpoint.agent.shm import shm_paths, shm_slots
from hyperpod_kit.checkpoint.agent.shm.control_page import CaptureOrigin, Key
from hyperpod_kit.checkpoint.agent.wire.channel import PROTOCOL, JsonMessage
from hyperpod_kit.checkpoint.agent_client import open_managers
from hyperpod_kit.checkpoint.agent_client.agent_supervisor import AgentSupervisor
from hyperpod_kit.checkpoint.ranks import wire_values
from hyperpod_kit.checkpoint.ranks.collectives import Ranks, first_problem_with_rank
from hyperpod_kit.checkpoint.repository import commit
from hyperpod_kit.checkpoint.repository.format import digest
from hyperpod_kit.checkpoint.repository.read import verify
from hyperpod_kit.checkpoint.repository.records import catalog
from hyperpod_kit.checkpoint.repository.records import identity as identities
from hyperpod_kit.checkpoint.repository.store.open import is_path
from hyperpod_kit.environment import HPK_ATTEMPT, HPK_ATTEMPT_KEY
from hyperpod_kit.errors import CheckpointError, RunIsOwned
from hyperpod_kit.system import process
from hyperpod_kit.untrusted import listening, message_auth


@dataclass(frozen=True)
class StartIdentity:
    """This start of the run, the same on all ranks except for `owner` and `hosts`' order."""

    root: str
    run: identities.RunIdentity
    incarnation: str
    token: str
    algorithm: str
    hosts: tuple[str, ...]
    owner: tuple[int, int] = field(default_factory=lambda: process.this_process())
    job: dict[str, Any] = field(
        default_factory=lambda: {
            key: os.environ[name]
            for key, name in (
                ("slurm_job_id", "SLURM_JOB_ID"),
                ("restart", "SLURM_RESTART_COUNT"),
                ("attempt", HPK_ATTEMPT),
            )
            if name in os.environ
        }
    )

    def origin(self, ranks: Ranks) -> CaptureOrigin:
        """Return what the control pages say of this rank's snapshots."""
        return CaptureOrigin(
            rank=ranks.rank,
            world=ranks.world,
            incarnation=self.incarnation,
            run=self.run.run,
            run_id=self.run.run_id,
            root=self.root,
            job=dict(self.job),
            owner=self.owner,
        )

    @property
    def rank_count_on_this_host(self) -> int:
        """Return how many ranks run on this machine."""
        return self.hosts.count(socket.gethostname())


def agree_on_start_identity(
    ranks: Ranks, root: str | os.PathLike[str], run: str | None, algorithm: str | None
) -> StartIdentity:
    """Open the root on rank 0, choose the digest and the incarnation, and return them on all ranks. A
    collective.

    It closes Managers of the root that the program has lost. Raises what rank 0 raised, everywhere:
    RunIsOwned, CheckpointError.
    """
    where = os.fspath(root)
    if is_path(where):
        where = os.path.abspath(where)
    open_managers.close_forgotten(where)
    problem = None
    if open_managers.manager_with_live_agent(where) is not None:
        problem = f"this process already has a Manager of {where}"
    key = _read_attempt_key_from_environment()
    greetings = ranks.handshake(
        (
            socket.gethostname(),
            [name for name, ok in digest.available_algorithms().items() if ok],
            problem,
            PROTOCOL,
            message_auth.proof(key, "which attempt") if key else "",
        )
    )
    problem = first_problem_with_rank([rank_problem for _, _, rank_problem, _, _ in greetings])
    if problem is not None:
        raise RunIsOwned(problem, hint="close that Manager first, or use it; `with Manager(...)` closes itself")
    response: Any = None
    if ranks.rank == 0:
        try:
            chosen = digest.algorithm_name_or_environment_default(algorithm) or digest.fastest_common_algorithm(
                *[names for _, names, *_ in greetings]
            )
            digest.algorithm(chosen)
            response = (identities.ensure_run_identity(where, run), secrets.token_hex(3), secrets.token_hex(16), chosen)
        except CheckpointError as err:
            response = err
        except OSError as err:
            response = _unusable_root_error(where, err)
    response = ranks.broadcast(response)
    if isinstance(response, Exception):
        raise response
    identity, incarnation, token, chosen = response
    if len({protocol for *_, protocol, _ in greetings}) > 1:
        raise CheckpointError(
            "the ranks' agents run different releases of hyperpod-kit: all ranks of a run need the same release"
        )
    if key and len({attempt for *_, attempt in greetings}) == 1:
        # The token passed through gloo, where others may listen; the attempt's key did not.
        token = message_auth.derive_key(key, "agents", token).hex()
    return StartIdentity(
        where, identities.RunIdentity(*identity), incarnation, token, chosen, tuple(host for host, *_ in greetings)
    )


def _read_attempt_key_from_environment() -> bytes:
    """Return the key that only this job attempt's processes have; b"" without `job run`."""
    with contextlib.suppress(ValueError):
        return bytes.fromhex(os.environ.get(HPK_ATTEMPT_KEY, ""))
    return b""


def start_agent(
    ranks: Ranks,
    identity: StartIdentity,
    options: JsonMessage,
    on_event: Callable[[AgentEvent], TrainerMessage | None],
    meanwhile: Callable[[], None],
) -> AgentSupervisor:
    """Start this rank's agent, connect it to rank 0's and return its supervisor. A collective. Raises
    RunIsOwned, CheckpointError, OSError; alike on all ranks.

    `meanwhile` is called once, while the agent starts.
    """
    local_addresses = []
    if ranks.rank == 0 or options.get("partners"):
        local_addresses = listening_addresses(identity.hosts)
    setup: JsonMessage = {
        "root": identity.root,
        "run": identity.run.run,
        "run_id": identity.run.run_id,
        "rank": ranks.rank,
        "world": ranks.world,
        "incarnation": identity.incarnation,
        "token": identity.token,
        "owner": list(identity.owner),
        "addresses": local_addresses,
        "algorithm": identity.algorithm,
        "versions": {"torch": torch.__version__},
        **options,
    }
    error: Exception | None = None
    agent: AgentSupervisor | None = None
    port = 0
    try:
        setup["folder"] = _ensure_shm_directory()
        agent = AgentSupervisor(setup, on_event)
        meanwhile()
        port = agent.wait_for_ready_port()
    except ImportError as err:
        error = CheckpointError(f"a module of hyperpod-kit no longer exists: {err}")
    except (CheckpointError, OSError) as err:
        error = err
    except BaseException:
        if agent is not None:
            agent.detach()
        raise
    errors = [rank_error for rank_error in ranks.gather(error) if rank_error is not None]
    if errors or agent is None:
        if agent is not None:
            agent.detach()
        raise errors[0]
    # The name comes last: where none of the addresses is of this machine, its agent listens on all interfaces.
    names = list(local_addresses)
    if _has_several_hosts(identity.hosts):
        names.append(socket.gethostname())
    endpoints = [(host, port) for host in names]
    agent.send(Connect(ranks.broadcast(endpoints if ranks.rank == 0 else None)))
    return agent


@wire_values.register_type
class Epoch(NamedTuple):
    """This start's epoch and the highest seq so far. `problem`: why the root could not be written, so that the epoch is
    not ours yet: what is there can be restored, and nothing be saved."""

    number: int
    seq: int
    problem: str = ""


def claim_start_epoch(ranks: Ranks, identity: StartIdentity, keys_of_all_ranks: Sequence[Key]) -> Epoch:
    """Rank 0 claims an epoch above everything that the root and the ranks have. Raises CheckpointError.

    `keys_of_all_ranks`: what all ranks have in memory and on their nodes' disks.
    """
    hot = [key[:2] for key in keys_of_all_ranks]
    response: Any = None
    if ranks.rank == 0:
        try:
            epoch, seq = catalog.highest_epoch_and_seq(identity.root)
            seq = max([seq] + [s for _, s in hot])
            above = max([e for e, _ in hot], default=0)
            response = Epoch(max(epoch, above) + 1, seq)
            response = Epoch(
                commit.claim_epoch(identity.root, identity.run, above=above, job=identity.job, first_seq=seq + 1), seq
            )
        except CheckpointError as err:
            response = err
        except OSError as err:
            # The root is full or read-only: no reason not to take from memory, or from there, what it has.
            if isinstance(response, Epoch):
                response = response._replace(problem=_describe_os_error_and_free_space(identity.root, err))
            else:
                response = _unusable_root_error(identity.root, err)
    response = ranks.broadcast(response)
    if isinstance(response, Exception):
        raise response
    return Epoch(*response)


def _describe_os_error_and_free_space(root: str, err: OSError) -> str:
    return f"{root}: {verify.describe_failure(err)}{_describe_free_space(root)}"


def _unusable_root_error(root: str, err: OSError) -> CheckpointError:
    """The error for a root with which no run can start."""
    hint = f"hyperpod-kit checkpoint ls {root}"
    if is_path(root):
        hint = f"df -h -i {root}; mount; or another root"
    return CheckpointError(_describe_os_error_and_free_space(root, err), hint=hint)


def _describe_free_space(root: str) -> str:
    """Describe how much is free where the root is to be; "" when that is not known."""
    while is_path(root):
        try:
            stats = os.statvfs(root)
            return f"; {stats.f_bavail * stats.f_frsize} bytes and {stats.f_favail} inodes are free there"
        except FileNotFoundError:
            root = os.path.dirname(root)
        except OSError:
            break
    return ""


def _ensure_shm_directory() -> str:
    """The directory of shared memory that this user's slots are in. Raises OSError."""
    try:
        return shm_paths.ensure_user_directory()
    except OSError as err:
        raise shm_slots.error_with_path_and_remedy(err, shm_paths.shared_memory_root()) from None


def _has_several_hosts(hosts: Sequence[str]) -> bool:
    return len(set(hosts)) > 1


def listening_addresses(hosts: Sequence[str]) -> list[str]:
    """Return the addresses on which an agent of this machine listens and those of the others may reach
    it, best first."""
    here = socket.gethostname()
    if _has_several_hosts(hosts):
        return listening.addresses_reachable_from_peers(here, sorted(set(hosts) - {here}))
    return ["127.0.0.1"]
