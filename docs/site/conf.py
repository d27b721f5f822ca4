"""Sphinx's settings for `make docs`: the site is made of the Markdown files of the repository.

Its source folder is the repository's root, so that a link leads to the same place on a git host
and on the site. The navigation is `NAVIGATION`; README.md is the first page.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parents[2]

NAVIGATION = {
    "Use it": (
        "docs/GETTING_STARTED",
        "docs/RUNNING_MODELS",
        "docs/BENCHMARKING",
        "docs/READING_RESULTS",
        "docs/FLEET",
        "docs/PROFILING_GUIDE",
    ),
    "How it works": ("docs/ARCHITECTURE", "kernels/README", "benchmarks/README"),
    "Add to it": (
        "CONTRIBUTING",
        "docs/adding/architecture",
        "docs/adding/format",
        "docs/adding/op",
        "docs/adding/kernel",
        "docs/adding/benchmark",
    ),
    "What was measured": (
        "docs/PERFORMANCE",
        "docs/FIGURES",
        "docs/VALIDATION",
        "docs/EXPERIMENTS",
        "baselines/README",
        "results/README",
        "studies/README",
    ),
    "Reference": (
        "docs/SETTINGS",
        "docs/CI",
        "docs/GPU",
        "docs/dashboard",
        "docs/API",
        "rocmforge/demo/README",
        "CHANGELOG",
    ),
}
"""Headings of the navigation and their pages, in the order of a reader's questions."""

project = "ROCmForge"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
root_doc = "README"
include_patterns = [f"{page}.md" for pages in NAVIGATION.values() for page in pages]
include_patterns.append("README.md")
exclude_patterns = [".*", "build", "tests", "tools"]
default_role = "py:obj"
highlight_language = "text"

myst_heading_anchors = 4
myst_enable_extensions = ["html_image"]

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
napoleon_google_docstring = False
python_maximum_signature_line_length = 80

html_theme = "furo"
html_title = project
html_static_path = ["static"]
html_css_files = ["site.css"]
html_js_files = ["site.js"]
html_additional_pages = {"index": "start.html"}
html_copy_source = False
html_show_copyright = False
html_show_search_summary = False  # it asks for pages, which a browser refuses for files
html_show_sphinx = False
templates_path = ["templates"]


def navigation() -> str:
    """Return the lists of pages that the theme shows beside each page."""
    lists = (
        "\n".join(["```{toctree}", ":hidden:", f":caption: {heading}", "", *pages, "```"])
        for heading, pages in NAVIGATION.items()
    )
    return "\n\n".join(lists)


def adapt(_app: Any, page: str, source: list[str]) -> None:
    """Add the navigation to the first page; send readers of CONTRIBUTING to the pages of its parts.

    The text of these parts is on pages of their own, which include it from CONTRIBUTING.md.
    """
    if page == root_doc:
        source[0] += f"\n{navigation()}\n"
    if page == "CONTRIBUTING":
        for path in sorted((REPO / "docs" / "adding").glob("*.md")):
            text = path.read_text("utf-8")
            part = re.search(r'include\} \.\./\.\./CONTRIBUTING\.md\n:start-after: "(.*)"', text)
            if part:
                pattern = rf"^({re.escape(part[1])}\n).*?(?=^## |\Z)"
                article, _, what = part[1].removeprefix("## Adding ").partition(" ")
                link = f"{article} [{what}](docs/adding/{path.name})"
                where = rf"\1The steps are on the page of {link}.\n\n"
                source[0] = re.sub(pattern, where, source[0], flags=re.S | re.M)


def setup(app: Any) -> None:
    """Register `adapt`."""
    app.connect("source-read", adapt)
