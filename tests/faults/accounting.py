"""A Slurm of our own with accounting: QOS exist only where slurmdbd, and a database behind it, know them."""

from __future__ import annotations

import shutil
import socket
import subprocess
from pathlib import Path
from typing import Optional

from tests.faults.profiles import PROFILE
from tests.support.ports import free_port
from tests.support.wait import until
from tests.unit.job.private_slurm import PrivateSlurm

DATABASE = ("mariadbd", "mariadb-install-db")
"""Of this host, whichever release's Slurm it is."""
SLURMS = ("slurmdbd", "sacctmgr")

BACKUP = 34
"""An ordinary user of every Debian: to the slurmdbd of 26.05 `nobody` is no user that could have an account."""

SLURM = """\
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort={port}
AccountingStoragePass={base}/munge.socket
AccountingStorageEnforce=associations,limits,qos
PreemptType=preempt/qos
PreemptMode=REQUEUE
SlurmctldParameters=preempt_send_user_signal
"""

SLURMDBD = """\
AuthType=auth/munge
AuthInfo={base}/munge.socket
DbdHost=localhost
DbdAddr=127.0.0.1
DbdPort={port}
SlurmUser=root
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={database}
StorageUser=slurm
StoragePass=slurm
StorageLoc=accounting
PidFile={base}/slurmdbd.pid
LogFile={base}/slurmdbd.log
"""


def missing() -> Optional[str]:
    """Why it cannot be started here, or None."""
    wanted = DATABASE if PROFILE.release else (*DATABASE, *SLURMS)
    absent = [name for name in wanted if not shutil.which(name, path="/usr/bin:/usr/sbin:/bin:/sbin")]
    return f"not installed: {', '.join(absent)}" if absent else None


class AccountedSlurm(PrivateSlurm):
    """With a QOS `patient`, which `urgent` preempts after 60 s of grace; the job's user may use both."""

    def __init__(self, base: Path, *, nodes: int = 3, release: str = "", containers: Optional[Path] = None) -> None:
        self._port, self._database = free_port(), free_port()
        more = SLURM.format(base=base, port=self._port)
        super().__init__(base, nodes=nodes, user=BACKUP, more=more, release=release, containers=containers)

    def start_controller(self, *options: str) -> None:
        if "slurmdbd" not in self._daemons:
            self._start_database()
            self._start_accounting()
        super().start_controller(*options)

    def _start_database(self) -> None:
        data = self.base / "database"
        subprocess.run(
            [
                "mariadb-install-db",
                "--no-defaults",
                f"--datadir={data}",
                "--user=root",
                "--auth-root-authentication-method=normal",
                "--skip-test-db",
            ],
            check=True,
            timeout=60,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        init = self.base / "init.sql"
        # One statement a line: the rest of a line is not read.
        init.write_text(
            "CREATE USER IF NOT EXISTS slurm@'127.0.0.1' IDENTIFIED BY 'slurm';\n"
            "GRANT ALL ON accounting.* TO slurm@'127.0.0.1';\n"
        )
        self._spawn(
            "mariadbd",
            "--no-defaults",
            f"--datadir={data}",
            f"--socket={self.base}/database.socket",
            f"--port={self._database}",
            "--bind-address=127.0.0.1",
            "--user=root",
            f"--init-file={init}",
            "--innodb-buffer-pool-size=32M",
            f"--pid-file={self.base}/database.pid",
            "--skip-name-resolve",
            here=True,
        )
        until(lambda: answers(self._database), what="database")

    def _start_accounting(self) -> None:
        conf = self.base / "slurmdbd.conf"
        conf.write_text(SLURMDBD.format(base=self.base, port=self._port, database=self._database))
        conf.chmod(0o600)
        self._spawn("slurmdbd", "-D")
        until(lambda: answers(self._port), what="slurmdbd")
        name = (self.base / "slurm.conf").read_text().split("ClusterName=")[1].split()[0]
        user = subprocess.run(["id", "-nu", str(self.user)], text=True, check=True, capture_output=True).stdout.strip()
        for words in (
            f"add cluster {name}",
            "add qos patient",
            "modify qos patient set GraceTime=60",
            "add qos urgent",
            "modify qos urgent set Preempt=patient Priority=100",
            "add account people",
            f"add user {user} account=people qos=patient,urgent defaultqos=patient",
        ):
            self.call("sacctmgr", "-i", *words.split())


class LateAccountedSlurm(AccountedSlurm):
    """Its slurmctld runs without accounting at first, as HyperPod's does until the kit has set it up."""

    def start_controller(self, *options: str) -> None:
        conf = self.base / "slurm.conf"
        self.accounted_conf = conf.read_text()
        conf.write_text(self.accounted_conf.replace(self._more, ""))
        PrivateSlurm.start_controller(self, *options)

    def stop_controller_and_begin_accounting(self) -> None:
        """Start the database and slurmdbd, and write slurm.conf for a slurmctld that is to be started."""
        daemon = self._daemons.pop("slurmctld")
        daemon.terminate()
        daemon.wait(60)
        (self.base / "slurm.conf").write_text(self.accounted_conf)
        self._start_database()
        self._start_accounting()

    def start_accounted_controller(self) -> None:
        """Return when slurmctld answers. Raises AssertionError with its last words where it ends."""
        PrivateSlurm.start_controller(self)


def answers(port: int) -> bool:
    with socket.socket() as sock:
        sock.settimeout(1)
        return sock.connect_ex(("127.0.0.1", port)) == 0
