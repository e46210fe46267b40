"""init as a person uses it: a real terminal, a cluster that there is, AWS's own files."""

from __future__ import annotations

import errno
import json
import os
import pty
import select
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable

import boto3
import pytest

from hyperpod_kit.config.starting import starter
from hyperpod_kit.errors import UsageError
from tests.support.wait import Deadline

if TYPE_CHECKING:
    from tests.unit.cli.conftest import Cloud, Outcome

    Hk = Callable[..., Outcome]

ROOT = Path(__file__).parents[3]
ROLE = "arn:aws:iam::111122223333:role/R"
DEADLINE = 60.0


class Terminal:
    """`hyperpod-kit init` on a pseudo-terminal of its own."""

    def __init__(self, directory: Path, *words: str) -> None:
        self._master, slave = pty.openpty()
        environment = {key: value for key, value in os.environ.items() if key != "AWS_DEFAULT_REGION"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "hyperpod_kit.cli.main", "init", *words],
            stdin=slave, stdout=slave, stderr=slave, cwd=directory, start_new_session=True,
            env={**environment, "PYTHONPATH": str(ROOT), "TERM": "dumb"},
            # The terminal becomes the process's own, so that Ctrl-C typed into it is a signal.
            preexec_fn=lambda: _own(slave),
        )  # fmt: skip
        os.close(slave)
        self.shown = ""

    def until(self, text: str) -> None:
        """Wait for a text behind what was waited for last."""
        deadline = Deadline(DEADLINE)
        while text not in self.shown:
            assert self._read(deadline), f"no {text!r} in {self.shown!r}"
        self.shown = self.shown.split(text, 1)[1]

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def answer(self, *pairs: tuple[str, str]) -> None:
        """(prompt, line) after each other."""
        for prompt, line in pairs:
            self.until(f"{prompt}")
            self.until(": ")
            self.type(line + "\n")

    def end(self, key: str = "") -> int:
        """Exit code; what is still shown is kept.

        `key`: typed again while nothing follows: a signal that comes an instant before the read starts is seen by
        nobody, and a person would press Ctrl-C once more.
        """
        deadline = Deadline(DEADLINE)
        while True:
            if not select.select([self._master], [], [], 5.0)[0]:
                assert not deadline.has_passed(), self.shown
                self.type(key)
            elif not self._read(deadline):
                break
        try:
            return self._process.wait(timeout=DEADLINE)
        finally:
            os.close(self._master)

    def _read(self, deadline: Deadline) -> bool:
        while not select.select([self._master], [], [], 1.0)[0]:
            if deadline.has_passed():
                return False
        try:
            data = os.read(self._master, 4096)
        except OSError as err:
            assert err.errno == errno.EIO  # the other side is closed
            return False
        self.shown += data.decode(errors="replace").replace("\r\n", "\n")
        return bool(data)


def _own(slave: int) -> None:
    import fcntl
    import termios

    fcntl.ioctl(slave, termios.TIOCSCTTY, 0)


def test_an_interview(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path)
    terminal.answer(("Cluster name", ""))
    terminal.until("This question has no default")
    terminal.answer(("Cluster name", "a_b"))
    # Judged at once, and asked again.
    terminal.until("`a_b` is not a cluster name. Use 1 to 63")
    terminal.answer(("Cluster name", "ml"), ("Region", "eu-west-1"), ("Execution role", ROLE))
    terminal.answer(("Security groups", "sg-0123456789abcdef0 sg-x"))
    terminal.until("`sg-x` is not an id of this kind")
    terminal.answer(
        ("Security groups", "sg-0123456789abcdef0, sg-0123456789abcdef1"),
        ("Subnets", "subnet-0123456789abcdef0"),
        ("Bucket for the bundle [sagemaker-eu-west-1-111122223333]", ""),
        ("Lifecycle mode [on_init_complete]", ""),
        ("Continuous provisioning, y or n [n]", "y"),
        ("Instance type of the controller [ml.c5.xlarge]", ""),
        ("Instance type of a login node", "ml.c5.large"),
        ("Instance type of the workers [ml.p5.48xlarge]", "ml.p99.48xlarge"),
    )
    terminal.until("`ml.p99.48xlarge` is not a known ClusterInstanceType in botocore")
    terminal.answer(("Instance type of the workers", ""), ("Number of workers [1]", "many"))
    terminal.until("many: expected a whole number")
    terminal.answer(
        ("Number of workers", "16"),
        ("DNS name of FSx for Lustre", ""),
        ("EFS file system", "fs-0123456789abcdef0"),
        ("Access point of EFS", ""),
        ("Bucket with training data", "größe"),
    )
    terminal.until("is not a bucket name")
    terminal.answer(
        ("Bucket with training data", ""),
        ("EFS file system for homes", ""),
        ("Users, NAME:UID", "anna:2002 bert"),
    )
    terminal.until("bert: expected NAME:UID")
    terminal.answer(("Users, NAME:UID", "anna:2002 bert:2003"))
    assert terminal.end() == 0, terminal.shown
    assert terminal.shown.endswith("next: hyperpod-kit validate --aws provisioning_parameters.json, then upload\n"), (
        terminal.shown
    )
    values = json.loads((tmp_path / "provisioning_parameters.json").read_text())
    kit = values["hyperpod_kit"]
    assert kit["cluster"]["node_provisioning_mode"] == "Continuous" and kit["cluster"]["name"] == "ml"
    assert [(group["name"], group["instance_type"], group["count"]) for group in kit["cluster"]["instance_groups"]] == [
        ("controller-machine", "ml.c5.xlarge", 1),
        ("login-group", "ml.c5.large", 1),
        ("worker-group", "ml.p5.48xlarge", 16),
    ]
    assert len(kit["cluster"]["vpc"]["security_group_ids"]) == 2
    assert [mount["path"] for mount in kit["mounts"]] == ["/efs"] and len(kit["users"]) == 2


@pytest.mark.parametrize(("key", "code", "last"), [("\x03", 130, "stopped"), ("\x04", 2, "see --help")])
def test_whoever_stops_has_written_nothing(tmp_path: Path, key: str, code: int, last: str) -> None:
    """Ctrl-C, and the end of the input."""
    terminal = Terminal(tmp_path)
    terminal.answer(("Cluster name", "ml"))
    terminal.until("Region: ")
    terminal.type(key)
    assert terminal.end(key) == code
    assert "nothing was written\n" in terminal.shown and terminal.shown.endswith(f"{last}\n")
    assert "Traceback" not in terminal.shown and list(tmp_path.iterdir()) == []


def test_only_what_the_flags_leave_open_is_asked(tmp_path: Path) -> None:
    words = ["--name", "ml", "--region", "eu-west-1", "--execution-role", ROLE, "--lifecycle-mode", "ami_only"]
    vpc = ["--security-group", "sg-0123456789abcdef0"]
    terminal = Terminal(tmp_path, *words, *vpc, "--bucket", "sagemaker-x", "--workers", "2")
    terminal.answer(
        ("Subnets", "subnet-0123456789abcdef0"),
        ("Continuous", ""),
        ("controller", ""),
        ("login node", ""),
        ("workers", ""),
        ("FSx for Lustre", ""),
        # No EFS and no bucket: in this mode nobody would mount them.
        ("Users", ""),
    )
    assert terminal.end() == 0, terminal.shown


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = tmp_path / "work"
    place.mkdir()
    monkeypatch.chdir(place)
    monkeypatch.delenv("AWS_DEFAULT_REGION", raising=False)
    return place / "provisioning_parameters.json"


LIVE: dict[str, Any] = {
    "ClusterName": "old",
    "InstanceGroups": [
        {
            "InstanceGroupName": name,
            "InstanceType": kind,
            "InstanceCount": count,
            "ExecutionRole": ROLE,
            "LifeCycleConfig": {"SourceS3Uri": "s3://sagemaker-mine/scripts", "OnCreate": "on_create.sh"},
        }
        for name, kind, count in (("head", "ml.c5.xlarge", 1), ("gpu", "ml.p5.48xlarge", 4))
    ],
    "NodeRecovery": "Automatic",
    "VpcConfig": {"SecurityGroupIds": ["sg-0123456789abcdef0"], "Subnets": ["subnet-0123456789abcdef0"]},
}
LEGACY = {
    "version": "1.0.0",
    "workload_manager": "slurm",
    "controller_group": "head",
    "worker_groups": [{"instance_group_name": "gpu", "partition_name": "p5"}],
    "fsx_dns_name": "fs-0123456789abcdef0.fsx.eu-west-1.amazonaws.com",
    "fsx_mountname": "abcdefgh",
}


def test_from_a_cluster_that_there_is_with_its_file_beside_its_scripts(cloud: Cloud, empty: Path, hk: Hk) -> None:
    cloud.control.clusters["old"] = json.loads(json.dumps(LIVE))
    nobody = hk("init", "--from-cluster", "old", "--region", "us-east-1")
    assert nobody.code == 1 and "HPK-G001 controller_group" in nobody.err, "without AWS's file nobody knows who is who"
    cloud.store.create_bucket("sagemaker-mine")
    cloud.store.put("sagemaker-mine", "scripts/provisioning_parameters.json", json.dumps(LEGACY).encode())
    done = hk("init", "--from-cluster", "old", "--region", "us-east-1", "--force", "--user", "anna:2002")
    assert done.code == 0 and done.err.splitlines() == [
        "lifecycle scripts at s3://sagemaker-mine/scripts: 1 file",
        "  provisioning_parameters.json: done by this configuration",
        "not carried over: the lifecycle scripts at s3://sagemaker-mine/scripts: the bundle takes their place",
        "wrote provisioning_parameters.json",
        "next: hyperpod-kit validate --aws provisioning_parameters.json, then upload",
    ]
    values = json.loads(empty.read_text())
    assert values["controller_group"] == "head" and values["worker_groups"] == LEGACY["worker_groups"]
    kit = values["hyperpod_kit"]
    assert (kit["cluster"]["region"], kit["cluster"]["lifecycle_mode"]) == ("us-east-1", "on_create")
    assert kit["users"] == [{"name": "anna", "uid": 2002, "gid": 2002}] and kit["bundle"] == {
        "bucket": "sagemaker-mine"
    }
    plan = hk("update-cluster", "--dry-run", "--json")
    assert {change["field"] for change in json.loads(plan.out)["changes"]} <= {"LifeCycleConfig", "InstanceCount"}


def test_what_a_clusters_scripts_did_is_kept_or_named(cloud: Cloud, empty: Path, hk: Hk) -> None:
    cloud.control.clusters["old"] = json.loads(json.dumps(LIVE))
    cloud.store.create_bucket("sagemaker-mine")
    theirs = {
        "provisioning_parameters.json": json.dumps(LEGACY),
        "lifecycle_script.py": "",
        "on_create.sh": "#!/bin/bash\n",
        "config.py": "class Config:\n    enable_docker_enroot_pyxis = True\n    enable_slurm_log_rotation = False\n",
        "shared_users.txt": "alice,2001,/fsx/alice\n",
        "utils/install_enroot_pyxis.sh": "#!/bin/bash\nset -e\n",
        "utils/enable_slurm_log_rotation.sh": "#!/bin/bash\n",
        "../../escape.sh": "",
        "utils/motd.sh": "#!/bin/bash\n",
    }
    for place, text in theirs.items():
        cloud.store.put("sagemaker-mine", f"scripts/{place}", text.encode())
    words = ["init", "--from-cluster", "old", "--region", "us-east-1"]
    told = hk(*words).err
    assert (
        "  utils/install_enroot_pyxis.sh: lost, unless it is kept as a script of yours: --scripts DIR"
        in told.splitlines()
    )
    done = hk(*words, "--force", "--scripts", "earlier")
    assert done.code == 0, done.err
    lines = done.err.splitlines()
    assert "  utils/install_enroot_pyxis.sh: kept as your script `enroot`" in lines
    assert "  utils/enable_slurm_log_rotation.sh: not run: enable_slurm_log_rotation is off in config.py" in done.err
    assert "not carried over: '../../escape.sh' at s3://sagemaker-mine/scripts: a file of a bundle" in done.err
    assert not Path("../escape.sh").exists() and Path("earlier/utils/install_enroot_pyxis.sh").read_text().endswith(
        "-e\n"
    )
    kit = json.loads(empty.read_text())["hyperpod_kit"]
    assert {script["name"].partition("-")[0] for script in kit["scripts"]} == {"enroot"}
    assert kit["steps"] == {"login_message": {}}
    assert kit["users"] == [{"name": "alice", "uid": 2001, "gid": 2001}]
    assert hk("validate").code == 0
    again = hk(*words, "--force", "--scripts", "earlier")
    assert again.code == 2 and "earlier is not empty" in again.err


def test_scripts_from_a_directory(empty: Path, hk: Hk) -> None:
    Path("cluster.json").write_text(json.dumps(LIVE))
    Path("aws.yaml").write_text(json.dumps(LEGACY))
    Path("mine").mkdir()
    Path("mine/on_create.sh").write_text("#!/bin/bash\n")
    words = ["init", "--from-cluster-config", "cluster.json", "--from-parameters", "aws.yaml", "--region", "eu-west-1"]
    assert "specify a copy of them with --scripts DIR" in hk(*words, "a.json").err
    done = hk(*words, "--scripts", "mine", "b.json")
    assert done.code == 0 and "on_create.sh: kept, of your script `earlier`" in done.err, done.err
    assert json.loads(Path("b.json").read_text())["hyperpod_kit"]["scripts"][0]["run"] == "on_create.sh"
    assert hk(*words, "--scripts", "none", "c.json").code == 2


def test_from_awss_files_and_flags(empty: Path, hk: Hk) -> None:
    Path("cluster.json").write_text(json.dumps(LIVE))
    Path("aws.yaml").write_text(json.dumps(LEGACY))
    words = ["--from-cluster-config", "cluster.json", "--from-parameters", "aws.yaml", "--region", "eu-west-1"]
    done = hk("init", *words, "--name", "new", "--workers", "9", "--lifecycle-mode", "on_init_complete", "ours.yaml")
    assert done.code == 0 and "next: hyperpod-kit validate --aws ours.yaml, then upload" in done.err
    assert hk("validate", "ours.yaml").code == 0
    shown = json.loads(hk("config", "show", "ours.yaml", "--json").out)["configuration"]["hyperpod_kit"]["cluster"]
    assert (shown["name"], shown["instance_groups"][1]["count"]) == ("new", 9)


def test_a_region_of_habit_counts_less_than_the_clusters_own(
    empty: Path, hk: Hk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-west-2")
    described = {
        **LIVE,
        "ClusterArn": "arn:aws:sagemaker:eu-west-1:111122223333:cluster/abc",
        "ClusterStatus": "InService",
    }
    Path("cluster.json").write_text(json.dumps(described))
    assert hk("init", "--from-cluster-config", "cluster.json", "a.json").code == 1
    assert hk("init", "--from-cluster-config", "cluster.json", "--region", "us-east-1", "b.json").code == 1
    regions = [json.loads(Path(name).read_text())["hyperpod_kit"]["cluster"]["region"] for name in ("a.json", "b.json")]
    assert regions == ["eu-west-1", "us-east-1"]


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["--from-cluster", "x", "--from-cluster-config", "cluster.json"], 2, "choose one"),
        (["--from-cluster-config", "cluster.json"], 2, "init requires --region"),
        (["--from-cluster-config", "none.json"], 3, "there is no configuration file none.json"),
        (["--from-cluster-config", "broken.json"], 1, "is not JSON"),
        (["--from-cluster-config", "list.json"], 1, "this is not a cluster"),
        (["--from-parameters", "list.json"], 1, "holds no object"),
        (["--user", "anna:-1"], 2, "expected NAME:UID"),
        (["--from-example", "no/such/dir/c.json"], 3, "cannot write no/such/dir/c.json"),
    ],
)
def test_what_init_cannot_use(empty: Path, hk: Hk, words: list[str], code: int, message: str) -> None:
    for name, text in (("cluster.json", json.dumps(LIVE)), ("broken.json", "{"), ("list.json", "[1]")):
        Path(name).write_text(text)
    refused = hk("init", *words)
    assert (refused.code, empty.exists()) == (code, False) and message in refused.err
    assert not [path for path in Path().iterdir() if path.name.startswith(".")]


def test_a_cluster_that_nobody_knows(cloud: Cloud, empty: Path, hk: Hk) -> None:
    refused = hk("init", "--from-cluster", "none", "--region", "us-east-1")
    assert refused.code == 3 and "ResourceNotFound" in refused.err and not empty.exists()


def test_the_file_of_somebody_who_was_faster_stays(empty: Path) -> None:
    empty.write_text("mine")
    with pytest.raises(UsageError, match="exists"):
        starter.write_configuration(empty, {}, force=False)
    assert empty.read_text() == "mine" and [path.name for path in empty.parent.iterdir()] == [empty.name]


@pytest.mark.needs("mounts")
@pytest.mark.parametrize("force", [False, True])
def test_a_full_disk_leaves_what_was_there(tmp_path: Path, force: bool) -> None:
    """A file system of one page, in a mount namespace of its own where that may be made."""
    script = (
        f"mount -t tmpfs -o size=4k,nr_inodes=8 none {tmp_path} && cd {tmp_path} && "
        + ("echo mine > c.json && " if force else "")
        + f"{sys.executable} -c 'import sys; sys.path.insert(0, sys.argv[1]); "
        "from pathlib import Path; from hyperpod_kit.config.starting.starter import write_configuration; "
        f'write_configuration(Path("c.json"), {{"a": "x" * 9000}}, force={force})\' {ROOT}; ls -A; cat c.json'
    )
    done = subprocess.run(["unshare", "-m", "sh", "-c", script], capture_output=True, text=True, timeout=60)
    assert "UsageError: cannot write c.json: No space left on device" in done.stderr
    assert done.stdout == ("c.json\nmine\n" if force else "")


def test_from_a_cluster_as_moto_describes_it(empty: Path, hk: Hk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another reading of the API than the rehearsal's: dates, and every field of the answer."""
    moto = pytest.importorskip("moto")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    with moto.mock_aws():
        groups = [{**group, "ThreadsPerCore": 1} for group in LIVE["InstanceGroups"]]  # moto cannot do without
        boto3.client("sagemaker", "eu-west-1").create_cluster(**{**LIVE, "InstanceGroups": groups})
        boto3.client("s3", "us-east-1").create_bucket(Bucket="sagemaker-mine")
        boto3.client("s3", "us-east-1").put_object(
            Bucket="sagemaker-mine", Key="scripts/provisioning_parameters.json", Body=json.dumps(LEGACY).encode()
        )
        done = hk("init", "--from-cluster", "old", "--region", "eu-west-1")
    assert done.code == 0 and ", then upload" in done.err, done.err
    cluster = json.loads(empty.read_text())["hyperpod_kit"]["cluster"]
    assert (cluster["name"], cluster["region"]) == ("old", "eu-west-1")
    assert [(group["name"], group["count"]) for group in cluster["instance_groups"]] == [("head", 1), ("gpu", 4)]
