"""How hard the property tests of this folder look: PPSIM_EXAMPLES multiplies the number of examples."""

from __future__ import annotations

import os

FACTOR = int(os.environ.get("PPSIM_EXAMPLES", "1"))


def num_examples(ordinary: int) -> int:
    return ordinary * FACTOR
