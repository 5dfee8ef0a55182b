"""Options and profiles of this folder.

``--rewrite-scripts`` writes the output of every script anew; commit only what you understand.
``--hypothesis-profile=generate`` looks for a failure without shrinking it (for checks that a test goes red).
"""

from __future__ import annotations

import pytest
from hypothesis import Phase, settings

settings.register_profile("generate", phases=(Phase.generate,), database=None)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite-scripts", action="store_true", help="write the expected output of tests/interactions/scripts anew"
    )
