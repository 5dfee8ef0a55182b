"""A sheet on which panels lie at whole pixels, and how it becomes a file.

Rule: a picture is a function of the recording. Panels have a size in pixels and not "what is left over", so an image
drawn into one is shown pixel by pixel, with nothing resampled; the user's own matplotlib settings are left out; no
date, version or random name gets into the file. Same run, same bytes, in PNG, SVG and PDF.

Text of the user (names of runs, request ids) is shown as it is: a dollar sign does not begin a formula.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ppsim.errors import UsageError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DPI = 130
FORMATS = (".png", ".svg", ".pdf")
GREY = "#6f6a5e"
FAILED = "#c1121f"
LEFT, WIDTH, RIGHT = 120, 1240, 230  # pixels: names of lanes, time, legend
SHEET = LEFT + WIDTH + RIGHT
TITLE, LINE, GAP = 46, 20, 14  # heights in pixels: of the title, of a line of small text, between panels
LINE_LETTERS = 185  # letters of small text in the width of a sheet
GLYPH = re.compile(r"Glyph (\d+) ")  # how matplotlib's warning of a letter without a shape begins
MAX_PIXELS = 60_000  # of a side; the renderer ends at 2**16


class LettersLeftOut(UserWarning):
    """A name has letters that no picture can show."""


@contextmanager
def plain_style() -> Iterator[None]:
    """matplotlib as it ships, whatever the user's matplotlibrc says, and names in SVG files that repeat."""
    import matplotlib

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams["svg.hashsalt"] = "ppsim"
        matplotlib.rcParams["pdf.compression"] = 6
        matplotlib.rcParams["text.parse_math"] = False
        yield


def checked_path(path: Path) -> Path:
    """The path if its ending names a format. Raises UsageError."""
    if path.suffix.lower() not in FORMATS:
        ending = f"the format {path.suffix} is not supported" if path.suffix else "the name has no ending"
        raise UsageError(f"-o {path}: {ending}; a picture is one of {', '.join(FORMATS)}")
    return path


def is_vector(path: Path) -> bool:
    """Whether the picture may be enlarged later without end."""
    return path.suffix.lower() != ".png"


def stable_metadata(path: Path) -> dict[str, Any]:
    """No dates and versions in the file: the same run gives the same picture."""
    known = {".png": {"Software": None}, ".svg": {"Date": None}, ".pdf": {"CreationDate": None, "Producer": None}}
    return known.get(path.suffix.lower(), {})


def encoded(figure: Figure, path: Path) -> bytes:
    """The file that a picture becomes; the ending of ``path`` says which format. Raises UsageError."""
    checked_path(path)
    out = BytesIO()
    with told_once():
        figure.savefig(out, format=path.suffix.lower()[1:], dpi=DPI, metadata=stable_metadata(path))
    return out.getvalue()


@contextmanager
def told_once() -> Iterator[None]:
    """Letters that the font lacks become one sentence (a warning of Python), where matplotlib has one for each."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    lacks: dict[str, None] = {}
    for warning in caught:
        found = GLYPH.match(str(warning.message))
        if found is None:
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
        else:
            lacks[chr(int(found[1]))] = None
    if lacks:
        warnings.warn(f"the font of pictures has no {' '.join(lacks)}: a box stands for each", LettersLeftOut, 2)


def write(path: Path, content: bytes) -> None:
    """Raises UsageError where the place cannot be written."""
    try:
        path.write_bytes(content)
    except OSError as error:
        raise UsageError(f"-o {path}: cannot be written: {error.strerror or error}") from None


class Block(NamedTuple):
    """A horizontal part of a sheet: its height in pixels, and how it is drawn from a top pixel on."""

    height: int
    draw: Callable[[Figure, int], object]


def sheet(blocks: Sequence[Block]) -> Figure:
    """Blocks below each other on a sheet of ``SHEET`` pixels in width. Raises UsageError beyond what can be drawn."""
    from matplotlib.figure import Figure

    height = sum(block.height for block in blocks)
    if height > MAX_PIXELS:
        raise UsageError(f"a picture of {height} pixels in height cannot be drawn, {MAX_PIXELS} can")
    figure = Figure(figsize=(SHEET / DPI, height / DPI), dpi=DPI)
    top = 0
    for block in blocks:
        block.draw(figure, top)
        top += block.height
    return figure


def heading(title: str, red: Sequence[str] = (), small: Sequence[str] = ()) -> Block:
    """The title, below it sentences that must be seen, and sentences that may be read."""
    lines = [(line, 9.0, FAILED) for line in wrapped(red, LINE_LETTERS - 20)]
    lines += [(line, 8.0, GREY) for line in wrapped(small, LINE_LETTERS)]

    def draw(figure: Figure, top: int) -> None:
        put_words(figure, 12, top + 10, title)
        for i, (line, size, colour) in enumerate(lines):
            put_words(figure, 12, top + TITLE + LINE * i - 8, line, size=size, colour=colour)

    return Block(TITLE + LINE * len(lines), draw)


def add_panel(figure: Figure, left: int, top: int, width: int, height: int) -> Axes:
    """A panel whose upper left pixel is (left, top); its coordinates are pixels from there, downwards."""
    sheet_width, sheet_height = (round(inches * DPI) for inches in figure.get_size_inches())
    place = (
        left / sheet_width,
        (sheet_height - top - height) / sheet_height,
        width / sheet_width,
        height / sheet_height,
    )
    axes = figure.add_axes(place)
    axes.set_xlim(0, width)
    axes.set_ylim(height, 0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_position(("outward", 2))  # a line through the edge would hide a row of pixels
    return axes


def put_words(figure: Figure, left: int, top: int, words: str, *, size: float = 11, colour: str = "black") -> None:
    """Text whose upper left corner is at that pixel."""
    width, height = (round(inches * DPI) for inches in figure.get_size_inches())
    figure.text(left / width, 1 - top / height, words, fontsize=size, color=colour, ha="left", va="top")


def wrapped(sentences: Sequence[str], num_letters: int) -> list[str]:
    """Sentences cut into lines of a picture."""
    from textwrap import wrap

    return [line for sentence in sentences for line in wrap(sentence, num_letters, break_on_hyphens=False)]
