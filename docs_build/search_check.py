"""Questions of newcomers, asked of the built site from disk in headless Chromium: is what answers them found first?

    python -m docs_build.search_check DIRECTORY

Exit codes: 0 each question is answered, 1 some are not, 3 there is no Chromium.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from urllib.parse import quote

from hyperpod_kit.cli.views import finding_texts

QUESTIONS = {
    "my node does not mount": "how-to/node-does-not-mount.html",
    "add an S3 bucket": "how-to/add-a-bucket.html",
    "resume after preemption": "how-to/after-preemption.html",
    "upgrade": "how-to/upgrade.html",
    "uninstall": "how-to/uninstall.html",
    "preemption": "how-to/after-preemption.html",
    "pyxis": "how-to/optional-steps.html",
    "docker": "how-to/containers.html",
    "accounting": "how-to/accounting.html",
    "sso": "how-to/beyond-the-kit.html",
    "active directory": "how-to/beyond-the-kit.html",
    "ldap": "how-to/beyond-the-kit.html",
}
"""What newcomers typed -> the page that the first result leads to."""
COUNT = 10
API_NAMES = {
    "checkpoint": ("Manager", "State", "Handle", "load_state", "load_weights", "list_checkpoints", "newest_valid"),
    "data": ("SampleIndex", "IndexedDataset", "ElasticLoader"),
}

_QUIET = ("--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-quic")
_LINK = re.compile(r'href="([^"]*)" class="md-search-result__link"')


def first(browser: str, site: Path, question: str) -> str:
    """Where the first result leads, from the site's root; "" when nothing is found."""
    with tempfile.TemporaryDirectory() as profile:
        command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", *_QUIET]
        # Its clock stands while something is under way: the budget is no time that passes.
        command += [f"--user-data-dir={profile}", "--virtual-time-budget=20000", "--dump-dom"]
        page = subprocess.run(
            [*command, f"{(site / 'index.html').as_uri()}?q={quote(question)}"],
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        ).stdout
    found = _LINK.search(page)
    return found[1].partition("?")[0].removeprefix(f"{site.as_uri()}/") if found else ""


def questions() -> dict[str, str]:
    """Those of newcomers, the codes that the program uses most often, and names of the Python API."""
    call_sites = Counter(text.code for text in finding_texts.all_texts() if text.code.startswith("HPK-"))
    codes = {code: "reference/findings.html" for code, _ in call_sites.most_common(COUNT)}
    names = {name: f"reference/python/{package}.html" for package, names in API_NAMES.items() for name in names}
    return {**QUESTIONS, **codes, **names}


def main() -> int:
    site = Path(sys.argv[1]).resolve()
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        print("there is no Chromium: apt-get install chromium", file=sys.stderr)
        return 3
    wrong = 0
    for question, wanted in questions().items():
        found = first(browser, site, question)
        wrong += found != wanted
        print(f"{question}: {found or 'nothing'}" + ("" if found == wanted else f", expected {wanted}"))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
