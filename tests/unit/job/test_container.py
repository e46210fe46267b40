"""Ranks in a container: a Python is found inside, what will not work is said before, and nothing is tried without end.

srun is the fake one, which starts the ranks on this machine; with pyxis: tests/rehearsal/test_containers.py.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Iterator

import pytest

from hyperpod_kit.errors import GaveUp
from hyperpod_kit.job.step import container, container_starts, script_containers, srun_step
from tests.support.capabilities import require
from tests.unit.job.conftest import Job

IMAGE = "--container-image=/images/a.sqsh"


@pytest.fixture
def mounted_job(job: Job) -> Iterator[Job]:
    """With its root on a file system that is mounted."""
    place = tempfile.mkdtemp(prefix="hpk-job-", dir="/dev/shm")
    yield dataclasses.replace(job, root=Path(place, "root"))
    shutil.rmtree(place)


def test_a_step_is_in_a_container_when_srun_or_pyxis_is_told_so() -> None:
    assert container.container_from_options_or_env(["--mpi=none"], {}) is None
    assert container.container_from_options_or_env(["--container-mounts=/fsx"], {}) is None, "no image and no name"
    found = container.container_from_options_or_env(
        [
            IMAGE,
            "--container-mounts=/fsx:/data:ro,/opt/train",
            "--container-mounts",
            "/a:/b",
            "--container-workdir=/data",
        ],
        {"PYXIS_CONTAINER_WORKDIR": "/other"},
    )
    assert found is not None and (found.mounts, found.workdir) == (("/data", "/opt/train", "/b"), "/data")
    by_variables = container.container_from_options_or_env(
        [], {"PYXIS_CONTAINER_IMAGE": "a", "PYXIS_CONTAINER_UNSHARE": "ipc,pid"}
    )
    assert by_variables == container.Container(unshare=("ipc", "pid"))


def test_what_will_not_work_inside_is_said_with_the_option_to_add(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    (tmp_path / "50.fstab").write_text(
        f"# all\n/opt/hyperpod-kit {Path(srun_step.path_of_kit_main_on_nodes()).parents[2]} none ro 0 -1\n"
    )
    fstabs = [str(tmp_path)]

    def doubts(*options: str, root: str = "/fsx/me/run", command: str = "train.py") -> list[str]:
        found = container.container_from_options_or_env([IMAGE, *options], {})
        assert found is not None
        return list(found.doubts((root,), ["python", command], srun_step.path_of_kit_main_on_nodes(), fstabs))

    first, second = doubts()
    assert "/fsx/me/run is in none of the container's mounts" in first
    assert first.endswith("--container-mounts=/fsx:/fsx")
    assert "train.py may not be found" in second and f"--container-workdir={tmp_path}" in second
    assert doubts("--container-mounts=/lustre:/fsx", "--container-workdir=/fsx") == []
    assert doubts("--container-mounts=/fsx", command="/fsx/train.py") == []
    (tmp_path / "60.fstab").write_text("fsx /fsx none x-create=dir,bind 0 -1\n")
    assert doubts("--container-workdir=/fsx") == [], "an administrator mounts it into every container"
    assert "are lost with the container" in doubts("--container-workdir=/fsx", "--container-unshare=ipc")[0]
    (tmp_path / "50.fstab").unlink()
    assert "each rank is started through it" in doubts("--container-workdir=/fsx")[0]


@pytest.mark.full
def test_a_job_runs_on_the_containers_own_python(mounted_job: Job) -> None:
    assert (
        mounted_job.run("--steps", "6", "--crash", "4:3", "--once", str(mounted_job.base / "once"), srun_args=(IMAGE,))
        == 0
    )
    assert [one["class"] for one in mounted_job.said("ended")] == ["crash", "done"]
    assert mounted_job.said("ended")[0]["first"]["code"] == 3, "the wrapper has written how the rank ended"
    words = mounted_job.sruns[0]
    assert sys.executable not in words[: words.index("exec")] and container.INSIDE in words


def test_the_first_python_that_is_new_enough_is_taken(tmp_path: Path) -> None:
    old, other = tmp_path / "old", tmp_path / "other"
    old.write_text("#!/bin/sh\nexit 1\n")
    other.write_text(f'#!/bin/sh\necho "other $4" >>{tmp_path}/said\nexec {sys.executable} "$@"\n')
    for path in (old, other):
        path.chmod(0o755)
    found = container.Container(python=str(old))
    script = found.command_running_python_inside([])[2].replace(f"in {old};", f"in /no/python3 {old} {other};")
    done = subprocess.run(
        ["/bin/sh", "-c", script, "x", "-c", "print('it runs')"], text=True, capture_output=True, timeout=30
    )
    assert (done.stdout, done.stderr) == ("it runs\n", "")


def test_without_a_python_it_is_said_and_not_tried_again(mounted_job: Job, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(GaveUp, match="no rank has begun in the container") as caught:
        mounted_job.run(srun_args=(IMAGE,), container_python="/opt/none/python3")
    assert len(mounted_job.sruns) == 1 and "srun --container-image=" in str(caught.value.hint)
    said = capfd.readouterr().err
    assert "this container has no Python 3.8 or newer (looked for: /opt/none/python3)" in said
    assert "job run --container-python PATH" in said


def test_a_root_that_is_not_mounted_inside_is_said_and_not_tried_again(
    job: Job, capfd: pytest.CaptureFixture[str]
) -> None:
    require("root-file-system")
    with pytest.raises(GaveUp, match="no rank has begun in the container"):
        job.run(srun_args=(IMAGE,))
    assert len(job.sruns) == 1
    assert f"no mount of this container contains {job.root}" in capfd.readouterr().err


def test_a_container_that_never_comes_up_is_tried_twice(job: Job) -> None:
    with pytest.raises(GaveUp, match="no rank has begun in the container"):
        job.run(srun_args=(IMAGE,), srun="/bin/false")
    assert len(job.said("attempt")) == container.TRIES


NOT_MOUNTED = """\
#!/bin/sh
case "$*" in
*--container-image=*) [ -e {gone} ] && exit 1 ;;
*" look "*) env | grep ^PYXIS_ >{variables}; rm {gone}; echo n1 away; echo n2 serves; exit ;;
esac
exec {srun} "$@"
"""


def test_a_container_that_does_not_come_up_on_a_node_without_the_root_costs_no_budget(mounted_job: Job) -> None:
    """pyxis cannot bind what is not mounted: the nodes are asked outside of the container."""
    base = mounted_job.base
    srun, gone, variables = base / "srun", base / "gone", base / "variables"
    srun.write_text(NOT_MOUNTED.format(gone=gone, variables=variables, srun=Path(__file__).with_name("fake_srun.py")))
    srun.chmod(0o755)
    gone.touch()
    mounted_job.environment["PYXIS_CONTAINER_MOUNTS"] = "/dev/shm:/dev/shm"
    assert mounted_job.run("--steps", "4", srun=str(srun), srun_args=(IMAGE,), policy={"max_restarts": 0}) == 0
    ended = mounted_job.said("ended")
    assert [one["class"] for one in ended] == ["storage", "done"] and "on n1" in ended[0]["message"], ended
    assert variables.read_text() == "", "pyxis starts a container for its variables, too"


def test_a_node_says_whether_the_root_answers(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for place in (tmp_path, tmp_path / "none"):
        assert container_starts.print_whether_root_serves_here([str(place)], {"SLURMD_NODENAME": "n1"}) == 0
    assert capfd.readouterr().out == "n1 serves\nn1 away\n"


def test_what_is_mounted_is_read_and_not_asked(tmp_path: Path) -> None:
    table = tmp_path / "mountinfo"
    table.write_text(
        "21 1 0:1 / / ro - overlay o rw\n22 21 0:2 / /fsx rw - lustre l rw\n23 21 0:3 / /a\\040b rw - nfs n rw\n"
    )
    seen = [
        path
        for path in ("/fsx", "/fsx/me/run", "/fsx2/run", "/a b/c", "/tmp/x")
        if container.is_at_or_below_mount_except_root(path, str(table))
    ]
    assert seen == ["/fsx", "/fsx/me/run", "/a b/c"]
    table.write_text(f"22 21 0:2 / {tmp_path} rw - tmpfs t rw\n")
    assert container.is_at_or_below_mount_except_root(str(tmp_path), str(table))
    assert not container.is_at_or_below_mount_except_root(str(tmp_path / "root"), str(table)), (
        "the container's own, which does not hold it"
    )
    assert container.is_at_or_below_mount_except_root("/fsx", str(tmp_path / "none")), "unknown is no reason to refuse"
    assert container.is_at_or_below_mount_except_root("/proc/self", "/proc/self/mountinfo") and os.path.ismount("/proc")


def test_a_container_that_the_script_starts_is_known_by_its_command() -> None:
    def doubts(command: str) -> list[str]:
        return list(script_containers.doubts(command.split(), ("/fsx/me/run",)))

    whole = "podman run --rm --env-host --ipc=host --pid host --net=host -v /fsx:/fsx:rw image python3 train.py"
    assert doubts(whole) == [] and doubts("python3 podman.py run") == [] and doubts("echo podman run") == []
    assert script_containers.container_started_by_command(f"/usr/bin/env A=1 {whole}".split()) is not None
    assert doubts(f"/usr/bin/env -i A=1 /usr/bin/{whole}") == []
    bare = doubts("podman run image python3 train.py")
    assert "/fsx/me/run is in none of podman's mounts; add -v /fsx:/fsx" in bare
    assert [one.rpartition("; ")[2] for one in bare[1:]] == ["--ipc=host", "--pid=host", "--env-host", "--network=host"]
    mounted = "docker run --mount type=bind,source=/lustre,target=/fsx --ipc=host --pid=host --network=host"
    docker = doubts(f"{mounted} --env-file vars image")
    assert len(docker) == 1 and "outlives a killed rank, so it runs" in docker[0]
    assert "--env-file" in doubts(f"{mounted} -e HPK_ATTEMPT image")[0]
    assert doubts("apptainer exec --nv -B /data,/fsx:/fsx image.sif python3 train.py") == []
    told = " ".join(doubts("singularity exec -C image.sif python3 train.py"))
    assert all(word in told for word in ("--bind /fsx:/fsx", "--ipc", "--pid", "--cleanenv")), told
