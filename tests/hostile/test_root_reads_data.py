"""Root reads data that a user owns with that user's rights, wherever a link in it leads at that moment."""

from __future__ import annotations

import json
import os
import threading
from contextlib import closing
from pathlib import Path
from typing import Callable, Dict, Iterator, List

import pytest

from hyperpod_kit.cli.main import run_command_line
from hyperpod_kit.data.reading.local_file import LocalFile, open_regular
from hyperpod_kit.data.reading.mounts import SourceMounts
from hyperpod_kit.data.reading.source_files import open_file
from hyperpod_kit.errors import Unreachable, Untrusted, UsageError
from hyperpod_kit.job.fan_out import listing
from hyperpod_kit.untrusted import owner, source_owner, walk
from tests.hostile.acts.ground import own
from tests.hostile.users import ATTACKER, ROOT, VICTIM, place

pytestmark = ROOT
CANARY = "the-victims-own-words"


@pytest.fixture
def shared() -> Iterator[Path]:
    """The attacker's corpus, the victim's private one, and a directory of root's."""
    with place() as top:
        for name, uid, text in (("mallory", ATTACKER, "theirs"), ("private", VICTIM, CANARY)):
            (top / name).mkdir()
            (top / name / "a.jsonl").write_text(json.dumps({"text": text}) + "\n")
            own(top / name, uid, 0o700)
        (top / "out").mkdir()
        yield top


def link(shared: Path) -> Path:
    """Of the attacker's, to the victim's file."""
    path = shared / "mallory" / "b.jsonl"
    path.symlink_to(shared / "private" / "a.jsonl")
    os.chown(path, ATTACKER, ATTACKER, follow_symlinks=False)
    return path


def tokenizer(shared: Path) -> str:
    """Of words; for root alone."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    made = Tokenizer(models.WordLevel({CANARY: 0, "theirs": 1, "[UNK]": 2}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    path = shared / "out" / "tokenizer.json"
    made.save(str(path))
    path.chmod(0o600)
    return str(path)


def words_of(command: str, shared: Path, out: str) -> List[str]:
    source, target = str(shared / "mallory"), str(shared / "out" / out)
    words: Dict[str, Callable[[], List[str]]] = {
        "stage": lambda: [source, target],
        "merge": lambda: [source, target],
        "index": lambda: [f"{source}/*.jsonl", "--out", target, "--check"],
        "tokenize": lambda: ["--tokenizer", tokenizer(shared), "--out", target, "--index", f"{target}-index", source],
    }
    return ["data", command, *words[command]()]


@pytest.mark.parametrize("command", ["stage", "merge", "index", "tokenize"])
def test_root_reads_a_users_data_as_the_user(command: str, shared: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (shared / "out").chmod(0o700)  # as whom is written is another matter
    assert run_command_line(words_of(command, shared, "good")) == 0, capfd.readouterr().err
    written = {path for path in (shared / "out").rglob("*") if path.is_file()}
    assert written and {path.stat().st_uid for path in written} == {0}
    link(shared)
    assert run_command_line(words_of(command, shared, "led")) != 0
    assert "Permission denied" in (error := capfd.readouterr().err) or "may not read it" in error
    made = {path for path in (shared / "out").rglob("*") if path.is_file()} - written
    assert not [path for path in made if CANARY.encode() in path.read_bytes() and path.name != "tokenizer.json"]
    assert source_owner.process_source_uid_or_none() is None and os.geteuid() == 0


@pytest.mark.parametrize("command", ["show", "verify"])
def test_sources_of_a_users_index_are_read_as_its_owner(
    command: str, shared: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """He links what he has indexed to the victim's file, of which root would say the size and by what it is sorted."""
    data, index = shared / "mallory" / "data", str(shared / "mallory" / "index")
    data.mkdir()
    for name in "ab":
        (data / f"{name}.jsonl").write_text("".join(json.dumps({"text": name}) + "\n" for _ in range(2000)))
    assert run_command_line(["data", "index", str(data), "--out", index]) == 0
    own(shared / "mallory", ATTACKER, 0o700)
    words = ["data", command, index, *(["--bytes"] if command == "verify" else [])]
    assert run_command_line(words) == 0 and "Permission denied" not in capfd.readouterr().out
    for name in "ab":
        (data / f"{name}.jsonl").unlink()
        (data / f"{name}.jsonl").symlink_to(shared / "private" / "a.jsonl")
        os.chown(data / f"{name}.jsonl", ATTACKER, ATTACKER, follow_symlinks=False)
    assert run_command_line(words) == (1 if command == "verify" else 0)
    said = capfd.readouterr().out
    assert "Permission denied" in said and "bytes, expected" not in said and "found" not in said
    assert source_owner.process_source_uid_or_none() is None


def test_what_was_exchanged_since_it_was_listed_is_opened_as_the_owner(shared: Path) -> None:
    path = str(link(shared))
    source_owner.set_process_source_uid(ATTACKER)
    try:
        for opened in (
            lambda: LocalFile(path),
            lambda: open_file(path, SourceMounts()),
            lambda: open_regular(path).__enter__(),
        ):
            with pytest.raises(PermissionError):
                opened()
        with pytest.raises(Unreachable, match="Permission denied"):
            listing.listed(str(shared / "mallory"))
        with closing(LocalFile(str(shared / "mallory" / "a.jsonl"))) as file:
            assert json.loads(file.read(0, file.size)) == {"text": "theirs"}
    finally:
        source_owner.set_process_source_uid(None)


def test_one_thread_has_the_rights_and_no_other() -> None:
    """All of root's capabilities over files go with them, and come back."""

    def status() -> Dict[str, str]:
        lines = Path("/proc/thread-self/status").read_text().splitlines()
        return dict(line.split(":\t", 1) for line in lines if ":\t" in line)

    seen: List[Dict[str, str]] = []
    before = status()
    source_owner.set_process_source_uid(ATTACKER)
    try:
        with source_owner.thread_acting_as_source_owner():
            with source_owner.thread_acting_as_source_owner():
                pass
            inside = status()
            thread = threading.Thread(target=lambda: seen.append(status()))
            thread.start()
            thread.join()
            main = Path("/proc/self/status").read_text()
    finally:
        source_owner.set_process_source_uid(None)
    after = status()
    for name, column in (("Uid", 3), ("Gid", 3)):
        assert inside[name].split()[column] == str(ATTACKER) and inside[name].split()[0] == "0"
    assert inside["Groups"].strip() == "" and main
    for name in ("Uid", "Gid", "Groups", "CapEff"):
        assert after[name] == before[name]


def test_a_thread_that_was_started_before_keeps_roots_rights() -> None:
    ready, go, done = threading.Event(), threading.Event(), threading.Event()
    seen: List[str] = []

    def looks() -> None:
        ready.set()
        go.wait(60)
        seen.append(Path("/proc/thread-self/status").read_text())
        done.set()

    thread = threading.Thread(target=looks)
    thread.start()
    assert ready.wait(60)
    source_owner.set_process_source_uid(ATTACKER)
    try:
        with source_owner.thread_acting_as_source_owner():
            go.set()
            assert done.wait(60)
    finally:
        source_owner.set_process_source_uid(None)
        go.set()
        thread.join()
    assert "Uid:\t0\t0\t0\t0" in seen[0]


def test_sources_of_two_users_are_refused_by_name(shared: Path) -> None:
    with pytest.raises(UsageError, match=f"uid {ATTACKER} and uid {VICTIM}"):
        source_owner.opening_sources_as_owner_of([str(shared / "mallory"), str(shared / "private")]).__enter__()
    with source_owner.opening_sources_as_owner_of([str(shared / "mallory"), str(shared / "out")]):
        assert source_owner.process_source_uid_or_none() == ATTACKER


@pytest.mark.parametrize("mode", [0o755, 0o1777], ids=oct)
@pytest.mark.parametrize("command", ["stage", "merge", "index"])
def test_below_a_directory_of_roots_each_file_is_opened_as_its_own_owner(
    command: str, mode: int, shared: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A corpus of root's into which users lay their files: one of them lays a link."""
    corpus = shared / "corpus"
    corpus.mkdir()
    for name in ("mallory", "bob"):
        (corpus / name).mkdir()
        (corpus / name / "a.jsonl").write_text(json.dumps({"text": name}) + "\n")
    own(corpus / "mallory", ATTACKER, 0o700)
    own(corpus / "bob", VICTIM, 0o700)
    corpus.chmod(mode)
    target = shared / "out" / "good"
    ways = {"index": [str(corpus), "--out", str(target), "--check"]}
    assert run_command_line(["data", command, *ways.get(command, [str(corpus), str(target)])]) == 0, (
        capfd.readouterr().err
    )
    path = corpus / "mallory" / "b.jsonl"
    path.symlink_to(shared / "private" / "a.jsonl")
    os.chown(path, ATTACKER, ATTACKER, follow_symlinks=False)
    led = shared / "out" / "led"
    ways = {"index": [str(corpus), "--out", str(led), "--check"]}
    assert run_command_line(["data", command, *ways.get(command, [str(corpus), str(led)])]) != 0
    assert "symbolic link" in capfd.readouterr().err
    assert not [one for one in led.rglob("*") if one.is_file() and CANARY.encode() in one.read_bytes()]


@pytest.mark.parametrize("where", ["the file", "its directory"])
def test_roots_file_that_is_exchanged_since_its_owner_was_asked_for_is_not_opened(
    where: str, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a directory of root's in which everybody may rename."""
    corpus = shared / "corpus"
    (corpus / "deep").mkdir(parents=True)
    path = corpus / "deep" / "a.jsonl"
    path.write_text("{}\n")
    exchanged = path if where == "the file" else path.parent
    target = shared / "private" / "a.jsonl" if where == "the file" else shared / "private"
    whose = walk.uid_for_root_to_act_as

    def exchanging(name: str) -> int:
        uid = whose(name)
        exchanged.rename(shared / "aside")
        exchanged.symlink_to(target)
        os.chown(exchanged, ATTACKER, ATTACKER, follow_symlinks=False)
        return uid

    source_owner.set_process_source_uid(source_owner.EACH_ITS_OWN)
    try:
        os.close(source_owner.open_nonblocking_as_source_owner(str(path)))
        monkeypatch.setattr(walk, "uid_for_root_to_act_as", exchanging)
        with pytest.raises((OSError, Untrusted)):
            source_owner.open_nonblocking_as_source_owner(str(path))
    finally:
        source_owner.set_process_source_uid(None)


def test_a_thread_that_could_not_become_the_owner_opens_nothing_as_root(
    shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However often it tries, on a machine whose system calls are not known."""
    monkeypatch.setattr(source_owner, "_SETGROUPS", {})
    source_owner.set_process_source_uid(ATTACKER)
    try:
        for _ in range(2):
            with pytest.raises(OSError, match="not known"):
                source_owner.open_nonblocking_as_source_owner(str(shared / "private" / "a.jsonl"))
    finally:
        source_owner.set_process_source_uid(None)


def test_who_is_not_root_reads_with_its_own_rights(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owner, "is_machine_root", lambda: False)
    with source_owner.opening_sources_as_owner_of([str(shared / "mallory")]):
        assert source_owner.process_source_uid_or_none() is None


@pytest.mark.parametrize("kind", ["a fifo", "a link to the victim's"])
def test_a_users_tokenizer_is_read_as_its_owner_and_at_once(
    kind: str, shared: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = shared / "mallory" / "tokenizer.json"
    if kind == "a fifo":
        os.mkfifo(path)
        os.chown(path, ATTACKER, ATTACKER)
    else:
        path.symlink_to(shared / "private" / "a.jsonl")
        os.chown(path, ATTACKER, ATTACKER, follow_symlinks=False)
    words = ["--tokenizer", str(path), "--out", str(shared / "out" / "t"), str(shared / "mallory")]
    assert run_command_line(["data", "tokenize", *words]) != 0
    assert CANARY not in capfd.readouterr().err
