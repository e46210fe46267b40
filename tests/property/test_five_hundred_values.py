"""Five hundred values for each field: what is accepted renders, passes `systemd-analyze verify` without a word, and is
on the node what it was in the file."""

from __future__ import annotations

import json
import os
import re
import subprocess
from functools import lru_cache
from pathlib import Path
from typing import Any, Dict, Iterator, List, Tuple

import pytest

from hyperpod_kit.bundle.render import make_jinja_environment
from hyperpod_kit.bundle.render import render_template as render_template
from hyperpod_kit.bundle.sources import locate_sources
from hyperpod_kit.config.emit import provisioning_parameters_json_if_on_create
from hyperpod_kit.config.settings.findings import is_key_path_at_or_inside
from hyperpod_kit.config.settings.settings import Settings
from hyperpod_kit.model.node_config import NodeConfig
from hyperpod_kit.model.units import NODE_UNITS, mount_unit_templates_and_names
from tests.property import systemd_oracle
from tests.property.every_field import NUMBERS, PLACES, Place, document, replaced, written
from tests.property.hostile_values import CANARY, COUNT, numbers, texts
from tests.property.test_config_values import by_name, is_name_of_group, judge

VERIFY = Path(__file__).parents[2] / ".ci/verify-units"
needs_systemd = pytest.mark.needs("systemd-oracle")
SPANS = re.compile(r"^\w+Sec=(\S+)$", re.MULTILINE)


@pytest.fixture(autouse=True)
def canary() -> Iterator[None]:
    """Nothing that a test does here may bring the canary to life."""
    yield
    assert not os.path.exists(CANARY), "a value of the configuration was executed"


def value_at(place: Place) -> Any:
    value: Any = document()
    for key in place:
        value = value[key]
    return value


def refers(path: str, legal: Any) -> bool:
    """Whether what stands there is the name that the value has replaced: then the finding is of the one who refers."""
    value: Any = document()
    for key in re.findall(r"[^.\[\]]+", path):
        if not isinstance(value, (list, dict)):
            return False
        value = value[int(key)] if isinstance(value, list) else value.get(key)
    return isinstance(legal, str) and value == legal


@lru_cache(maxsize=1)
def templates() -> Any:
    return make_jinja_environment(locate_sources().templates)


def units(settings: Settings) -> Dict[str, str]:
    """Every unit of a bundle; what else is in one does not depend on values or is JSON."""
    config = settings.node_config()
    found = {unit: render_template(templates(), name, config=config).decode() for name, unit in NODE_UNITS}
    for mount in config.mounts:
        for name, unit in mount_unit_templates_and_names(mount):
            assert unit not in found or unit.endswith(".slice")
            found[unit] = render_template(templates(), name, mount=mount, config=config).decode()
    return found


def accepted(place: Place, values: List[Any]) -> List[Tuple[Any, Settings]]:
    """What the rules let pass; what they refuse they refuse by its place, in words that a terminal can show."""
    passed, legal = [], value_at(place)
    for value in values:
        settings, found = judge(replaced(place, value))
        if not found:
            passed.append((value, settings))
            continue
        assert all(finding.render().isprintable() for finding in found), ascii(value)[:80]
        named = any(
            by_name(place, finding)
            or is_key_path_at_or_inside(finding.path, written(place[:-1]))
            or refers(finding.path, legal)
            for finding in found
        )
        # How many controllers there are decides whether other keys may be there.
        assert named or is_name_of_group(place) or place[-1] == "count", (ascii(value)[:80], found)
    return passed


def same_on_the_node(value: Any, settings: Settings) -> None:
    """node_config.json and AWS's own file say what the settings do."""
    config = settings.node_config()
    assert NodeConfig.from_json(config.to_json()) == config, ascii(value)[:80]
    legacy = provisioning_parameters_json_if_on_create(settings)
    assert legacy is None or json.loads(legacy)["controller_group"] == settings.parameters.controller_group


def verified(changed: Dict[str, str], calm: Dict[str, str], place: Path) -> None:
    """systemd itself has no word to say about these units, beside those of the document as it is."""
    for name, text in {**calm, **changed}.items():
        (place / name).write_text(text)
    done = subprocess.run([str(VERIFY), str(place)], stdout=subprocess.PIPE, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-3000:]


@needs_systemd
@pytest.mark.full
@pytest.mark.parametrize("place", [*PLACES, *NUMBERS], ids=written)
def test_what_is_accepted_is_meant(place: Place, tmp_path: Path) -> None:
    legal = value_at(place)
    values = texts(legal) if isinstance(legal, str) else numbers(legal)
    assert len(values) >= COUNT
    passed = accepted(place, values)
    calm = units(judge(document())[0])
    by_text = {text: name for name, text in calm.items()}
    changed: Dict[str, Tuple[Any, str, str]] = {}
    for number, (value, settings) in enumerate(passed):
        same_on_the_node(value, settings)
        for name, text in units(settings).items():
            if text not in by_text:
                by_text[text] = f"v{number}-{name}"
                changed[by_text[text]] = (value, name, text)
    if not changed:
        return
    verified({name: text for name, (_, _, text) in changed.items()}, calm, tmp_path)
    services = {name: text for name, (_, _, text) in changed.items() if name.endswith(".service")}
    said = systemd_oracle.understood({**calm_services(calm), **services})
    assert set(services) <= set(said), sorted(set(services) - set(said))[:3]
    for name, (value, _, text) in changed.items():
        if name.endswith(".timer"):
            spans(value, text)
        elif name in services:
            assert_said(value, said[name].commands, text)


def calm_services(calm: Dict[str, str]) -> Dict[str, str]:
    return {name: text for name, text in calm.items() if name.endswith(".service") and "@" not in name}


def assert_said(value: Any, commands: List[List[str]], text: str) -> None:
    """Each word of each command is one that stands in the unit, and the value is in one of them or in no command."""
    lines = [line.partition("=")[2] for line in text.splitlines() if line.startswith("Exec")]
    assert len(commands) == len(lines), ascii(value)
    whole = [word for command in commands for word in command]
    if any(str(value) in line for line in lines):
        assert any(str(value) in word for word in whole), (ascii(value), whole)
    assert all(word.isprintable() for word in whole), ascii(value)


def spans(value: Any, text: str) -> None:
    """systemd reads the number of a timer as the number that was written."""
    found = SPANS.findall(text)
    assert found
    done = subprocess.run(["systemd-analyze", "timespan", *found], stdout=subprocess.PIPE, text=True, timeout=60)
    read = [int(number) for number in re.findall(r"s: (\d+)$", done.stdout, re.MULTILINE)]
    wanted = [round(float(span.rstrip("s")) * 1e6) for span in found]
    assert done.returncode == 0 and read == wanted, (value, found, done.stdout)
