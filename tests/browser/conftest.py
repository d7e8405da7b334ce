"""Chromium, and the site built once for all processes of a test run. Without either these tests are skipped."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from docs import generate
from tests.browser.served import PREFIX, serving

ROOT = Path(__file__).parents[2]
NAMED_BY = "ATTN_MODS_CHROMIUM"
NEEDED = ("axe_playwright_python", "material", "mkdocs", "mkdocstrings", "playwright")
SITE_URL = f"http://attn-mods.localhost{PREFIX}"
"""Where the browser believes the site to be. Instant navigation goes by the addresses in the sitemap."""

OPTIONS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def chromium_path() -> str | None:
    """Where Chromium is: ATTN_MODS_CHROMIUM, else what the operating system calls by its usual names."""
    named = os.environ.get(NAMED_BY)
    return named or next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def wrong_path() -> str | None:
    """What is wrong with ATTN_MODS_CHROMIUM, as a sentence; None if it is not set, or names a program."""
    named = os.environ.get(NAMED_BY)
    if named is None or shutil.which(named):
        return None
    return f"{NAMED_BY} is {named!r}, which is no program; name Chromium's, or unset it to take the system's own"


def launched(playwright: Any, *arguments: str) -> Any:
    """Chromium, running."""
    path = chromium_path()
    try:
        return playwright.chromium.launch(executable_path=path, args=[*OPTIONS, *arguments])
    except Exception as error:
        pytest.fail(f"{path} does not start as Chromium: {str(error).splitlines()[0]}", pytrace=False)


def missing() -> str | None:
    """What is not there to look at the site, as a sentence."""
    packages = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if packages:
        return f"the site is not looked at: {', '.join(packages)} not installed (pip install -e '.[browser]')"
    if chromium_path() is None:
        return "the site is not looked at: no Chromium here (on Debian: apt-get install chromium)"
    return None


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the built site."""
    reason = missing()
    if reason is not None:
        pytest.skip(reason)
    wrong = wrong_path()
    if wrong is not None:
        pytest.fail(wrong, pytrace=False)
    parallel = "PYTEST_XDIST_WORKER" in os.environ
    shared = tmp_path_factory.getbasetemp().parent if parallel else tmp_path_factory.mktemp("site")
    folder = shared / "attn_mods_site"
    with FileLock(shared / "attn_mods_site.lock"):
        if not (folder / "site" / "index.html").exists():
            _build(folder)
    return folder / "site"


def _build(folder: Path) -> None:
    """Build a copy of the pages, so that the working copy's own are left alone; a warning is an error."""
    hand_written = shutil.ignore_patterns("gallery", "performance")
    shutil.copytree(ROOT / "docs" / "pages", folder / "pages", ignore=hand_written)
    generate.main(folder / "pages")
    hooks = f"hooks: [{ROOT}/docs/mended_search.py]\n"
    settings = f"INHERIT: {ROOT}/mkdocs.yml\ndocs_dir: {folder}/pages\nsite_dir: {folder}/site\n{hooks}"
    (folder / "mkdocs.yml").write_text(settings, encoding="utf-8")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", str(folder / "mkdocs.yml")]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "ATTN_MODS_SITE_URL": SITE_URL}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        shutil.rmtree(folder)
        pytest.fail(f"the site does not build:\n{done.stderr}")


@pytest.fixture(scope="session")
def chromium(built: Path) -> Iterator[Any]:
    """The browser; the site's host is this machine."""
    from playwright.sync_api import sync_playwright

    with serving(built) as port, sync_playwright() as playwright:
        here = f"--host-resolver-rules=MAP {SITE_URL.split('/')[2]}:80 127.0.0.1:{port}"
        browser = launched(playwright, here)
        yield browser
        browser.close()


class Visit:
    """A page, and what went wrong while it was looked at."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.problems: list[str] = []
        page.on("console", self._console)
        page.on("pageerror", lambda error: self.problems.append(f"error: {error}"))
        page.on("request", self._request)
        page.on("response", self._response)

    def _console(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.problems.append(f"console: {message.text}")

    def _request(self, request: Any) -> None:
        if not request.url.startswith((SITE_URL, "data:", "blob:")):
            self.problems.append(f"asked elsewhere: {request.url}")

    def _response(self, response: Any) -> None:
        if response.status >= 400:
            self.problems.append(f"{response.status}: {response.url}")

    def open(self, path: str, ready: str = "main") -> Any:
        """Load a page and wait until what matches ``ready`` is there."""
        self.page.goto(SITE_URL + path)
        self.page.wait_for_selector(ready, state="attached")
        return self.page


def settle(page: Any) -> None:
    """Wait until what is drawn is drawn, and the scripts have answered to the size of the window."""
    if page.query_selector(".am-explorer, .am-compose"):
        page.wait_for_selector("[data-shown]")
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


@pytest.fixture(scope="module")
def context(chromium: Any) -> Iterator[Any]:
    """One user: what was loaded once is at hand for the next page."""
    context = chromium.new_context(viewport={"width": 1280, "height": 900}, color_scheme="light")
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    context.set_default_timeout(60_000)
    yield context
    context.close()


@pytest.fixture
def visit(context: Any) -> Iterator[Visit]:
    """A fresh page; whatever it logs or asks of another host fails the test."""
    visit = Visit(context.new_page())
    yield visit
    visit.page.close()
    assert visit.problems == []
