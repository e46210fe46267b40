"""Whatever is written into a configuration: refused before anything is rendered, with the place of the value, or taken
literally. Nothing of it is ever executed.

Three walls, each tested without the others: the rules, the templates' quoting, and the scripts that run on a node.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Tuple, cast, get_type_hints

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from hyperpod_kit.bundle import requirements, scripts
from hyperpod_kit.bundle.render import (
    Bundle,
    escape_unit_line,
    make_jinja_environment,
    render,
    replace_bundle_directory,
    shell_quote,
    systemd_quote,
)
from hyperpod_kit.bundle.render import render_template as render_template
from hyperpod_kit.bundle.sources import locate_sources
from hyperpod_kit.config.decoding.decode import decode_settings
from hyperpod_kit.config.load import load
from hyperpod_kit.config.reading import text_checks
from hyperpod_kit.config.settings.findings import Finding, is_key_path_at_or_inside, select_errors
from hyperpod_kit.config.settings.settings import Settings
from hyperpod_kit.config.validate import validate
from hyperpod_kit.errors import BundleError
from hyperpod_kit.model.mounts.base import Mount
from hyperpod_kit.model.mounts.kinds import KINDS
from hyperpod_kit.model.units import mount_unit_templates_and_names
from tests.property import systemd_oracle
from tests.property.every_field import ACCESS_POINTS, BESIDE, DOCUMENT, PLACES, Place, document, replaced, written
from tests.support.examples import examples

CANARY = "/tmp/hpk-canary-of-the-property-test"
HOSTILE = (
    f"'; touch {CANARY} #",
    f"$(touch {CANARY})",
    f"`touch {CANARY}`",
    f"a\nExecStartPre=/usr/bin/touch {CANARY}",
    f"| touch {CANARY}",
    f"{{{{ ''.__class__ }}}}{{% include '{CANARY}' %}}",
    "\0",
    "\ud800",
    "ü",
    "a\u2028b",
    "a b",
    " a ",
    "%n%h%s",
    "${HOME}",
    "-rf",
    "../../etc",
    "a,exec,suid",
    "\\",
    "",
    "x" * 1000,
)
NONCHARACTERS = "".join(
    map(chr, (*range(0xFDD0, 0xFDF0), *(plane << 16 | last for plane in range(17) for last in (0xFFFE, 0xFFFF))))
)
LINE = st.text(st.characters(exclude_categories=("Cc", "Cs"), exclude_characters=NONCHARACTERS), max_size=40)
needs_systemd = pytest.mark.needs("systemd-oracle")


@pytest.fixture(autouse=True)
def canary() -> Iterator[None]:
    """Nothing that a test does here may bring the canary to life."""
    assert not os.path.exists(CANARY)
    yield
    try:
        assert not os.path.exists(CANARY), "a value of the configuration was executed"
    finally:
        if os.path.exists(CANARY):
            os.unlink(CANARY)


def judge(values: dict[str, Any]) -> Tuple[Settings, List[Finding]]:
    """load.check without its file, which would cost ten times as much."""
    decoded, found = decode_settings(values, ACCESS_POINTS)
    decoded = replace(decoded, directory=BESIDE)
    found += [
        *text_checks.find_secrets_and_unfit_texts(values),
        *validate(decoded),
        *scripts.find_custom_script_problems(decoded),
        *requirements.find_requirement_problems(decoded),
    ]
    return decoded, select_errors(found)


def by_name(place: Place, finding: Finding) -> bool:
    """Whether the finding is about this value, or about the object that it makes impossible."""
    return finding.path in (written(place), written(place[:-1])) or is_key_path_at_or_inside(
        written(place), finding.path
    )


def is_name_of_group(place: Place) -> bool:
    """Whether other places refer to this one: with another name that is one, the finding is theirs."""
    return place[-3:-2] == ("instance_groups",) and place[-1] == "name"


# --- the rules ------------------------------------------------------------------------------------------------------


def test_the_document_has_every_field() -> None:
    assert judge(document())[1] == []
    mounts = {mount["kind"]: mount for mount in DOCUMENT["hyperpod_kit"]["mounts"]}
    for kind, cls in KINDS.items():
        for name in text_fields(cls):
            assert name in mounts[kind], f"every_field.py: write {name} into its {kind} mount"


@pytest.mark.full
def test_every_value_is_refused_by_its_place_or_is_only_data() -> None:
    accepted: Dict[str, List[Place]] = {}
    for place in PLACES:
        for value in HOSTILE:
            _, found = judge(replaced(place, value))
            if not found:
                accepted.setdefault(value, []).append(place)
            else:
                assert any(by_name(place, finding) for finding in found), (written(place), value[:40], found)
    units = unit_files(render(judge(document())[0]))
    for value, places in accepted.items():
        values: Any = document()
        for place in places:
            inner = values
            for key in place[:-1]:
                inner = inner[key]
            inner[place[-1]] = value
        if value and "kind" not in {place[-1] for place in places}:
            bundle = render(judge(values)[0])
            json.loads(bundle.files["node_config.json"])
            changed = {name for name, unit in unit_files(bundle).items() if units.get(name) != unit}
            assert not changed, f"{value[:40]!r} at {[written(place) for place in places]} reached {changed}"


@examples(30, suppress_health_check=list(HealthCheck))
@given(place=st.sampled_from(PLACES), value=st.text(max_size=60))
def test_any_text_anywhere_gives_findings_and_never_an_exception(place: Place, value: str) -> None:
    _, found = judge(replaced(place, value))
    assert not found or is_name_of_group(place) or any(by_name(place, finding) for finding in found)
    for finding in found:
        assert finding.render().isprintable()


def test_a_file_is_refused_with_the_path_before_anything_is_written(tmp_path: Path) -> None:
    """The whole way once, as a user goes it: file, command, exit code, no bundle."""
    from hyperpod_kit.cli.main import run_command_line

    place = ("hyperpod_kit", "mounts", 4, "path")
    config = tmp_path / "provisioning_parameters.json"
    config.write_text(json.dumps(replaced(place, HOSTILE[0])))
    assert run_command_line(["render", str(config), "--out", str(tmp_path / "bundle")]) == 1
    assert not (tmp_path / "bundle").exists()


# --- the templates, with no rule in front of them -------------------------------------------------------------------


def text_fields(cls: type) -> List[str]:
    """The fields of a mount that take text and can be written in a configuration."""
    hints = get_type_hints(cls)
    return [
        field.name
        for field in fields(cls)
        if "str" in str(hints[field.name])
        and "Tuple" not in str(hints[field.name])
        and not field.metadata.get("derived")
    ]


def legal_mounts() -> Dict[str, Mount]:
    return {mount.kind: mount for mount in judge(document())[0].mounts}


def unit_files(bundle: Bundle) -> Dict[str, bytes]:
    return {place: data for place, data in bundle.files.items() if place.startswith("units/")}


@needs_systemd
def test_what_passes_the_templates_is_one_word_for_systemd() -> None:
    """Every text of every mount, hostile, straight into its templates: an error, or the same words but for this one."""
    config = judge(document())[0].node_config()
    env = make_jinja_environment(locate_sources().templates)
    units: Dict[str, str] = {}
    origin: Dict[str, Tuple[str, str]] = {}
    for kind, mount in legal_mounts().items():
        for template, unit in mount_unit_templates_and_names(mount):
            if not unit.endswith(".service"):
                continue
            calm = f"calm-{kind}-{template.split('.')[0]}.service"
            units[calm] = render_template(env, template, mount=mount, config=config).decode()
            for field in text_fields(type(mount)):
                for number, value in enumerate(HOSTILE):
                    try:
                        rendered = render_template(
                            env, template, mount=replace(cast(Any, mount), **{field: value}), config=config
                        )
                    except BundleError:
                        continue
                    if rendered.decode() != units[calm]:
                        name = f"{kind}-{template.split('.')[0]}-{field.replace('_', '-')}-{number}.service"
                        units[name], origin[name] = rendered.decode(), (calm, value)
    assert origin, "not a single value came through: the test shows nothing"
    found = systemd_oracle.understood(units)
    assert set(found) == set(units), f"systemd refused {sorted(set(units) - set(found))[:5]}"
    for name, (calm, new) in origin.items():
        if not new:
            continue  # an option without a value is left out
        before, after = found[calm].commands, found[name].commands
        assert [len(command) for command in after] == [len(command) for command in before], name
        for words_before, words_after in zip(before, after):
            for word_before, word_after in zip(words_before, words_after):
                assert word_after == word_before or new in word_after, (name, word_after)
        assert "\n" not in found[name].description


@needs_systemd
@settings(max_examples=6, suppress_health_check=list(HealthCheck))
@given(words=st.lists(LINE, min_size=20, max_size=60))
@example(words=[value for value in HOSTILE if value.isprintable()])
def test_systemd_reads_back_what_was_quoted(words: List[str]) -> None:
    units = {
        f"u{number}.service": f"[Unit]\nDescription={escape_unit_line(f'<{word}>')}\n[Service]\nType=oneshot\n"
        f"ExecStart=/bin/true before {systemd_quote(word)} after\n"
        for number, word in enumerate(words)
    }
    found = systemd_oracle.understood(units)
    assert {name: told.commands for name, told in found.items()} == {
        f"u{number}.service": [["/bin/true", "before", word, "after"]] for number, word in enumerate(words)
    }
    assert [found[f"u{number}.service"].description for number in range(len(words))] == [f"<{word}>" for word in words]


@pytest.mark.parametrize("quote", [systemd_quote, escape_unit_line, shell_quote])
def test_what_systemd_would_pass_over_is_refused(quote: Callable[[str], str]) -> None:
    for char in NONCHARACTERS:
        with pytest.raises(ValueError, match="cannot hold"):
            quote(f"a{char}b")


@settings(max_examples=6)
@given(words=st.lists(LINE, min_size=1, max_size=60))
@example(words=[value for value in HOSTILE if value.isprintable()])
def test_a_shell_reads_back_what_was_quoted(words: List[str]) -> None:
    line = "printf '%s\\0' " + " ".join(shell_quote(word) for word in words)
    for shell in ("bash", "sh"):
        done = subprocess.run([shell, "-c", line], stdout=subprocess.PIPE, timeout=20, check=True)
        assert done.stdout.decode().split("\0")[:-1] == words


# --- the bundle -----------------------------------------------------------------------------------------------------


@pytest.fixture
def odd_bundle(tmp_path: Path) -> Bundle:
    """The bundle of a configuration that says as many odd things as the rules let pass."""
    values = document()
    values["version"] = f"$(touch {CANARY})"
    values["slurm_configurations"] = {f"x'; touch {CANARY} #": f"`touch {CANARY}`", "y": HOSTILE[0]}
    values["hyperpod_kit"]["failure_pause"] = 0
    del values["hyperpod_kit"]["homes"]
    config = tmp_path / "provisioning_parameters.json"
    config.write_text(json.dumps(values))
    shutil.copytree(BESIDE, tmp_path, dirs_exist_ok=True)
    return render(load(config))


def test_scripts_and_units_parse(odd_bundle: Bundle, tmp_path: Path) -> None:
    replace_bundle_directory(odd_bundle, tmp_path / "bundle")
    scripts = [str(path) for path in sorted((tmp_path / "bundle").rglob("*.sh"))]
    assert len(scripts) > 4
    for script in scripts:
        subprocess.run(["bash", "-n", script], check=True, timeout=20)
    shellcheck = Path(sys.executable).with_name("shellcheck")
    if shellcheck.exists():
        done = subprocess.run([shellcheck, *scripts], stdout=subprocess.PIPE, text=True, timeout=60)
        assert done.returncode == 0, done.stdout
    done = subprocess.run(
        [".ci/verify-units", str(tmp_path / "bundle/units")],
        stdout=subprocess.PIPE,
        text=True,
        timeout=60,
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode == 0, done.stdout


def test_a_creation_executes_nothing_of_it_not_even_the_name_of_its_directory(
    odd_bundle: Bundle, tmp_path: Path
) -> None:
    """on_create.sh from a directory with an awful name, until the cluster turns out to be none of ours."""
    staging = tmp_path / f"$(touch {Path(CANARY).name}) '; touch {Path(CANARY).name} # \" ü"
    root = tmp_path / "root of a node"
    (root / "opt/ml/config").mkdir(parents=True)
    (root / "opt/ml/config/resource_config.json").write_text('{"ClusterType": "Kubernetes"}')
    replace_bundle_directory(odd_bundle, staging)
    done = subprocess.run(
        ["bash", str(staging / "on_create.sh")],
        env={"PATH": os.environ["PATH"], "HPK_ROOT": str(root)},
        cwd=tmp_path,
        text=True,
        timeout=60,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert done.returncode == 1
    lines = (root / "var/log/provision/provisioning.log").read_text().splitlines()
    steps = {entry["step"]: entry["status"] for entry in map(json.loads, filter(lambda line: line[:1] == "{", lines))}
    assert steps["install-bundle"] == "changed" and steps["facts"] == "failed", done.stdout
    assert not list(tmp_path.rglob(Path(CANARY).name))
    assert (root / "opt/hyperpod-kit" / odd_bundle.bundle_id / "node_config.json").is_file()
