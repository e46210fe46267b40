"""One entry for all stand-ins: the first argument is the name of the program that is stood in for."""

from __future__ import annotations

import sys
from typing import Sequence


def main(argv: Sequence[str]) -> int:
    """Exit code of the program argv[0] with the arguments behind it. Each imports only what it needs."""
    program, arguments = argv[0], argv[1:]
    if program in ("mount-s3", "mount.mount-s3"):
        from hyperpod_rehearsal.standins.mountpoint_s3.cli import main as mount_s3

        return mount_s3(arguments, fstab=program == "mount.mount-s3")
    if program == "mount.efs":
        from hyperpod_rehearsal.standins.mount_efs import main as mount_efs

        return mount_efs(arguments)
    if program == "mount.lustre":
        from hyperpod_rehearsal.standins.mount_lustre import main as mount_lustre

        return mount_lustre(arguments)
    if program == "mount.s3files":
        from hyperpod_rehearsal.standins.mount_s3files import main as mount_s3files

        return mount_s3files(arguments)
    if program in ("mount.nfs", "mount.nfs4"):
        from hyperpod_rehearsal.standins.mount_nfs import main as mount_nfs

        return mount_nfs(arguments)
    if program == "auto-resume":
        from hyperpod_rehearsal.standins.step_retry.retry import main as auto_resume

        return auto_resume(list(arguments))
    if program == "cluster-agent":
        from hyperpod_rehearsal.standins.step_retry.cluster_agent import main as cluster_agent

        return cluster_agent(list(arguments))
    if program == "modinfo":
        from hyperpod_rehearsal.standins.modinfo import main as modinfo

        return modinfo(arguments)
    print(f"no stand-in for {program}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
