"""What HyperPod's image and agents bring for the retry of a step: a plugin of srun, and the cluster agent.

Standard library only, Python 3.8: this file runs in a node.
"""

from __future__ import annotations

import glob
import subprocess

from hyperpod_kit.untrusted import by_descriptor

CLUSTER_DIRECTORY = "/opt/sagemaker_cluster"
PLUGIN = CLUSTER_DIRECTORY + "/hyperpod_auto_resume.so"
TREES = "/opt/slurm-*"
"""A Slurm each, where /opt/slurm leads to one of them."""

PLUGIN_OF_TREE = "{tree}/lib/hyperpod_auto_resume.so"
SOURCE = "/usr/lib/hyperpod-kit-rehearsal/hyperpod_rehearsal/standins/step_retry/plugin.c"
PLUGSTACK = "/opt/slurm/etc/plugstack.conf"
GRES = "/opt/slurm/etc/gres.conf"
UNIT = "sagemaker-cluster-agent.service"


def _compile_plugin(target: str, headers: str) -> None:
    partial = target + ".partial"
    subprocess.run(["cc", "-shared", "-fPIC", "-O2", "-I", headers, "-o", partial, SOURCE], check=True, timeout=120)
    by_descriptor.rename(partial, target)


def compile_retry_plugin_and_set_up_controller(is_controller: bool) -> None:
    """Compile the step retry plugin; on the controller also configure Slurm and start the cluster agent.

    Must run before any Slurm daemon starts. Raises subprocess.SubprocessError, OSError.
    """
    by_descriptor.make_directories(CLUSTER_DIRECTORY)
    trees = sorted(glob.glob(TREES))
    plugin = PLUGIN
    if trees:
        plugin = PLUGIN_OF_TREE.format(tree="/opt/slurm")
    for tree in trees:
        _compile_plugin(PLUGIN_OF_TREE.format(tree=tree), f"{tree}/include")
    if not trees:
        _compile_plugin(PLUGIN, "/usr/include")
    if not is_controller:
        return
    # The other nodes have both files from slurmctld (configless).
    by_descriptor.write_text(PLUGSTACK, f"optional {plugin}\n")
    by_descriptor.write_text(GRES, "Name=gpu File=/dev/null\n")
    subprocess.run(["systemctl", "enable", "--now", UNIT], check=True, timeout=60)
