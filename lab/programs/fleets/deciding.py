"""What `job run` does for a fleet: the decision at 20 TB, one look at all nodes, the records of all ranks' ends.

python lab/programs/fleets/deciding.py WORLD ROOT              (started by lab/programs/fleets, in a root of its own)
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import model
from meter import Meter
from peers import NODE

from hyperpod_kit import descriptors
from hyperpod_kit.checkpoint.repository import commit
from hyperpod_kit.checkpoint.repository.format import digest, layout, manifest
from hyperpod_kit.checkpoint.repository.records import identity
from hyperpod_kit.checkpoint.repository.store.open import open_store
from hyperpod_kit.job.base import exits
from hyperpod_kit.job.resume.checkpoint_choice import newest_complete_kit_else_foreign
from hyperpod_kit.slurm import hostlist, reach

NODES_AT_ONCE = 32

TOTAL = 20 * 10**12
"""Bytes of the checkpoint that its manifest speaks of."""

SERVER = """
import socket
listener = socket.create_server(("0.0.0.0", 0), backlog=4096)
print(listener.getsockname()[1], flush=True)
while True:
    listener.accept()[0].close()
"""


def bytes_read_so_far() -> int:
    """What this process has read so far, from files and sockets."""
    return int(Path("/proc/self/io").read_text().split("\n")[0].split()[1])


def write_committed_checkpoint(root: str, world: int) -> None:
    """Create and commit a checkpoint of `world` shards that are empty files."""
    whose = identity.ensure_run_identity(root, "decided")
    attempt = str(layout.CheckpointId(1, 10, 1, model.INCARNATION))
    os.mkdir(os.path.join(root, attempt))
    shards = []
    for rank in range(world):
        os.close(os.open(os.path.join(root, attempt, layout.shard_file(rank)), os.O_CREAT | os.O_WRONLY))
        shards.append(manifest.FileRecord(layout.shard_file(rank), TOTAL // world, f"xxh3:{rank:032x}", rank))
    extra = b"{}"
    body = manifest.Manifest(
        run="decided",
        run_id=whose.run_id,
        epoch=1,
        seq=1,
        step=10,
        world=world,
        plan="blake2b:" + "1" * 32,
        digest="xxh3",
        chunk=digest.CHUNK,
        total_bytes=TOTAL,
        tensors=model.tensor_count(),
        time=manifest.now(),
        shards=tuple(shards),
        extra=manifest.FileRecord.of(layout.EXTRA_FILE, extra),
    )
    commit.commit(open_store(root), attempt, body, extra)


def measure_node_check(meter: Meter, nodes: int) -> None:
    """Measure one check of all nodes, of which one refuses the connection."""
    server = subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        port = int(server.stdout.readline())
        with socket.socket() as closed:
            closed.bind(("127.0.0.1", 0))
            dead = closed.getsockname()[1]
            addresses = {f"node-{n:05d}": (f"127.1.{n // 250}.{n % 250 + 1}", port) for n in range(nodes)}
            addresses["node-00000"] = ("127.0.0.1", dead)
            with meter.measure_phase("look at all nodes") as row:
                answers = list(reach.probe_tcp_ports(addresses, 5.0).values())
                row["unasked"] = answers.count(reach.UNASKED)
                row["wrong"] = nodes - 1 - answers.count(reach.OPEN)
    finally:
        server.kill()
        server.wait()


def main(world: int, root: str) -> None:
    descriptors.raise_soft_limit_to_hard()  # as `job run` does
    meter = Meter()
    write_committed_checkpoint(root, world)
    with meter.measure_phase("decision") as row:
        before = bytes_read_so_far()
        if newest_complete_kit_else_foreign(root, {}).step != 10:
            raise SystemExit("another checkpoint was decided on")
        row["bytes_in"] = bytes_read_so_far() - before
    nodes = max(1, world // NODE)
    measure_node_check(meter, nodes)
    with meter.measure_phase("names of all nodes"):
        names = [f"node-{number:05d}" for number in range(nodes)]
        if hostlist.expand(hostlist.compress(names)) != names:
            raise SystemExit("names of nodes were lost")
    with meter.measure_phase("records of all ends: write"):
        now = time.time()

        def ended(rank: int) -> None:
            exits.write(root, "4711.0.0", exits.Exit(rank, f"node-{rank // NODE:05d}", "boot", 1, None, now, now))

        # Each rank syncs its own: nobody waits for another's, and one after another they would wait for a busy disk.
        with ThreadPoolExecutor(NODES_AT_ONCE) as pool:
            list(pool.map(ended, range(world)))
    with meter.measure_phase("records of all ends: read") as row:
        before = bytes_read_so_far()
        if len(exits.read(root, "4711.0.0")) != world:
            raise SystemExit("records were lost")
        row["bytes_in"] = bytes_read_so_far() - before
    meter.record_peak_memory()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
