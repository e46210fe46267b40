"""diagnose."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Iterator, Optional

import click

from hyperpod_kit.cli.options import DEFAULT_CONFIG, json_option, resolve_cluster
from hyperpod_kit.cli.output import bar, data, say
from hyperpod_kit.cli.ssh_options import open_sagemaker, ssh_options

if TYPE_CHECKING:
    from hyperpod_kit.remote.diagnose import Diagnosis
    from hyperpod_kit.remote.target import SshSettings


@click.command("diagnose")
@click.argument("nodes", nargs=-1, metavar="[NODE…]")
@click.option(
    "--config",
    default=DEFAULT_CONFIG,
    show_default=True,
    type=click.Path(path_type=Path),
    help="The configuration that names the cluster.",
)
@click.option("--cluster", metavar="NAME", help="A cluster by name; no configuration file is needed then.")
@click.option("--region", help="AWS region.")
@click.option("--log", "with_log", is_flag=True, help="Print the last lines of each node's log too.")
@ssh_options
@json_option
def diagnose(
    nodes: tuple[str, ...],
    config: Path,
    cluster: Optional[str],
    region: Optional[str],
    with_log: bool,
    ssh: SshSettings,
    as_json: bool,
) -> int:
    """Why the cluster or a node is not well: node, step, cause, remedy.

    NODE is an instance id, an address, or GROUP/INDEX; all nodes without one. Asks AWS for its messages and each node
    for its own record of its creation, its log and its mounts.

    Exit code 0 when nothing is wrong, 1 when something is, 3 when AWS does not answer.

    \b
    Examples:
      hyperpod-kit diagnose
      hyperpod-kit diagnose worker-group/1 --log
    """
    from hyperpod_kit.cluster.nodes import list_nodes, resolve
    from hyperpod_kit.remote import diagnose as asking
    from hyperpod_kit.remote.causes import recognise
    from hyperpod_kit.remote.ssh import SshRunner
    from hyperpod_kit.remote.ssh_access import SshAccess
    from hyperpod_kit.remote.target import Target

    chosen = resolve_cluster(config, cluster, region)
    sagemaker = open_sagemaker(chosen)
    answer = sagemaker.describe_cluster(chosen.name)
    listed = [node for node in list_nodes(sagemaker, chosen.name) if not node.gone]
    wanted = resolve(listed, nodes) if nodes else listed
    access = SshAccess(ssh)
    if any(node.address for node in wanted):
        access.load()
    targets = [(Target(one.instance_id, one.group, "", one.address, one.status), one.message) for one in wanted]
    with access, bar(f"asking {len(targets)} nodes", len(targets)) as advance:
        found = asking.diagnose(
            targets,
            lambda target: SshRunner(target.address, access),
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
        click.echo(f"cluster {chosen.name} is {answer['ClusterStatus']}: {failure}")
        for known in recognise(failure):
            click.echo(f"  {known.cause.code}: {known.cause.meaning}\n  do: {known.cause.remedy}")
    for one in found:
        for line in sentences(one):
            click.echo(line)
        if with_log:
            for line in one.log:
                click.echo(f"    {line}")
    sick = sum(not one.healthy for one in found)
    say(f"{len(found)} nodes: {f'{sick} not well' if sick else 'nothing is wrong with them'}")
    return 0 if healthy else 1


def sentences(one: Diagnosis) -> Iterator[str]:
    """What is wrong with a node, for a person; nothing for a healthy one."""
    if one.healthy:
        return
    where = f"{one.target.group} {one.target.instance_id}"
    yield f"{where}{f' ({one.target.address})' if one.target.address else ''}: {one.target.status}"
    if one.message:
        yield f"  AWS says: {one.message}"
    if one.unreachable:
        yield f"  cannot be asked: {one.unreachable}"
    for failure in one.failures:
        yield f"  step {failure.step} failed: {failure.error}" + (f"\n    do: {failure.hint}" if failure.hint else "")
    if not one.unreachable and not one.finished and not one.failures:
        yield "  its creation has not come to an end"
    for mount in one.sick:
        yield f"  mount {mount}"
    for known in one.known:
        yield f"  {known.cause.code}: {known.cause.meaning}"
        yield f"    because: {known.words}"
        yield f"    do: {known.cause.remedy}"
