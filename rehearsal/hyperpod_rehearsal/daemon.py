"""The one process of a rehearsal: endpoint, names, control plane and recovery loop; parent of all machines.

`python -m hyperpod_rehearsal.daemon --state DIR`. SIGTERM takes everything down. When it is killed instead, its
guardian does, and where that was killed too, `rehearse down`.
"""

from __future__ import annotations

import argparse
import os
import resource
import signal
import stat
import sys
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import List, Optional

from hyperpod_kit.errors import HyperpodKitError, RehearsalError
from hyperpod_kit.run import LocalRunner
from hyperpod_kit.system.file_lock import lock_exclusively_within
from hyperpod_kit.system.process import identify_unless_gone_or_zombie
from hyperpod_kit.system.wait import fixed_pause
from hyperpod_kit.untrusted import by_descriptor
from hyperpod_rehearsal import cleanup, storage
from hyperpod_rehearsal.credentials.keys import Keys
from hyperpod_rehearsal.efs.service import EfsService
from hyperpod_rehearsal.guardian import Guardian
from hyperpod_rehearsal.logs.service import LogsService
from hyperpod_rehearsal.machines import layer, network
from hyperpod_rehearsal.machines.machine import MachineOptions, Machines
from hyperpod_rehearsal.machines.network import Network
from hyperpod_rehearsal.metadata.dns import DnsResponder
from hyperpod_rehearsal.metadata.metadata_server import MetadataServers
from hyperpod_rehearsal.mounts import efs
from hyperpod_rehearsal.mounts.mountpoint_s3 import BUCKETS
from hyperpod_rehearsal.platform import host_keys
from hyperpod_rehearsal.platform.cluster_state import serialize_clusters
from hyperpod_rehearsal.platform.control_plane import RehearsalControlPlane
from hyperpod_rehearsal.platform.fleet import Fleet
from hyperpod_rehearsal.platform.market import Spot
from hyperpod_rehearsal.platform.node_files import NodeSecrets
from hyperpod_rehearsal.platform.operations import Operations
from hyperpod_rehearsal.platform.patching import Patching
from hyperpod_rehearsal.platform.recovery import Recovery
from hyperpod_rehearsal.platform.slurm_control import SlurmControl
from hyperpod_rehearsal.records import state
from hyperpod_rehearsal.records.layout import Layout, lock_file_path_with_directory_made
from hyperpod_rehearsal.records.settings import RehearsalSettings
from hyperpod_rehearsal.s3.store import StoredBuckets
from hyperpod_rehearsal.server import Server, serve


class Daemon:
    """A rehearsal from `start` to `stop`."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.settings = RehearsalSettings.load(layout.root)
        self.stopping = threading.Event()
        self._saving = threading.Lock()
        self._server: Optional[Server] = None
        self._dns: Optional[DnsResponder] = None
        self._operations: Optional[Operations] = None
        self._guardian: Optional[Guardian] = None
        self._gateway = ""

    def start(self) -> None:
        """Make network, image mount and keys, then serve. Raises HyperpodKitError or OSError."""
        layout = self.layout
        self._guardian = Guardian(layout)
        bridge = self._create_bridge_on_free_subnet()
        self._gateway = bridge.gateway
        self._mount_image()
        layer.rebuild_layer(layout.layer, self.settings.trees, self.settings.profile)
        self._make_fuse_device()
        for directory in (layout.nodes, layout.retained_logs):
            by_descriptor.make_directories(directory)
        storage.make_file_system_directories_and_registries(layout, bridge.gateway)
        host_keys.create_key_pair_if_missing(layout.ssh_key, f"hyperpod-kit rehearsal {self.settings.name}")
        store = StoredBuckets(layout.s3)
        for bucket in BUCKETS:
            store.create_bucket(bucket)
        machines = Machines(layout, MachineOptions(self.settings.shares, self.settings.shm_size))
        keys = Keys.generate()
        keys.save(layout.root)
        secrets = NodeSecrets(Path(f"{layout.ssh_key}.pub").read_text(), os.urandom(1024), keys.node)
        fleet = Fleet(layout, self.settings, bridge, MetadataServers(), machines, secrets, "", self.stopping)
        self._operations = Operations(fleet, SlurmControl(machines), store, self.write_state_file)
        self._server = serve(
            [("127.0.0.1", 0), (bridge.gateway, 0)],
            store,
            RehearsalControlPlane(self._operations),
            EfsService(layout.file_systems[efs.KIND.data]),
            LogsService(layout, self._operations.clusters),
            keys=keys.by_id(),
        )
        bridge.require_nodes_reach_gateway_port(self._server.port)
        fleet.endpoint = f"http://{bridge.gateway}:{self._server.port}"
        self._dns = _start_dns_responder(bridge.gateway)
        threading.Thread(
            target=Recovery(self._operations, self.stopping).recover_until_stopped, daemon=True, name="recovery"
        ).start()
        spot = Spot(fleet, self._operations.clusters, self.stopping)
        threading.Thread(target=spot.take_back_until_stopped, daemon=True, name="spot").start()
        patching = Patching(self._operations, self.stopping)
        threading.Thread(target=patching.patch_until_stopped, daemon=True, name="patching").start()
        self.write_state_file()
        state.write_json(
            layout.ready_file, {"endpoint": f"http://127.0.0.1:{self._server.port}", "gateway": bridge.gateway}
        )

    def _create_bridge_on_free_subnet(self) -> Network:
        """Choose a free subnet and create the bridge on it, under a lock: one rehearsal at a time."""
        runner = LocalRunner()
        with by_descriptor.open_stream_for_writing(lock_file_path_with_directory_made("network"), "w") as handle:
            if not lock_exclusively_within(handle.fileno(), 30.0, fixed_pause(0.05)):
                raise RehearsalError("another rehearsal has held the network lock for too long")
            subnet = network.choose_free_second_octet(network.networks_in_use(runner))
            bridge = Network(self.layout, subnet, runner)
            bridge.create_bridge()
        return bridge

    def _mount_image(self) -> None:
        by_descriptor.make_directories(self.layout.image_mount_point)
        LocalRunner().run(
            ["mount", "-t", "squashfs", "-o", "ro,loop", self.settings.image, str(self.layout.image_mount_point)]
        )

    def _make_fuse_device(self) -> None:
        path = self.layout.root / "dev-fuse"
        with by_descriptor.parent_directory(path) as (folder, name):
            os.mknod(name, stat.S_IFCHR | 0o666, os.makedev(10, 229), dir_fd=folder)
        by_descriptor.set_mode(path, 0o666)

    def write_state_file(self) -> None:
        """Write state.json."""
        operations, server = self._operations, self._server
        with self._saving:
            clusters = []
            if operations is not None:
                with operations.lock:
                    clusters = serialize_clusters(operations.clusters)
            data = {
                "name": self.settings.name,
                "id": self.layout.id,
                "gateway": self._gateway,
                "saved_at": time.time(),
                "endpoint": f"http://127.0.0.1:{server.port}" if server else "",
                "image": self.settings.image,
                "shares": self.settings.shares,
                "clusters": clusters,
            }
            if self.layout.root.is_dir():
                state.write_json(self.layout.state_file, data)

    def stop_and_list_remaining(self) -> list[str]:
        """End every machine, stop serving, remove every trace but the directory; returns what could not be removed."""
        self.stopping.set()
        if self._server is not None:
            self._server.close()
        if self._operations is not None:
            with self._operations.lock:
                clusters = list(self._operations.clusters.values())
            with ThreadPoolExecutor(max_workers=max(1, len(clusters))) as pool:
                list(pool.map(self._operations.remove_machines, clusters))
        if self._dns is not None:
            self._dns.close()
        remaining = cleanup.remove_host_resources_and_list_remaining(self.layout)
        if self._guardian is not None:
            self._guardian.end_without_cleanup()
        return remaining


def _start_dns_responder(address: str) -> DnsResponder:
    try:
        return DnsResponder(address)
    except OSError as err:
        raise RehearsalError(
            f"cannot answer DNS on {address}:53 ({err.strerror}): a DNS server of this machine "
            "listens on all addresses",
            hint="ss -ulpn 'sport = :53'",
        ) from err


def main(argv: Optional[List[str]] = None) -> int:
    """Run until SIGTERM or SIGINT. Exit code 1 when it could not start or left something behind."""
    parser = argparse.ArgumentParser(prog="python -m hyperpod_rehearsal.daemon")
    parser.add_argument("--state", type=Path, required=True)
    layout = Layout(parser.parse_args(argv).state.absolute())
    identity = identify_unless_gone_or_zombie(os.getpid())
    assert identity is not None
    state.write_process_identity(layout.daemon_file, identity)
    stop_requested = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop_requested.set())
    # Each machine, mount and connection costs descriptors of this one process.
    _, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard_limit, hard_limit))
    daemon = Daemon(layout)
    try:
        daemon.start()
    except (HyperpodKitError, OSError) as err:
        traceback.print_exc()
        daemon.stop_and_list_remaining()
        state.write_json(layout.ready_file, {"error": err.message if isinstance(err, HyperpodKitError) else str(err)})
        return 1
    while not stop_requested.wait(3600.0):
        pass
    remaining = daemon.stop_and_list_remaining()
    if remaining:
        print("left behind:", ", ".join(remaining), file=sys.stderr, flush=True)
    if remaining:
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
