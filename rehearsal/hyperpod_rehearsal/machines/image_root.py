"""What turns a plain Debian or Ubuntu root into a node image: layout of HyperPod's AMI, no identity."""

from __future__ import annotations

from pathlib import Path

from hyperpod_kit.run import Runner
from hyperpod_kit.untrusted import by_descriptor

CLIENT_PROGRAMS = ("srun", "sbatch", "squeue", "scancel", "scontrol", "sinfo", "salloc", "sacct", "sstat")
DAEMONS = ("slurmd", "slurmctld", "slurmdbd", "slurmstepd")

SLURMD_UNIT = """\
[Unit]
Description=Slurm node daemon
After=munge.service network.target remote-fs.target

[Service]
Type=simple
ExecStart=/opt/slurm/sbin/slurmd -D $SLURMD_OPTIONS
ExecReload=/bin/kill -HUP $MAINPID
KillMode=process
LimitNOFILE=131072
LimitMEMLOCK=infinity
LimitSTACK=infinity
Delegate=yes

[Install]
WantedBy=multi-user.target
"""

SLURMCTLD_UNIT = """\
[Unit]
Description=Slurm controller daemon
After=network.target munge.service

[Service]
Type=simple
ExecStart=/opt/slurm/sbin/slurmctld -D
ExecReload=/bin/kill -HUP $MAINPID
LimitNOFILE=65536

[Install]
WantedBy=multi-user.target
"""

ENABLED = ("ssh.service", "munge.service")
"""munge: AWS's own bundle enables and starts slurmctld or slurmd and nothing else, so that it must run by then, though
nothing public says who starts it on HyperPod. A bundle that wants to be sure enables it itself, as ours does."""
DISABLED = (
    "slurmd.service",
    "slurmctld.service",
    "slurmdbd.service",
    "ssh.socket",
    "fstrim.timer",
    "e2scrub_all.timer",
    "apt-daily.timer",
    "apt-daily-upgrade.timer",
    "dpkg-db-backup.timer",
    "motd-news.timer",
)
MASKED = (
    "getty@.service",
    "console-getty.service",
    "getty.target",
    "systemd-udevd.service",
    "systemd-udev-trigger.service",
    "systemd-networkd-wait-online.service",
    "e2scrub_reap.service",
    "systemd-pstore.service",
    "logrotate.timer",
    "systemd-tmpfiles-clean.timer",
    "systemd-resolved.service",
    "systemd-timesyncd.service",
)


def put(root: Path, path: str, text: str, mode: int = 0o644) -> None:
    """Write a file of the image; directories on the way are 0755 whatever the umask is."""
    target = root / path.lstrip("/")
    missing = [parent for parent in target.parents if not parent.exists()]
    by_descriptor.make_parents(target)
    for parent in missing:
        by_descriptor.set_mode(parent, 0o755)
    if target.is_symlink():
        by_descriptor.unlink(target)
    by_descriptor.write_text(target, text)
    by_descriptor.set_mode(target, mode)


def _link(root: Path, path: str, target: str) -> None:
    place = root / path.lstrip("/")
    by_descriptor.make_parents(place)
    if place.is_symlink() or place.exists():
        by_descriptor.unlink(place)
    by_descriptor.symlink(target, place)


def _forget_identity(root: Path) -> None:
    # mmdebstrap copies the host's name and resolver, packages generate keys: all of it would be shared by every node,
    # and with a name that does not resolve munged waits 20 s at boot.
    for path in ("etc/hostname", "etc/munge/munge.key", "var/lib/dbus/machine-id"):
        by_descriptor.unlink(root / path, missing_ok=True)
    for key in (root / "etc/ssh").glob("ssh_host_*"):
        by_descriptor.unlink(key)
    put(root, "/etc/machine-id", "")
    put(root, "/etc/resolv.conf", "")


def _slurm_layout(root: Path) -> None:
    for program in CLIENT_PROGRAMS:
        _link(root, f"/opt/slurm/bin/{program}", f"/usr/bin/{program}")
    for daemon in DAEMONS:
        _link(root, f"/opt/slurm/sbin/{daemon}", f"/usr/sbin/{daemon}")
    for directory in ("opt/slurm/etc", "opt/slurm/lib", "opt/ml/config", "opt/ml/metadata", "var/spool/slurmd"):
        by_descriptor.make_directories(root / directory, shared=True)
    if (root / "etc/slurm").is_dir() and not (root / "etc/slurm").is_symlink():
        by_descriptor.remove_tree(root / "etc/slurm")
    _link(root, "/etc/slurm", "/opt/slurm/etc")
    put(root, "/etc/systemd/system/slurmd.service", SLURMD_UNIT)
    put(root, "/etc/systemd/system/slurmctld.service", SLURMCTLD_UNIT)


def _trim(root: Path) -> None:
    for pattern in (
        "var/lib/apt/lists/*",
        "var/cache/*",
        "usr/share/man/*",
        "usr/share/locale/*",
        "var/log/*.log",
        "usr/share/perl/*/unicore/lib/*",
    ):
        for path in root.glob(pattern):
            if path.is_dir() and not path.is_symlink():
                by_descriptor.remove_tree(path)
            else:
                by_descriptor.unlink(path)


def customize(root: Path, runner: Runner) -> None:
    """Change a freshly installed root in place. Needs root. Raises RunError when useradd or systemctl fails."""
    _forget_identity(root)
    _slurm_layout(root)
    fuse_conf = root / "etc/fuse.conf"
    if fuse_conf.exists():
        by_descriptor.write_text(fuse_conf, fuse_conf.read_text().replace("#user_allow_other", "user_allow_other"))
    put(
        root,
        "/etc/systemd/journald.conf.d/rehearsal.conf",
        "[Journal]\nStorage=volatile\nRuntimeMaxUse=16M\nForwardToSyslog=no\n",
    )
    put(
        root,
        "/etc/ssh/sshd_config.d/rehearsal.conf",
        "HostKey /etc/ssh/ssh_host_ed25519_key\nPermitRootLogin prohibit-password\nUseDNS no\n",
    )
    if "ubuntu:" not in (root / "etc/passwd").read_text():
        # The host's own useradd with --root would need its NSS set-up inside; the image's works everywhere.
        runner.run(["chroot", str(root), "useradd", "-m", "-s", "/bin/bash", "-u", "1000", "-G", "sudo", "ubuntu"])
    put(root, "/etc/sudoers.d/ubuntu", "ubuntu ALL=(ALL) NOPASSWD:ALL\n", 0o440)
    # systemctl of the image, because the host's may be older or missing.
    for unit in DISABLED:
        runner.run(["chroot", str(root), "systemctl", "-q", "disable", unit], check=False)
    runner.run(["chroot", str(root), "systemctl", "-q", "enable", *ENABLED])
    runner.run(["chroot", str(root), "systemctl", "-q", "mask", *MASKED])
    _trim(root)
