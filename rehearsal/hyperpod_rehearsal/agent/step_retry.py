"""What HyperPod's image and agents bring for the retry of a step: a plugin of srun, and the cluster agent.

Standard library only, Python 3.8: this file runs in a node.
"""

from __future__ import annotations

import subprocess

from hyperpod_kit.untrusted import by_descriptor

CLUSTER_DIRECTORY = "/opt/sagemaker_cluster"
PLUGIN = CLUSTER_DIRECTORY + "/hyperpod_auto_resume.so"
SOURCE = "/usr/lib/hyperpod-kit-rehearsal/hyperpod_rehearsal/standins/step_retry/plugin.c"
PLUGSTACK = "/opt/slurm/etc/plugstack.conf"
GRES = "/opt/slurm/etc/gres.conf"
UNIT = "sagemaker-cluster-agent.service"


def compile_retry_plugin_and_set_up_controller(is_controller: bool) -> None:
    """Compile the step retry plugin; on the controller also configure Slurm and start the cluster agent.

    Must run before any Slurm daemon starts. Raises subprocess.SubprocessError, OSError.
    """
    by_descriptor.make_directories(CLUSTER_DIRECTORY)
    partial = PLUGIN + ".partial"
    subprocess.run(["cc", "-shared", "-fPIC", "-O2", "-o", partial, SOURCE], check=True, timeout=120)
    by_descriptor.rename(partial, PLUGIN)
    if not is_controller:
        return
    # The other nodes have both files from slurmctld (configless).
    by_descriptor.write_text(PLUGSTACK, f"optional {PLUGIN}\n")
    by_descriptor.write_text(GRES, "Name=gpu File=/dev/null\n")
    subprocess.run(["systemctl", "enable", "--now", UNIT], check=True, timeout=60)
