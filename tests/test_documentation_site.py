"""The site that `make docs` builds: every page is in its navigation, none asks the network.

What Sphinx has to build is skipped where it is not installed (extra `docs`); `make check` builds
the whole site, with warnings as errors.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

needs_sphinx = pytest.mark.skipif(
    importlib.util.find_spec("sphinx") is None, reason="no sphinx: pip install -e '.[docs]'"
)


@pytest.fixture(scope="module")
def conf(repo: Path) -> ModuleType:
    """The site's settings, as Sphinx reads them."""
    spec = importlib.util.spec_from_file_location("conf", repo / "docs" / "site" / "conf.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def build(repo: Path, target: Path, *settings: str) -> subprocess.CompletedProcess[str]:
    words = ["-q", "-W", "--keep-going", "-c", str(repo / "docs" / "site")]
    words += [word for setting in settings for word in ("-D", setting)]
    command = [sys.executable, "-m", "sphinx", *words, str(repo), str(target)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_every_page_is_in_the_navigation_once(conf: ModuleType, repo: Path) -> None:
    shown = [f"{page}.md" for pages in conf.NAVIGATION.values() for page in pages]
    assert [page for page in shown if not (repo / page).is_file()] == []
    assert len(shown) == len({*shown})
    written = {str(path.relative_to(repo)) for path in (repo / "docs").rglob("*.md")}
    assert sorted(written - {*shown}) == []


def test_a_text_that_has_its_own_page_is_not_shown_twice(conf: ModuleType, repo: Path) -> None:
    source = [(repo / "CONTRIBUTING.md").read_text("utf-8")]
    before = re.findall(r"^## .*", source[0], re.M)
    conf.adapt(None, "CONTRIBUTING", source)
    assert re.findall(r"^## .*", source[0], re.M) == before  # links to headings still lead there
    for words in ("an [architecture]", "a [format]", "an [op]"):
        name = words.partition("[")[2].rstrip("]")
        assert source[0].count(f"the page of {words}(docs/adding/{name}.md)") == 1
    assert "`rocmforge/gguf/formats.py`: its row" not in source[0]
    assert "make check" in source[0]


def test_the_first_page_gets_the_navigation(conf: ModuleType) -> None:
    source = ["# Name\n"]
    conf.adapt(None, conf.root_doc, source)
    listed = re.findall(r":caption: (.*)", source[0])
    assert listed == [*conf.NAVIGATION]
    assert source[0].count("```") == 2 * len(listed)


@needs_sphinx
def test_no_page_asks_the_network_and_a_broken_link_is_an_error(repo: Path, tmp_path: Path) -> None:
    """Three pages are built alone, so their links to the others are broken."""
    done = build(repo, tmp_path, "include_patterns=docs/SETTINGS.md,docs/CI.md,README.md")
    assert done.returncode == 1
    assert "Unknown source document 'docs/VALIDATION'" in done.stderr
    pages = [path.read_text("utf-8") for path in tmp_path.rglob("*.html")]
    assert len(pages) > 4
    loaded = re.compile(r"<(?:script|img|link|iframe|source)\b[^>]*(?:src|href)=\"(?:https?:)?//")
    assert [found[0] for page in pages if (found := loaded.search(page))] == []
    styles = "".join(path.read_text("utf-8") for path in tmp_path.rglob("*.css"))
    assert not re.search(r"url\(['\"]?(?:https?:)?//|@import", styles)


@needs_sphinx
@pytest.mark.slow
def test_pages_fit_their_window_and_load_nothing_from_elsewhere(repo: Path, tmp_path: Path) -> None:
    """In Chromium, on a desk and on a phone: what is wide scrolls inside itself."""
    api = pytest.importorskip("playwright.sync_api", reason="no playwright: .[browser]")
    chromium = shutil.which("chromium")
    if not chromium:
        pytest.skip("no chromium: apt-get install chromium")
    done = build(repo, tmp_path)
    assert done.returncode == 0, done.stderr
    pages = [page for page in sorted(tmp_path.rglob("*.html")) if page.name != "index.html"]
    assert len(pages) > 25  # index.html goes on to README.html
    wide, asked = [], []
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for width in (1280, 390):
            tab = browser.new_page(viewport={"width": width, "height": 900})
            tab.on("request", lambda request: asked.append(request.url))
            tab.on("pageerror", lambda error: wide.append(str(error)))
            for page in pages:
                tab.goto(page.as_uri())
                root = "document.documentElement"
                if tab.evaluate(f"{root}.scrollWidth > {root}.clientWidth"):
                    wide.append(f"{page.relative_to(tmp_path)} at {width}")
        tab.goto((tmp_path / "search.html").as_uri() + "?q=regression")
        tab.wait_for_selector("#search-results li")  # the search needs no server
        browser.close()
    assert wide == []
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []
