"""Ranks of these tests are forked from a server that has torch and transformers loaded: a launch takes a second.

``start_method="spawn"``, the default outside tests, is exercised by ``test_launch.py``.
"""

from __future__ import annotations

import multiprocessing
from importlib.util import find_spec

if find_spec("torch") and find_spec("transformers"):
    multiprocessing.set_forkserver_preload(
        ["executor.serve", "transformers.models.llama.modeling_llama", "transformers.models.qwen3.modeling_qwen3"]
    )
