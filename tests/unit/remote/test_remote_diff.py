"""diff as a user types it: S3 and SageMaker behind HTTP, nodes behind ssh that run its shell script on real files."""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Iterator

import pytest

from hyperpod_kit.aws.s3 import Bucket
from hyperpod_kit.bundle import contents, sources
from hyperpod_kit.bundle.render import Bundle, render
from hyperpod_kit.bundle.stored import THREADS
from hyperpod_kit.bundle.upload import upload_bundle
from hyperpod_kit.cli.main import run_command_line
from hyperpod_kit.config.load import load
from hyperpod_rehearsal.s3.store import StoredBuckets
from tests.support.aws import ListedNodes, endpoint
from tests.support.installed_bundle import install

if TYPE_CHECKING:
    from tests.unit.remote.conftest import Network

EXAMPLE = Path(__file__).parents[3] / "provisioning_parameters.example.json"
GROUPS = ("controller-machine", "worker-group")


class ClusterOfBundles:
    """`bundle`: that of the configuration; `older`: one with another file of the node's program and one unit more."""

    def __init__(self, directory: Path, control: ListedNodes, network: Network) -> None:
        self.directory, self.control, self._network = directory, control, network
        settings = load(EXAMPLE)
        self.bundle = render(settings)
        self.older = render(replace(settings, sourced_mounts=settings.sourced_mounts[:1]))
        self.bucket = Bucket(self.bundle.bucket, settings.cluster.region, connections=THREADS)

    def node(self, bundle: Bundle | None, *, ok: bool = True, recorded: str | None = None) -> Path:
        """A node with this bundle installed; its root. `recorded`: what status.json says, "" for no status.json."""
        root = self.directory / f"node{len(self.control.addresses)}"
        (root / "var/lib/hyperpod-kit").mkdir(parents=True)
        if bundle is not None:
            install(bundle, root / "opt/hyperpod-kit" / bundle.bundle_id)
            (root / "opt/hyperpod-kit/current").symlink_to(bundle.bundle_id)
            status = {"bundle_id": bundle.bundle_id if recorded is None else recorded, "ok": ok, "finished_at": 1.8e9}
            if recorded != "":
                (root / "var/lib/hyperpod-kit/status.json").write_text(json.dumps(status))

        def answer(command: str) -> tuple[int, str, str]:
            for path in ("/opt/hyperpod-kit", "/var/lib/hyperpod-kit"):
                command = command.replace(path, f"{root}{path}")
            done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=30)
            return done.returncode, "Welcome\n== to your node\n" + done.stdout, done.stderr

        self.control.addresses.append(self._network.node(answer).address)
        return root

    def groups(self, *bundles: Bundle) -> None:
        self.control.sources = {name: bundle.source_s3_uri for name, bundle in zip(GROUPS, bundles)}

    def ssh(self) -> list[str]:
        given = self._network.settings
        options = {"--ssh-key": given.key, "--ssh-port": given.port, "--known-hosts": given.known_hosts}
        return [str(word) for pair in options.items() for word in pair]


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sources of a dozen short files: what is compared is not what is in them."""
    root = tmp_path / "sources"
    for name in (*contents.ENTRY_SCRIPTS, *contents.PROGRAM.values()):
        put(root / "lifecycle_scripts" / name, "#!/bin/bash\n:\n")
    for path in (EXAMPLE.parent / "templates/systemd").iterdir():
        put(root / "templates/systemd" / path.name, path.read_text())
    put(root / "slurm/prolog.sh", "#!/bin/bash\n:\n")
    for name in (EXAMPLE.name, "LICENSE"):
        put(root / name, (EXAMPLE.parent / name).read_text())
    for name in (*contents.VENDORED_FILES, *(f"{package}/__init__.py" for package in contents.VENDORED_PACKAGES)):
        put(root / "package" / name, "")
    monkeypatch.setattr(sources, "locate_sources", lambda: sources.Sources(root, root / "package"))


def put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.fixture
def world(tmp_path: Path, small: None, network: Network, monkeypatch: pytest.MonkeyPatch) -> Iterator[ClusterOfBundles]:
    store, control = StoredBuckets(tmp_path / "s3"), ListedNodes(*GROUPS, sources={})
    monkeypatch.chdir(tmp_path)
    shutil.copy(EXAMPLE, tmp_path / "provisioning_parameters.json")
    with endpoint(monkeypatch, store, control):
        made = ClusterOfBundles(tmp_path, control, network)
        store.create_bucket(made.bundle.bucket)
        yield made


@pytest.fixture
def diff(world: ClusterOfBundles, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, dict[str, Any]]]:
    """diff("--no-nodes") -> (exit code, the JSON object)."""

    def call(*words: str) -> tuple[int, dict[str, Any]]:
        capsys.readouterr()
        code = run_command_line(["diff", "--json", *world.ssh(), *words])
        out, err = capsys.readouterr()
        assert out, err
        return code, json.loads(out)

    return call


def states(answer: dict[str, Any]) -> dict[str, tuple[str, str]]:
    """First word of each place -> (state, detail)."""
    return {f"{row['what']} {row['where'].split()[0]}": (row["state"], row["detail"]) for row in answer["places"]}


def test_all_the_same(world: ClusterOfBundles, diff: Any, capsys: pytest.CaptureFixture[str]) -> None:
    upload_bundle(world.bundle, world.bucket)
    world.groups(world.bundle, world.bundle)
    world.node(world.bundle)
    world.node(world.bundle)
    code, answer = diff()
    assert (code, answer["same"], answer["changes"]) == (0, True, {})
    assert [row["state"] for row in answer["places"]] == ["same"] * 5
    assert answer["places"][-1]["detail"] == "created 2027-01-15 08:00:00Z"
    capsys.readouterr()
    assert run_command_line(["diff", *world.ssh()]) == 0
    out, err = capsys.readouterr()
    assert f"bundle {world.bundle.bundle_id} of this configuration" in out
    assert "the same in all 5 places" in err


def test_an_older_bundle_is_seen_in_groups_and_on_nodes_with_what_changed(
    world: ClusterOfBundles, diff: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    upload_bundle(world.bundle, world.bucket)
    upload_bundle(world.older, world.bucket)
    world.groups(world.older, world.bundle)
    world.node(world.bundle)
    world.node(world.older)
    code, answer = diff()
    found = states(answer)
    assert code == 1
    assert found["group controller-machine"] == ("differs", "what new nodes would run")
    assert (found["group worker-group"][0], found[f"node i-{0:017x}"][0]) == ("same", "same")
    assert found[f"node i-{1:017x}"][0] == "differs"
    change = answer["changes"][world.older.bundle_id]
    assert change["changed"] == ["node_config.json"] and change["removed"] == []
    assert change["added"] == sorted(set(world.bundle.files) - set(world.older.files))
    capsys.readouterr()
    assert run_command_line(["diff", "--no-nodes"]) == 1
    out, _ = capsys.readouterr()
    assert f"from {world.older.bundle_id} to this configuration: {len(change['added']) + 1} files" in out
    assert "  changed  node_config.json" in out


def test_every_state_of_a_node_and_of_the_files_in_s3(world: ClusterOfBundles, diff: Any) -> None:
    """The older bundle is not in S3: the node's own list says what changed."""
    upload_bundle(world.bundle, world.bucket)
    world.bucket.put(world.bundle.prefix + "on_create.sh", b"x" * len(world.bundle.files["on_create.sh"]))
    world.bucket.put(world.bundle.prefix + "extra", b"")
    world.groups(world.bundle)
    world.node(world.bundle)
    world.node(world.older)
    world.node(None)
    world.node(world.bundle, ok=False)
    world.node(world.bundle, recorded="")
    world.node(world.bundle, recorded="0123456789abcdef")
    several = world.node(world.bundle) / "opt/hyperpod-kit/current"
    (several / "node_config.json").write_text("{}")
    (several / "slurm/prolog.sh").unlink()
    (several / "lib/json.py").write_text("")
    (several / "lib/__pycache__").mkdir()
    (several / "lib/__pycache__/run.cpython-38.pyc").write_text("")
    sums = world.node(world.bundle) / "opt/hyperpod-kit/current/SHA256SUMS"
    sums.write_text(sums.read_text().replace("  on_create.sh", "  on_creat.sh"))
    shutil.rmtree((world.node(world.bundle) / "opt/hyperpod-kit/current").resolve())
    code, answer = diff()
    s3, _, *nodes = answer["places"]
    assert code == 1 and answer["changes"][world.older.bundle_id]["changed"] == ["node_config.json"]
    assert (s3["state"], s3["files"]) == ("damaged", ["on_create.sh: damaged", "extra: not part of this bundle"])
    assert [(row["state"], row["detail"]) for row in nodes[:6]] == [
        ("same", "created 2027-01-15 08:00:00Z"),
        ("differs", "created 2027-01-15 08:00:00Z"),
        ("absent", "no bundle is installed: see /var/log/provision/provisioning.log on the node"),
        ("failed", "its creation failed: see status.json on the node"),
        ("failed", "no creation has finished"),
        ("failed", "the last finished creation was of 0123456789abcdef"),
    ]
    assert {row["state"] for row in nodes[6:]} == {"damaged"}
    assert [row["files"] for row in nodes[6:]] == [
        ["node_config.json: damaged", "slurm/prolog.sh: missing", "lib/json.py: not part of this bundle"],
        ["SHA256SUMS: damaged", "on_creat.sh: missing", "on_create.sh: not part of this bundle"],
        [f"/opt/hyperpod-kit/{world.bundle.bundle_id}: missing"],
    ]


def test_a_node_with_an_older_format_of_bundle_is_to_be_replaced(world: ClusterOfBundles, diff: Any) -> None:
    upload_bundle(world.bundle, world.bucket)
    world.groups(world.bundle)
    root = world.node(world.older)
    description = root / "opt/hyperpod-kit/current/bundle.json"
    description.write_text(description.read_text().replace("hpk-bundle/2", "hpk-bundle/1"))
    code, answer = diff()
    node = answer["places"][-1]
    assert (code, node["state"]) == (1, "differs")
    assert node["detail"] == "runs hpk-bundle/1: replace the node, or run the new bundle's entry script on it"
    assert answer["changes"][world.older.bundle_id]["changed"] == ["node_config.json"]


def test_a_changed_module_is_named_although_it_travels_in_an_archive(
    world: ClusterOfBundles, diff: Any, tmp_path: Path
) -> None:
    root = tmp_path / "sources"
    put(root / "package/node/__init__.py", "changed = True\n")
    changed = render(load(EXAMPLE))
    upload_bundle(world.bundle, world.bucket)
    world.groups(world.bundle)
    world.node(world.bundle)
    code, answer = diff()
    assert code == 1 and answer["bundle_id"] == changed.bundle_id
    assert answer["changes"][world.bundle.bundle_id]["changed"] == [
        "lib.tar.sha256",
        "lib/hyperpod_kit/node/__init__.py",
    ]


def test_before_the_first_upload_and_before_the_cluster(
    world: ClusterOfBundles, diff: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    code, answer = diff()
    absent = {f"s3 {world.bundle.source_s3_uri}": ("absent", "not uploaded: hyperpod-kit upload")}
    assert (code, states(answer)) == (1, absent)
    upload_bundle(world.bundle, world.bucket)
    capsys.readouterr()
    assert run_command_line(["diff"]) == 0
    assert "there is no cluster demo yet" in capsys.readouterr().err


def test_silence_is_neither_the_same_nor_a_difference(world: ClusterOfBundles, diff: Any, network: Network) -> None:
    upload_bundle(world.bundle, world.bucket)
    world.groups(world.bundle)
    world.node(world.bundle)
    world.control.addresses.append(network.node(lambda command: (127, "", "sh: not found\n")).address)
    world.control.addresses.append(network.address())
    code, answer = diff()
    found = [(row["state"], row["detail"]) for row in answer["places"][3:]]
    assert code == 3
    assert found[0] == ("unknown", "its answer does not describe a bundle: nothing")
    assert found[1][0] == "unknown" and "refuses the connection" in found[1][1]
    code, answer = diff("--known-hosts", "nowhere")
    assert (code, answer["places"][-1]["state"], answer["places"][0]["state"]) == (3, "unknown", "same")
    assert "there are no host keys at nowhere" in answer["places"][-1]["detail"]


def test_nobody_answers(world: ClusterOfBundles, diff: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    code, answer = diff()
    assert code == 3 and [row["state"] for row in answer["places"]] == ["unknown", "unknown"]
