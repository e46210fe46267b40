"""The pages of docs/design/packages: each package has one, none is long, and what they name is there.

So is what CONTRIBUTING.md's "Where do I add" names; its paths are checked in test_links.py.
"""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path
from typing import Iterator, List, Set, Tuple

import pytest

from tests.support.packages import CHECKOUT, PACKAGES, PRODUCT, modules

PAGES = CHECKOUT / "docs/design/packages"
WALKS = (CHECKOUT / "CONTRIBUTING.md").read_text().partition("## Where do I add")[2]
MOST_LINES = 150

COVERS = re.compile(r"^Covers (.*?)\.$", re.M | re.S)
"""The sentence by which a page of several packages names them: "Covers `system`, `run` and `errors`."."""

QUOTED = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
PATH = re.compile(r"[a-z_.][\w.]*(?:/[\w.@-]+)+/?")
FILE = re.compile(r"[\w.@/-]+\.(?:py|md|sh|j2)")
NAME = re.compile(r"[A-Za-z_]\w*(?:\.\w+)*")
PLACEHOLDER = re.compile(r"\b[A-Z][A-Z0-9]+\b")
"""Of a name that a reader fills in, as in `model/mounts/NAME.py`."""

APART = {"checkpoint.agent", "checkpoint.repository"}
"""Packages below another one that have pages of their own."""


def packages() -> Set[str]:
    """The packages and modules right below hyperpod_kit, those with pages of their own, and the other distributions."""
    entries = [path for path in PACKAGES[PRODUCT].iterdir() if is_package(path) or path.suffix == ".py"]
    return {path.stem for path in entries if path.stem != "__init__"} | APART | (PACKAGES.keys() - {PRODUCT})


def is_package(path: Path) -> bool:
    return (path / "__init__.py").exists()


def pages() -> List[Path]:
    return sorted(PAGES.glob("*.md"))


def covered(page: Path) -> Set[str]:
    """The packages that a page is about: the one of its name, or those that it says to cover."""
    match = COVERS.search(page.read_text())
    if match:
        return set(QUOTED.findall(match[1]))
    return {page.stem, f"hyperpod_{page.stem}"} & packages()


def bases(page: Path) -> List[Path]:
    """The directories that a path on a page may begin in."""
    directories = [CHECKOUT, PACKAGES[PRODUCT]]
    for name in sorted(covered(page)):
        directories.append(PACKAGES.get(name, PACKAGES[PRODUCT] / name.replace(".", "/")))
    return directories


def looks_like_a_path(text: str) -> bool:
    """Whether a quoted text is a path of this repository, without the name of a function behind it."""
    path = text.partition(":")[0]
    if PLACEHOLDER.search(path) or not re.fullmatch(r"[\w.]*", text.partition(":")[2]):
        return False
    return PATH.fullmatch(path) is not None or FILE.fullmatch(path) is not None


def paths_on(page: Path) -> Iterator[str]:
    return filter(looks_like_a_path, QUOTED.findall(page.read_text()))


def looks_like_a_name(text: str) -> bool:
    """Whether a quoted text is a name of code: one with an underscore, or a capital letter within a word."""
    return NAME.fullmatch(text) is not None and ("_" in text or re.search("[a-z][A-Z]", text) is not None)


@functools.lru_cache(maxsize=None)
def words_of_sources() -> Set[str]:
    return {word for path in modules() for word in re.findall(r"\w+", path.read_text())}


def exists(text: str, directories: List[Path]) -> bool:
    """Whether a path is a file, a directory or a module below one of the directories, and has the named definition."""
    path, _, name = text.partition(":")
    for directory in directories:
        for candidate in (directory / path, directory / f"{path}.py"):
            if candidate.exists() and (not name or name in definitions(candidate)):
                return True
    return False


@functools.lru_cache(maxsize=None)
def definitions(module: Path) -> Set[str]:
    """Names that a module defines, those of a class with the class before them."""
    names = set()
    for node in ast.parse(module.read_text()).body:
        if isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            members = [member.name for member in node.body if isinstance(member, ast.FunctionDef)]
            names |= {f"{node.name}.{member}" for member in members}
    return names


def test_each_package_has_a_page() -> None:
    written = [name for page in pages() for name in covered(page)]
    assert len(written) == len(set(written)), "a package is on two pages"
    assert set(written) == packages()


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.stem)
def test_a_page_is_about_a_package_and_short(page: Path) -> None:
    assert covered(page)
    assert len(page.read_text().splitlines()) <= MOST_LINES


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.stem)
def test_what_a_page_names_is_there(page: Path) -> None:
    directories = bases(page)
    assert [text for text in paths_on(page) if not exists(text, directories)] == []


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.stem)
def test_each_name_on_a_page_stands_in_the_code(page: Path) -> None:
    names = filter(looks_like_a_name, QUOTED.findall(page.read_text()))
    assert [name for name in names if not words_of_sources().issuperset(name.split("."))] == []


WALKED_ROW = re.compile(r"(?m)^\| `([^`]+)`[^|]*\| (.*) \|$")
WALKED_NAME = re.compile(r"`(\w+)`(?: in | of | \()`([^`/]+/[^`]+)`")
"""A name with the file that has it behind it: "`CLIENTS` in `model/clients.py`"."""


def walked_names() -> List[Tuple[str, str]]:
    """Each name of code that the walks give, with the file that has it."""
    pairs = [(path, name) for name, path in WALKED_NAME.findall(WALKS)]
    for path, text in WALKED_ROW.findall(WALKS):
        own = WALKED_NAME.sub("", text)
        quoted = [words for words in QUOTED.findall(own) if re.fullmatch(r"\w+(?: = \w+)?", words)]
        pairs += [(path, name) for words in quoted for name in re.findall(r"\w*[A-Z_]\w*", words)]
    return pairs


def text_of(path: str) -> str:
    """What a file of a walk says; of a path that a reader fills in, what all files there say."""
    pattern = PLACEHOLDER.sub("*", path)
    files = [file for base in (PACKAGES[PRODUCT], CHECKOUT) for file in sorted(base.glob(pattern))]
    return "\n".join(file.read_text() for file in files)


def test_the_walks_of_contributing_name_what_is_there() -> None:
    assert len(walked_names()) > 12
    assert [pair for pair in walked_names() if not re.search(rf"\b{pair[1]}\b", text_of(pair[0]))] == []


@pytest.mark.parametrize(
    ("text", "is_path"),
    [
        ("node/health/repair.py", True),
        ("step.py", True),
        ("tests/hostile", True),
        ("run.py:LocalRunner.run", True),
        ("model/mounts/NAME.py", False),
        ("/run/hyperpod-kit/health.json", False),
        ("hpk-data/1", False),
        ("s3://bucket/prefix", False),
        ("status.json", False),
        ("hyperpod-kit node health", False),
    ],
)
def test_what_is_a_path(text: str, is_path: bool) -> None:
    assert looks_like_a_path(text) is is_path


def test_what_is_a_name() -> None:
    assert (
        looks_like_a_name("run_as_owner")
        and looks_like_a_name("OwnedDirectory")
        and looks_like_a_name("records.TIME_FIELDS")
    )
    assert not looks_like_a_name("squeue") and not looks_like_a_name("node health") and not looks_like_a_name("--via")


def test_a_path_that_is_not_there() -> None:
    directories = [PACKAGES[PRODUCT]]
    assert exists("run.py:LocalRunner.run", directories) and exists("system/wait", directories)
    assert not exists("run.py:RemoteRunner", directories) and not exists("system/nowhere.py", directories)
