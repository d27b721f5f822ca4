"""Makes asv's pages work without a network: copies of what they load lie beside them.

`VENDORED` maps the addresses in the pages of asv 0.6.6 to the files in vendor/. An address that it
lacks is an error.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from rocmforge.errors import ResultFileError

VENDOR = Path(__file__).resolve().parent / "vendor"
FLOT = "https://cdnjs.cloudflare.com/ajax/libs/flot/0.8.3/jquery.flot"
VENDORED = {
    "https://code.jquery.com/jquery-3.3.1.min.js": "jquery.min.js",
    f"{FLOT}.min.js": "jquery.flot.js",
    f"{FLOT}.time.min.js": "jquery.flot.time.js",
    f"{FLOT}.selection.min.js": "jquery.flot.selection.js",
    f"{FLOT}.categories.min.js": "jquery.flot.categories.js",
    "https://cdn.jsdelivr.net/npm/flot-orderbars@1.0.0/js/jquery.flot.orderBars.js": (
        "jquery.flot.orderBars.js"
    ),
    "https://cdnjs.cloudflare.com/ajax/libs/stupidtable/1.0.1/stupidtable.min.js": (
        "stupidtable.min.js"
    ),
    "https://cdnjs.cloudflare.com/ajax/libs/blueimp-md5/2.19.0/js/md5.min.js": "md5.min.js",
    "https://cdn.jsdelivr.net/npm/bootstrap@3.1.1/dist/js/bootstrap.min.js": "bootstrap.min.js",
    "https://cdn.jsdelivr.net/npm/bootstrap@3.1.1/dist/css/bootstrap.min.css": "bootstrap.min.css",
}
"""Address to file name; vendor/README.md says where each file comes from."""
OWN = frozenset({"d3.min.js", "plot.umd.min.js"})
"""What our own pages draw with."""

_TAG = re.compile(
    r"""<(?:script|link|img|iframe|source)\b[^>]*?\b(?:src|href)\s*=\s*["']?"""
    r"""(?P<url>(?:https?:)?//[^"'\s>]+)[^>]*>""",
    re.I,
)
_IN_CSS = re.compile(r"""(?:url\(|@import)\s*["']?(?P<url>(?:https?:)?//[^"')\s;]+)""", re.I)


def use_vendored(pages: Path) -> None:
    """Copy the vendored files into a folder of pages and have every page load them from there.

    Parameters
    ----------
    pages
        What asv published; changed in place.

    Raises
    ------
    ResultFileError
        A page loads something from elsewhere that is not vendored; the address is named.
    """
    for page in sorted(pages.rglob("*.html")):
        text = page.read_text(encoding="utf-8")
        local = _TAG.sub(_local, text)
        if local != text:
            page.write_text(local, encoding="utf-8")
    shutil.copytree(VENDOR, pages / VENDOR.name)
    for file in sorted([*pages.rglob("*.html"), *pages.rglob("*.css")]):
        text = file.read_text(encoding="utf-8")
        left = _TAG.search(text) or _IN_CSS.search(text)
        if left:
            raise ResultFileError(
                file.name,
                "what it loads",
                got=left["url"],
                wanted=f"nothing from elsewhere: a file in {VENDOR.name}/ and its address",
            )


def _local(tag: re.Match[str]) -> str:
    """The tag for the vendored file, without the hash of the one elsewhere; unknown: as it is."""
    name = VENDORED.get(tag["url"])
    if name is None:
        return tag[0]
    source = f"{VENDOR.name}/{name}"
    if name.endswith(".css"):
        return f'<link rel="stylesheet" href="{source}">'
    return f'<script src="{source}">'
