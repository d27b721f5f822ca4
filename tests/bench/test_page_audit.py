"""The audit of the dashboard's pages finds what is wrong, and nothing in a page that is right."""

from __future__ import annotations

import hashlib
import re
from typing import Any

import page_audit
import pytest

GOOD = """<!doctype html><html lang=en><head><title>good</title><style>
  :root { color-scheme: light dark } body { background: Canvas; color: CanvasText }
  ::placeholder { color: FieldText; opacity: 1 }
  .apart { position: absolute; clip-path: inset(50%); color: #eee }
</style></head><body><main><h1>Good</h1><p class=apart>for screen readers</p>
<svg role=img aria-label=picture width=90 height=30><text y=20 fill=currentColor>7 ms</text></svg>
<input aria-label=words placeholder=words></main></body></html>"""
CHANGES = {
    "label": ("aria-label=words placeholder=words", "", "label: input"),
    "grey": ("<h1>Good", "<h1>Good</h1><p style='color:#999;background:#fff'>faint", "2.85 of p"),
    "faint": ("<h1>Good", "<h1>Good</h1><p style='opacity:.4'>faint", "of p: faint"),
    "chart": ("fill=currentColor", "fill=#888", "of text: 7 ms"),
    "see-through": ("fill=currentColor", "fill=currentColor fill-opacity=.4", "of text: 7 ms"),
    "placeholder": ("</style>", "::placeholder{color:#8888}</style>", "of a placeholder: words"),
    "image": ("<h1>", "<h1 style='background:linear-gradient(red,blue)'>", "on an image: Good"),
    "wide": ("<h1>Good", "<h1>Good</h1><p id=far style='width:2000px'>far", "p#far"),
    "language": ("<html lang=en>", "<html>", "html-has-lang"),
}


@pytest.fixture(scope="module")
def page(chromium: Any) -> Any:
    return chromium.new_context(viewport={"width": 390, "height": 844}).new_page()


def test_the_vendored_file_is_the_one_that_the_readme_names() -> None:
    table = page_audit.AXE.with_name("README.md").read_text("utf-8")
    digest = hashlib.sha256(page_audit.AXE.read_bytes()).hexdigest()
    assert re.findall(r"`([0-9a-f]{64})`", table) == [digest]
    assert "Mozilla Public License" in page_audit.AXE.with_name("axe-core.LICENSE").read_text()


def test_nothing_is_wrong_with_a_page_that_is_right(page: Any) -> None:
    page.set_content(GOOD)
    assert page_audit.problems_of(page) == []


@pytest.mark.parametrize("change", [*CHANGES])
def test_each_fault_is_found(page: Any, change: str) -> None:
    before, after, said = CHANGES[change]
    assert before in GOOD
    page.set_content(GOOD.replace(before, after))
    found = page_audit.problems_of(page)
    assert any(said in line for line in found), found
