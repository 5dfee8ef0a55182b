"""BokehJS, the library that draws the page's charts: the files that the Python package ``bokeh`` ships.

Rule: they are read and put into the page as they are. Nothing of Bokeh's Python side is imported or run, so no number
that it draws, no random name and no date gets into a page.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from ppsim.errors import UsageError

FILES = ("bokeh.min.js", "bokeh-api.min.js")
MISSING = "a page needs the package bokeh, whose charts it carries: pip install 'ppsim[report]', or pip install bokeh"


class Library(NamedTuple):
    """Scripts in the order in which a page has to run them."""

    version: str
    scripts: tuple[str, ...]


def library() -> Library:
    """Raises UsageError where bokeh is not installed, or is not as expected."""
    spec = find_spec("bokeh")
    if spec is None or spec.origin is None:
        raise UsageError(MISSING)
    folder = Path(spec.origin).parent / "server" / "static" / "js"
    try:
        found = version("bokeh")
        scripts = tuple((folder / name).read_text(encoding="utf-8") for name in FILES)
    except (OSError, PackageNotFoundError) as error:
        raise UsageError(f"bokeh is installed without its scripts ({error}): install it again; {MISSING}") from None
    if int(found.partition(".")[0]) != 3:
        raise UsageError(f"bokeh {found} is installed, and pages are made with bokeh 3: pip install 'ppsim[report]'")
    for name, script in zip(FILES, scripts):
        if "</script" in script.lower() or "<!--" in script:
            raise UsageError(f"bokeh {found}: {name} cannot be put into a page: it has the end of a script in it")
    return Library(found, scripts)
