"""INV-69: found by the fuzzer and shrunk; kept so that it cannot come back.

A request is admitted to a mixed batch, and the decode rows of that batch take two pages more: what admission has seen
was enough for it, and it needs no page after its first.
"""

from ppsim.fuzz.experiment import Experiment, run_experiment

RAW = {
    "name": "fuzz",
    "cluster": {"pp_size": 3},
    "scheduler": {
        "chunked_prefill_size": 16,
        "enable_mixed_chunk": True,
        "max_running_requests": 16,
        "pp_max_micro_batch_size": 4,
        "max_total_tokens": 32,
        "page_size": 4,
        "context_length": 256,
        "clip_max_new_tokens": 1,
    },
    "cost": {"source": "unit", "unit_ms": 1.0},
    "workload": {
        "source": "requests",
        "block_tokens": 16,
        "requests": [
            {"rid": "R0", "at_iteration": 1, "prompt": 4, "output": 2},
            {"rid": "R1", "at_iteration": 1, "prompt": 1},
            {"rid": "R2", "at_iteration": 0, "prompt": 1, "output": 2},
            {"rid": "R0x", "at_iteration": 1, "prompt": 4, "output": 2},
            {"rid": "R1x", "at_iteration": 1, "prompt": 1},
            {"rid": "R2x", "at_iteration": 1, "prompt": 1},
            {"rid": "R0xx", "at_iteration": 1, "prompt": 2},
        ],
    },
    "run": {"invariants": True, "max_iterations": 3000, "max_wait_iterations": 288},
}


def test_a_request_beside_decodes_that_begin_a_page_holds_with_the_right_protocol() -> None:
    outcome = run_experiment(Experiment(RAW))
    assert outcome.verdict.kind == "pass", outcome.verdict.message
