"""Sessions of SSM with the nodes of a cluster, by AWS's own plugin."""

from __future__ import annotations

import shutil
from contextlib import suppress

from hyperpod_kit.aws.ssm import Ssm, session_request
from hyperpod_kit.aws.ssm import node_session_target as ssm_target
from hyperpod_kit.cluster.session import PLUGIN, session_plugin_program
from hyperpod_kit.errors import HyperpodKitError, UsageError
from hyperpod_kit.remote.connect.ssm_sessions import SsmSession, SsmSessions
from hyperpod_kit.remote.live_cluster import LiveCluster
from hyperpod_kit.remote.target import NodeTarget
from hyperpod_kit.run import LocalRunner


def create_ssm_sessions(cluster: LiveCluster) -> SsmSessions:
    """Return a factory of sessions with the nodes of a cluster. Raises UsageError without AWS's plugin."""
    # Before any call: a session that nobody takes up stays open on the node.
    if shutil.which(PLUGIN) is None:
        raise UsageError(f"{PLUGIN} is not on PATH", hint="install it, or --via ssh, controller or pull")
    version = LocalRunner().run([PLUGIN, "--version"], timeout=10.0, check=False).stdout
    arn = cluster.arn
    ssm = Ssm(cluster.region)

    def begin(target: NodeTarget) -> SsmSession:
        request = session_request(ssm_target(arn, target.group, target.instance_id))
        token = ssm.start_session(request)

        def end() -> None:
            with suppress(HyperpodKitError):
                ssm.terminate_session(token["SessionId"])

        start = session_plugin_program(token, request, region=ssm.region, endpoint=ssm.endpoint, version=version)
        return SsmSession(start, end)

    return SsmSessions(begin)
