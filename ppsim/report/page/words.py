"""Words of a user as text of a page.

Rule: nothing that comes from a scenario, a trace, a plug-in or a recording gets into the page but through ``text`` or
``json_text``; neither lets a character through that could end the text and begin markup.
"""

from __future__ import annotations

import json
from html import escape
from typing import Any


def text(words: object) -> str:
    """Words between tags, or within the quotes of an attribute."""
    return escape(str(words), quote=True)


def json_text(value: Any) -> str:
    """JSON inside of a script element, which ends at the first "</script", wherever that stands. ASCII only."""
    plain = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return plain.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def items(sentences: list[str]) -> str:
    """A list of sentences; nothing where there are none."""
    return "<ul>" + "".join(f"<li>{text(sentence)}</li>" for sentence in sentences) + "</ul>" if sentences else ""
