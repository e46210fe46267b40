"""Who am I, who are the others: from Slurm's environment, or torchrun's, or alone."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from datetime import timedelta
from typing import NamedTuple

import torch.distributed as dist

_SIOCGIFADDR = 0x8915


class World(NamedTuple):
    """This process's rank, and how many there are."""

    rank: int
    size: int


def _master(env: dict[str, str]) -> tuple[str, int]:
    """Address and port of rank 0: the step's first node, and a port that follows from the job and the attempt."""
    nodes = env.get("SLURM_STEP_NODELIST") or env.get("SLURM_JOB_NODELIST")
    if nodes:
        from hyperpod_kit.slurm.hostlist import expand

        address = expand(nodes)[0]
    else:
        address = env.get("MASTER_ADDR", "127.0.0.1")
    if "MASTER_PORT" in env:
        return address, int(env["MASTER_PORT"])
    # A new attempt must not meet the sockets of the last one.
    what = f"{env.get('SLURM_JOB_ID', '0')}.{env.get('SLURM_STEP_ID', '0')}.{env.get('HPK_ATTEMPT', '')}"
    return address, 20000 + sum(ord(c) * (7 * i + 1) for i, c in enumerate(what)) % 20000


def _interface_towards(address: str) -> str | None:
    """The network interface from which `address` is reached; gloo would otherwise guess by the host's name."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((address, 9))
            mine = probe.getsockname()[0]
            for _, name in socket.if_nameindex():
                try:
                    found = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
                except OSError:
                    continue
                if socket.inet_ntoa(found[20:24]) == mine:
                    return name
    except OSError:
        pass
    return None


def join(env: dict[str, str], *, timeout: float) -> World:
    """Join the process group over gloo; nothing to join when alone. `timeout` in seconds, for every collective."""
    rank = int(env.get("SLURM_PROCID", env.get("RANK", "0")))
    size = int(env.get("SLURM_NTASKS", env.get("WORLD_SIZE", "1")))
    if size > 1:
        address, port = _master(env)
        # Rank 0 reaches its own name over loopback, the others over the network: so it listens on the way to a peer.
        local = int(env.get("SLURM_NNODES", "1")) == 1
        peer = address
        if rank == 0 and not local:
            from hyperpod_kit.slurm.hostlist import expand

            peer = expand(env.get("SLURM_STEP_NODELIST") or env["SLURM_JOB_NODELIST"])[-1]
        name = _interface_towards(peer)
        if name and "GLOO_SOCKET_IFNAME" not in os.environ:
            os.environ["GLOO_SOCKET_IFNAME"] = name
        dist.init_process_group(
            "gloo",
            init_method=f"tcp://{address}:{port}",
            rank=rank,
            world_size=size,
            timeout=timedelta(seconds=timeout),
        )
    return World(rank, size)


def wait(here: World) -> None:
    """For all others to get here."""
    if here.size > 1:
        dist.barrier()
