"""AWS's bad days, command by command: one sentence, the right exit code, and a rerun that goes on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Callable, Iterator

import pytest

from hyperpod_kit.aws.back_off import retry_while_throttled
from hyperpod_rehearsal.s3.store import StoredBuckets
from tests.unit.cli.conftest import Control, put_cluster
from tests.unit.cli.weather import Sky

if TYPE_CHECKING:
    from tests.unit.cli.conftest import Outcome

    Hk = Callable[..., Outcome]

BUCKET = "sagemaker-hyperpod-kit-demo"
BOTH = {"controller-machine": 1, "worker-group": 3}
LOOKING = (
    ["describe-cluster"],
    ["list-cluster-nodes"],
    ["wait"],
    ["update-cluster"],
    ["delete-cluster", "--yes"],
    ["replace-node", "worker-group/0", "--yes"],
    ["events"],
    ["connect"],
)


@pytest.fixture
def sky(tmp_path: Path, project: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sky]:
    """An endpoint with an uploaded bundle's bucket; nothing but its address and keys in the environment."""
    for name in ("AWS_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    sky = Sky(StoredBuckets(tmp_path / "s3"), Control(), monkeypatch)
    for name, value in (
        ("AWS_ENDPOINT_URL", sky.url),
        ("AWS_ACCESS_KEY_ID", "x"),
        ("AWS_SECRET_ACCESS_KEY", "x"),
        ("AWS_EC2_METADATA_DISABLED", "true"),
        ("AWS_CONFIG_FILE", str(tmp_path / "none")),
        ("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none")),
    ):
        monkeypatch.setenv(name, value)
    sky.store.create_bucket(BUCKET)
    yield sky
    sky.close()


def one_sentence(outcome: Outcome) -> str:
    """The error: one line and one hint, nothing else."""
    lines = outcome.err.splitlines()
    assert [line.partition(":")[0] for line in lines[-2:]] == ["error", "hint"], outcome.err
    assert outcome.code == 3 and "Traceback" not in outcome.err
    return lines[-2]


def test_every_third_call_is_turned_away_and_nobody_notices(sky: Sky, hk: Hk, monkeypatch: pytest.MonkeyPatch) -> None:
    # No patience of botocore's own: what is left is the kit's.
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    monkeypatch.setitem(retry_while_throttled.__kwdefaults__ or {}, "sleep", lambda seconds: None)
    sky.weather.sky, sky.weather.every = "throttle", 3
    sent = hk("upload", "--json")
    assert sent.code == 0, sent.err
    assert json.loads(hk("upload", "--json").out)["sent"] == 0
    sky.control.script = [("Creating", {}, ""), ("InService", BOTH, "")]
    for words in (["create-cluster", "--wait", "--interval", "0.2"], *LOOKING[1:4], ["delete-cluster", "--yes"]):
        done = hk(*words)
        assert done.code == 0, done.err
    assert sky.control.clusters == {} and sky.weather.hits > 20


def test_turned_away_for_good(sky: Sky, hk: Hk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    monkeypatch.setitem(retry_while_throttled.__kwdefaults__ or {}, "patience", 0.0)
    sky.weather.sky = "throttle"
    assert one_sentence(hk("describe-cluster")) == (
        "error: DescribeCluster demo: AWS is throttling calls (ThrottlingException: Rate exceeded)"
    )
    assert "AWS is throttling calls (SlowDown" in one_sentence(hk("upload"))


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("expired", "the credentials have expired (ExpiredTokenException)"),
        ("broken", "AWS reports an internal error (InternalFailure: We are looking into it)"),
        ("region", "no region is set"),
        ("keys", "no credentials to sign with: Unable to locate credentials"),
        ("network", "does not answer"),
    ],
)
def test_one_sentence_and_could_not_check(
    sky: Sky, hk: Hk, monkeypatch: pytest.MonkeyPatch, fault: str, words: str, tmp_path: Path
) -> None:
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    cluster: list[str] = []
    if fault == "region":
        monkeypatch.chdir(tmp_path)
        cluster = ["--cluster", "demo"]
    elif fault == "keys":
        monkeypatch.delenv("AWS_ACCESS_KEY_ID")
        monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    elif fault == "network":
        sky.go_down()
    else:
        sky.weather.sky = fault
    # Each command once; the other faults come from the same place, so one that waits stands for all.
    for line in LOOKING if fault == "expired" else (["wait", "--interval", "0.2"],):
        assert words in one_sentence(hk(*line, *cluster)), line


@pytest.mark.full
def test_a_bundle_that_was_cut_off_is_sent_to_its_end(sky: Sky, hk: Hk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    sky.weather.sky, sky.weather.every = "expired", 20  # the twentieth call, in the midst of the files
    assert "the credentials have expired" in one_sentence(hk("upload"))
    sky.weather.sky = ""
    refused = hk("create-cluster")
    assert refused.code == 1 and "files are missing" in refused.err
    rest = json.loads(hk("upload", "--json").out)
    assert rest["sent"] > 0 and rest["present"] > 0
    assert hk("create-cluster").code == 0


def test_the_endpoint_goes_down_in_the_middle_of_a_wait(sky: Sky, hk: Hk, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real process: it waits, loses AWS, says so and ends; the same words again take it up."""
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    put_cluster(sky.control, hk)
    sky.control.script = [("Creating", {"controller-machine": 1}, "")]
    argv = [sys.executable, "-m", "hyperpod_kit.cli.main", "wait", "--interval", "0.2", "--timeout", "60"]
    with subprocess.Popen(argv, stderr=subprocess.PIPE, text=True, env=dict(os.environ)) as waiting:
        assert waiting.stderr is not None
        assert "Creating · controller-machine 1/1" in waiting.stderr.readline()
        sky.go_down()
        said = waiting.stderr.read()
    lines = said.splitlines()
    assert waiting.returncode == 3, said
    assert [f"retrying ({turn} of 4)" in lines[turn - 1] for turn in range(1, 5)] == [True] * 4
    assert lines[-2] == f"error: DescribeCluster demo: {sky.url} does not answer"
    assert lines[-1].endswith("`hyperpod-kit wait --cluster demo --region us-east-1` continues from this point")
    assert len(lines) == 6
    sky.control.script = [("InService", BOTH, "")]
    sky.come_back()
    assert hk("wait", "--interval", "0.2").code == 0
