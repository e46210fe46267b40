"""Every layer answers for every kind of mount, and what is about one kind stands in the files of its name."""

from __future__ import annotations

import ast
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, Collection, Dict, Iterator, List, Mapping, Tuple

import pytest

from hyperpod_kit.config.mounts.form import MountForm
from hyperpod_kit.config.mounts.registry import FORMS
from hyperpod_kit.model.clients import CLIENTS
from hyperpod_kit.model.mounts.base import Mount, MountService, Traits
from hyperpod_kit.model.mounts.kinds import KINDS, collect_kind_objects
from hyperpod_kit.node.mounts.kinds import registry as of_the_node
from hyperpod_kit.node.mounts.kinds.kind import Kind
from hyperpod_kit.preflight.mounts.inquiry import MountInquiry
from hyperpod_kit.preflight.mounts.registry import INQUIRIES
from hyperpod_rehearsal.mounts.registry import REHEARSED
from hyperpod_rehearsal.mounts.rehearsed import RehearsedMount
from hyperpod_rehearsal.standins.install import LAUNCHERS
from tests.support.packages import CHECKOUT, located, modules, relative
from tests.support.syntax import nodes, tree_of

TEMPLATES = CHECKOUT / "templates"

LAYERS: Dict[str, Mapping[str, Any]] = {
    "node/mounts/kinds": of_the_node.KINDS,
    "config/mounts": FORMS,
    "preflight/mounts": INQUIRIES,
    "hyperpod_rehearsal/mounts": REHEARSED,
}
FOLDERS = ("model/mounts", *LAYERS)

NAMES = {cls.__module__.rpartition(".")[2]: cls for cls in KINDS.values()}
"""Name of a kind's files -> its class."""

OTHER_MEANINGS = {
    ("checkpoint/repository/store/open.py", "mountpoint-s3"): "the source that the kernel shows",
    ("hyperpod_rehearsal/sandbox/sandbox_shim.py", "mountpoint-s3"): "the same",
    ("hyperpod_rehearsal/standins/mountpoint_s3/cli.py", "mountpoint-s3"): "the same",
    ("model/clients.py", "lustre"): "a client, of whatever kind needs it",
    ("storage/quota/backends.py", "lustre"): "a type of file system",
    ("storage/preload/run.py", "lustre"): "the same",
    ("storage/tier/fsx_link.py", "lustre"): "the same",
    ("node/mounts/protect.py", "lustre"): "a type of file system",
    ("hyperpod_rehearsal/standins/modinfo.py", "lustre"): "a module of the kernel",
    ("hyperpod_rehearsal/standins/mount_lustre.py", "lustre"): "a type of file system",
    ("hyperpod_rehearsal/standins/mount_efs.py", "efs"): "a directory of the rehearsal, and a type of file system",
    ("hyperpod_rehearsal/standins/mount_s3files.py", "s3files"): "the same",
    ("hyperpod_rehearsal/standins/mount_nfs.py", "openzfs"): "a directory of the rehearsal",
    ("hyperpod_rehearsal/efs/protocol.py", "efs"): "botocore's name of a service",
    ("hyperpod_rehearsal/server.py", "efs"): "an attribute of the endpoint's handler",
    ("aws/efs.py", "efs"): "botocore's name of a service",
    ("infra/template.py", "efs"): "aws's word for a service",
    ("aws/s3files.py", "s3files"): "the same",
    ("storage/bench/run.py", "lustre"): "a type of file system",
    ("storage/bench/run.py", "mountpoint-s3"): "a row of the planner",
    ("storage/bench/run.py", "nvme"): "the same",
    ("storage/bench/run.py", "efs"): "the same",
    ("storage/plan/catalog.py", "mountpoint-s3"): "a row of the planner, whose traits everything else asks",
    ("storage/plan/catalog.py", "nvme"): "the same",
    ("storage/plan/catalog.py", "efs"): "the same, and a price",
    ("storage/plan/prices.py", "efs"): "a price",
    ("storage/plan/seeds.py", "mountpoint-s3"): "a column of a published table",
    ("storage/plan/seeds.py", "nvme"): "the same",
}
"""(file, word) -> what the word means there: not a kind of mount."""


def sources(words: Collection[str]) -> Iterator[Tuple[str, ast.Module]]:
    """The modules in whose text one of the words stands."""
    for path in modules():
        source = path.read_text()
        if any(word in source for word in words):
            yield relative(path), tree_of(path)


def is_of_a_kind(name: str) -> bool:
    """Whether a file is one of a kind's own: `node/mounts/kinds/efs_utils.py` too."""
    folder, _, file = name.rpartition("/")
    return folder in FOLDERS and any(file == f"{own}.py" or file.startswith(f"{own}_") for own in NAMES)


@pytest.mark.parametrize("layer", LAYERS)
def test_every_layer_answers_for_every_kind(layer: str) -> None:
    assert list(LAYERS[layer]) == list(KINDS)
    for own in NAMES:
        assert located(f"{layer}/{own}.py").is_file()


@pytest.mark.parametrize("question", [Traits, MountService, MountForm, MountInquiry, RehearsedMount])
def test_no_question_has_an_answer_of_its_own(question: type) -> None:
    """A default would answer for a kind that forgot the question."""
    assert is_dataclass(question)
    assert [one.name for one in fields(question) if one.default is not MISSING] == []
    assert [one.name for one in fields(question) if one.default_factory is not MISSING] == []


def test_a_kind_that_forgets_a_trait_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="at_home"):
        answers = {one.name: None for one in fields(Traits) if one.name != "at_home"}
        Traits(**answers)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="Forgetful lacks traits"):
        type("Forgetful", (Mount,), {"kind": "forgetful"})
    with pytest.raises(TypeError, match="abstract"):
        type("Silent", (Mount,), {"kind": "silent", "traits": None})()
    with pytest.raises(TypeError, match="Forgetful lacks package, client_check, restart_when_hung"):
        type("Forgetful", (Kind,), {"program": "/usr/sbin/mount.forgetful"})


def test_a_layer_without_the_file_of_a_kind_cannot_be_imported() -> None:
    with pytest.raises(ImportError):
        collect_kind_objects("hyperpod_kit.cli", MountForm)
    with pytest.raises(TypeError, match=r"hyperpod_kit\.model\.mounts\.efs\.KIND is a NoneType, expected MountForm"):
        collect_kind_objects("hyperpod_kit.model.mounts", MountForm)


@pytest.mark.parametrize("kind", KINDS)
def test_the_answers_of_a_kind_fit_each_other(kind: str) -> None:
    cls = KINDS[kind]
    names = [one.name for one in fields(cls)]
    traits: Traits = cls.traits
    assert cls.kind == kind and NAMES[kind.replace("-", "_")] is cls
    assert names[:2] == ["name", "path"] and {"required", "roles", "groups"} <= set(names)
    assert set(traits.target) <= set(names)
    assert traits.client in ("", *CLIENTS)
    assert (TEMPLATES / "systemd" / traits.service.template).is_file()
    assert set(FORMS[kind].fields) <= set(names)
    storage = FORMS[kind].storage_config
    assert bool(traits.storage_config) == (storage is not None) == ("platform" in names)
    assert storage is None or set(storage.keys.values()) <= set(names)
    assert not (traits.local_disk and traits.in_vpc)
    assert set(REHEARSED[kind].clients) <= set(LAUNCHERS), "a node of the rehearsal has each program that mounts"


def test_nobody_asks_for_a_class() -> None:
    """What differs from kind to kind is a trait, a method, or stands in the kind's own file."""
    classes = {cls.__name__ for cls in KINDS.values()}
    found: List[str] = []
    for name, tree in sources(classes):
        for call in nodes(tree):
            if not isinstance(call, ast.Call) or is_of_a_kind(name):
                continue
            asking = isinstance(call.func, ast.Name) and call.func.id in ("isinstance", "issubclass")
            asking |= isinstance(call.func, ast.Attribute) and call.func.attr == "written"
            named = {one.id for argument in call.args for one in ast.walk(argument) if isinstance(one, ast.Name)}
            if asking and named & classes:
                found.append(f"{name}:{call.lineno}")
    assert found == []


def test_nobody_compares_the_name_of_a_kind() -> None:
    found = set()
    for name, tree in sources(KINDS):
        words = {one.value for one in nodes(tree) if isinstance(one, ast.Constant) and isinstance(one.value, str)}
        if not is_of_a_kind(name):
            found |= {(name, word) for word in words & set(KINDS)}
    assert found == set(OTHER_MEANINGS)
    for path in TEMPLATES.rglob("*.j2"):
        assert ".kind ==" not in path.read_text() and ".kind in" not in path.read_text(), path
