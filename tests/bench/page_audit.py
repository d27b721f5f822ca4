"""Looks at a page as those do who read it otherwise: axe-core, contrast of every text, a phone.

`problems_of` is for a page that is open in Chromium; it says in words what is wrong, in the page's
present state. The contrast of text, of charts too, is measured a second time by page_contrast.js,
which goes by what a text is painted in.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

AXE = Path(__file__).with_name("axe") / "axe.min.js"
CONTRAST = Path(__file__).with_name("page_contrast.js")
RULES = {
    "type": "tag",
    "values": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"],
}
COLOURS = {"type": "rule", "values": ["color-contrast", "link-in-text-block"]}
"""Of these rules those that look at colours, which alone change with the theme."""
THEMES = ("light", "dark")
WIDTHS = (1280, 390)

_AXE = """async rules => {
  const options = {runOnly: rules, resultTypes: ['violations'], preload: false}
  const found = await axe.run(document, options)
  return found.violations.flatMap(rule => rule.nodes.map(node =>
    `${rule.id}: ${node.target.join(' ')}: ${node.any.concat(node.all, node.none)
      .map(check => check.message).join('; ')}`))
}"""
_WIDER = """() => [document.documentElement.scrollWidth, document.documentElement.clientWidth,
  [...document.querySelectorAll('body *')].filter(at => {
    const box = at.getBoundingClientRect()
    for (let up = at.parentElement; up; up = up.parentElement)
      if (getComputedStyle(up).overflowX !== 'visible' && up !== document.body) return false
    return box.width > 0 && box.right > document.documentElement.clientWidth + 1
  }).slice(0, 5).map(at => at.tagName.toLowerCase() + (at.id && '#' + at.id))]"""


def axe_problems(page: Any, rules: dict[str, Any]) -> list[str]:
    """Return what axe-core finds by some of its rules."""
    if not page.evaluate("() => 'axe' in window"):
        page.evaluate(AXE.read_text("utf-8"))
    found: list[str] = page.evaluate(_AXE, rules)
    return found


def contrast_problems(page: Any) -> list[str]:
    """Return each visible text whose contrast is below AA: 4.5, of large text 3."""
    seen, found = page.evaluate(CONTRAST.read_text("utf-8"))
    assert seen > 0, "no text is visible"
    return list(found)


def width_problems(page: Any) -> list[str]:
    """Return what makes the page scroll sideways; regions that scroll by themselves may."""
    wide, room, who = page.evaluate(_WIDER)
    return [f"{wide} px wide on a screen of {room}: {', '.join(who)}"] if wide > room else []


def problems_of(page: Any) -> list[str]:
    """Return everything that is wrong with an open page, in light and in dark.

    That is what axe-core finds against WCAG 2.2 AA and its own best practices, and more.
    """
    found = width_problems(page)
    for theme in THEMES:
        page.emulate_media(color_scheme=theme, reduced_motion="reduce")
        rules = RULES if theme == THEMES[0] else COLOURS
        said = [*axe_problems(page, rules), *contrast_problems(page)]
        found += [f"{theme}: {line}" for line in said]
    return found
