"""How many tokens a text has: by a tokenizer that the user names, else by an estimate that is told.

The estimate: a token for every four bytes of UTF-8, rounded up. English prose has four to five characters a token in
the tokenizers of today's models; code and other scripts have fewer, so lengths of such texts come out too short.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ppsim.errors import ScenarioError

BYTES_PER_TOKEN = 4
ESTIMATE = (
    f"no tokenizer is named: lengths of texts are estimated, {BYTES_PER_TOKEN} bytes a token "
    "(workload.tokenizer: a tokenizer.json or its folder)"
)


def estimated(text: str) -> int:
    return -(-len(text.encode("utf-8", errors="replace")) // BYTES_PER_TOKEN)


def counter_of(tokenizer: str | None) -> Callable[[str], int]:
    """A function from text to its number of tokens, without special ones. Raises ScenarioError for a bad tokenizer."""
    if tokenizer is None:
        return estimated
    place = Path(tokenizer)
    file = place / "tokenizer.json" if place.is_dir() else place
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise ScenarioError(
            "workload.tokenizer", "needs the package tokenizers, which is not installed", "pip install tokenizers"
        ) from None
    try:
        made = Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises bare Exception
        raise ScenarioError(
            "workload.tokenizer", f"{file}: no tokenizer can be read: {error}", "name a tokenizer.json or its folder"
        ) from None
    return lambda text: len(made.encode(text, add_special_tokens=False).ids)
