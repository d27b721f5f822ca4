"""A page of the dashboard in Chromium, without a window and without any way to the network."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

WAIT_MS = 15_000
READY = "() => document.body.dataset.ready === 'yes'"
DRAWN = """() => [...document.querySelectorAll('.plot')]
  .every(at => at.firstChild || !at.checkVisibility())"""


@dataclass
class Tab:
    """A page that may ask only its own server; keeps what went wrong in it."""

    page: Any
    address: str
    problems: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.page.set_default_timeout(WAIT_MS)
        self.page.route("**/*", self._only_local)
        self.page.on("pageerror", lambda error: self.problems.append(f"error {error}"))
        self.page.on(
            "console",
            lambda said: said.type in ("error", "warning") and self.problems.append(said.text),
        )
        self.page.on(
            "response",
            lambda got: got.status >= 400 and self.problems.append(f"{got.status} {got.url}"),
        )

    def _only_local(self, route: Any) -> None:
        if route.request.url.startswith((self.address, "data:")):
            route.continue_()
        else:
            self.problems.append(f"outside: {route.request.url}")
            route.abort()

    def open(self, name: str, shown: str = "body") -> Any:
        """Open a page anew, and wait until what is named is shown."""
        self.page.goto("about:blank")
        self.page.goto(self.address + name)
        self.page.wait_for_selector(shown)
        return self.page

    def drawn(self, name: str) -> Any:
        """Open a page anew that a script draws, and wait until all of it is drawn."""
        page = self.open(name)
        self.settle()
        return page

    def settle(self) -> None:
        """Wait until the page's script has drawn what the address says."""
        self.page.wait_for_function(READY)
        self.page.wait_for_function(DRAWN)
