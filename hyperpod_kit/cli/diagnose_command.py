"""diagnose."""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Callable, Collection, Iterator, Mapping, Optional, Sequence

import click

from hyperpod_kit.cli.events_command import moment
from hyperpod_kit.cli.options import cluster_of_nodes, json_option, resolve_cluster
from hyperpod_kit.cli.output import bar, data, out, say
from hyperpod_kit.cli.ssh_options import open_sagemaker, ssh_options
from hyperpod_kit.untrusted.terminal import LONGEST_LINE, indented
from hyperpod_kit.untrusted.text import clean

if TYPE_CHECKING:
    from hyperpod_kit.aws.sagemaker import SageMaker
    from hyperpod_kit.cluster.events import Event
    from hyperpod_kit.cluster.nodes import ClusterNode
    from hyperpod_kit.remote.diagnose import Diagnosis, Shipped, Told
    from hyperpod_kit.remote.target import SshSettings, Target
    from hyperpod_kit.run import Runner


@click.command("diagnose")
@cluster_of_nodes
@click.option("--log", "with_log", is_flag=True, help="Print the last lines of each node's log too.")
@click.option("--actions", is_flag=True, help="Instead: what was done with root's rights, to whom, and why.")
@click.option(
    "--since", metavar="WHEN", callback=moment, help="Of --actions: 30m, 2h, 3d ago, or a moment; default: a day ago."
)
@ssh_options
@json_option
def diagnose(
    nodes: tuple[str, ...],
    config: Path,
    cluster: Optional[str],
    region: Optional[str],
    with_log: bool,
    actions: bool,
    since: Optional[datetime],
    ssh: SshSettings,
    as_json: bool,
) -> int:
    """Why the cluster or a node is not well: node, step, cause, remedy.

    NODE is an instance id, an address, or GROUP/INDEX; all nodes without one. CONFIG ends in .json, .yaml or .yml. Asks
    AWS for its messages and events, and each node for its own record of its creation, its log and its mounts. Of a node
    that does not answer, or failed and is gone, the log is read from CloudWatch.

    --actions lists, from the nodes' journals, what the kit did with root's rights to what is another's: requeued,
    drained, pruned, flushed, unmounted, restarted; on what, of whom, who asked and why. Only records of root's own
    programs count, so no user can forge one.

    Exit code 0 when nothing is wrong, 1 when something is, 3 when AWS does not answer.

    \b
    Examples:
      hyperpod-kit diagnose
      hyperpod-kit diagnose worker-group/1 --log
      hyperpod-kit diagnose --actions --since 2h
    """
    from hyperpod_kit.cluster.nodes import list_nodes, resolve
    from hyperpod_kit.remote import diagnose as asking
    from hyperpod_kit.remote.causes import recognise
    from hyperpod_kit.remote.target import Target

    chosen = resolve_cluster(config, cluster, region)
    sagemaker = open_sagemaker(chosen)
    answer = sagemaker.describe_cluster(chosen.name)
    listed = [node for node in list_nodes(sagemaker, chosen.name) if not node.gone]
    wanted = resolve(listed, nodes) if nodes else listed
    if actions:
        from hyperpod_kit.cli.actions_show import show

        reached = [Target(one.instance_id, one.group, "", one.address, one.status) for one in wanted]
        with _way_in(ssh, any(one.address for one in wanted)) as connect:
            return show(reached, connect, since, timeout=ssh.command_timeout, as_json=as_json)
    events = _troubles(sagemaker, chosen.name, answer)
    said = {event.instance_id: event for event in events if event.instance_id}
    targets = [
        (Target(one.instance_id, one.group, "", one.address, one.status), _told(one, said.get(one.instance_id)))
        for one in wanted
    ]
    if not nodes:
        targets += _gone(events, {one.instance_id for one in listed})
    with _way_in(ssh, any(one.address for one in wanted)) as connect, bar(
        f"asking {len(targets)} nodes", len(targets)
    ) as advance:
        found = asking.diagnose(
            targets,
            connect,
            shipped=_shipped(chosen.region, chosen.name, answer["ClusterArn"]),
            timeout=ssh.command_timeout,
            progress=lambda done: advance(1),
        )
    failure = answer.get("FailureMessage", "")
    healthy = not failure and all(one.healthy for one in found)
    if as_json:
        causes = [{"code": one.cause.code, "remedy": one.cause.remedy} for one in recognise(failure)]
        data(
            {
                "cluster": chosen.name,
                "status": answer["ClusterStatus"],
                "failure": failure,
                "known": causes,
                "nodes": [one.to_dict() for one in found],
            }
        )
        return 0 if healthy else 1
    if failure:
        out(indented(f"cluster {chosen.name} is {answer['ClusterStatus']}: {failure}"))
        for known in recognise(failure):
            out(f"  {known.cause.code}: {known.cause.meaning}\n  do: {known.cause.remedy}")
    for one in found:
        for line in sentences(one):
            out(line)
        if with_log:
            for line in one.log:
                out(f"    {clean(line, LONGEST_LINE)}")
    sick = sum(not one.healthy for one in found)
    say(f"{len(found)} nodes: {f'{sick} not well' if sick else 'nothing is wrong with them'}")
    return 0 if healthy else 1


RECENT = timedelta(hours=1)
"""How old an event may be to count as the present trouble of a cluster."""

GONE = 3
"""Failed nodes of a group that are gone by now and are told of: the newest, of each reason."""


def _troubles(sagemaker: SageMaker, name: str, answer: Mapping[str, Any]) -> list[Event]:
    """What failed lately, oldest first; only clusters whose nodes are provisioned continuously have it noted."""
    from hyperpod_kit.cluster.events import CONTINUOUS, WARN, list_events
    from hyperpod_kit.errors import AwsError

    if answer.get("NodeProvisioningMode") != CONTINUOUS:
        return []
    try:
        found = list_events(sagemaker, name, after=datetime.now(timezone.utc) - RECENT, level=WARN)
    except AwsError as err:
        say(f"without AWS's events: {err.message}")
        return []
    return [event for event in found if not event.passing]


def _told(node: ClusterNode, event: Optional[Event]) -> Told:
    """AWS's words about a node that is there. What an event says of one that runs by now is over."""
    from hyperpod_kit.remote.diagnose import Told

    if event is None or node.status == "Running":
        return Told(node.message)
    return Told(node.message or event.failure or event.description, event.lifecycle)


def _gone(events: Sequence[Event], there: Collection[str]) -> list[tuple[Target, Told]]:
    """Nodes that failed and were taken away: AWS tries again with another one, for ever. Newest first."""
    from hyperpod_kit.remote.diagnose import Told
    from hyperpod_kit.remote.target import Target

    found: dict[tuple[str, str], tuple[Target, Told]] = {}
    counts: Counter[str] = Counter()
    for event in reversed(events):
        key = (event.group, event.failure)
        if event.instance_id and event.failure and event.instance_id not in there and key not in found:
            counts[event.group] += 1
            if counts[event.group] <= GONE:
                target = Target(event.instance_id, event.group, "", "", "gone")
                found[key] = (target, Told(event.failure, event.lifecycle))
    return list(found.values())


def _shipped(region: Optional[str], name: str, arn: str) -> Shipped:
    """Reads logs from CloudWatch; the client is made when the first is needed."""
    from functools import lru_cache

    from hyperpod_kit.aws.logs import Logs, creation_stream, log_group
    from hyperpod_kit.remote.diagnose import TAIL

    opened = lru_cache(maxsize=1)(lambda: Logs(region))
    lock = Lock()

    def tail(target: Target) -> list[str]:
        with lock:
            logs = opened()
        # Twice as many: lines about mounts among them are left out.
        return logs.tail(log_group(name, arn), creation_stream(target.group, target.instance_id), 2 * TAIL)

    return tail


@contextmanager
def _way_in(ssh: SshSettings, needed: bool) -> Iterator[Callable[[Target], Runner]]:
    """How nodes are asked. Where ssh has no key to verify them by, AWS's side of it is still worth telling."""
    from hyperpod_kit.errors import UsageError
    from hyperpod_kit.remote.ssh import SshRunner
    from hyperpod_kit.remote.ssh_access import SshAccess

    access = SshAccess(ssh)
    try:
        if needed:
            access.load()
    except UsageError as err:
        barred = err
        say(f"nodes are not asked: {err.message}" + (f" ({err.hint})" if err.hint else ""))

        def refuse(target: Target) -> Runner:
            raise barred

        yield refuse
        return
    with access:
        yield lambda target: SshRunner(target.address, access)


def sentences(one: Diagnosis) -> Iterator[str]:
    """What is wrong with a node, for a person; nothing for a healthy one."""
    if one.healthy:
        return
    where = f"{one.target.group} {one.target.instance_id}"
    yield f"{where}{f' ({one.target.address})' if one.target.address else ''}: {one.target.status}"
    if one.message:
        yield indented(f"  AWS says: {one.message}")
    if one.unreachable:
        yield indented(f"  cannot be asked: {one.unreachable}")
    if one.lifecycle:
        yield indented(f"  lifecycle script: {one.lifecycle}")
    for failure in one.failures:
        yield indented(f"  step {failure.step} failed: {failure.error}")
        if failure.hint:
            yield indented(f"    do: {failure.hint}")
    if not one.unreachable and not one.finished and not one.failures and not one.odd:
        yield "  its creation has not come to an end"
    for mount in one.sick:
        yield f"  mount {mount}"
    for odd in one.odd:
        yield f"  odd: {odd}"
    for known in one.known:
        yield f"  {known.cause.code}: {known.cause.meaning}"
        yield f"    because: {known.words}"
        yield f"    do: {known.cause.remedy}"
