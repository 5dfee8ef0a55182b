"""INV-78: found by the fuzzer and shrunk; kept so that it cannot come back."""

from ppsim.fuzz.experiment import Experiment, run_experiment, tape_of

RAW = {
    "chance": {"max_failed_allocations": 3},
    "cluster": {"pp_size": 1},
    "cost": {"source": "unit", "unit_ms": 1.0},
    "hicache": {"enabled": True, "host_tokens": [267], "storage": True, "storage_hits": [{"rid": "R1", "tokens": [1]}]},
    "name": "fuzz",
    "run": {"invariants": True, "max_iterations": 3000, "max_wait_iterations": 288},
    "scheduler": {
        "chunked_prefill_size": 64,
        "context_length": 256,
        "max_running_requests": 16,
        "max_total_tokens": 400,
        "pp_max_micro_batch_size": 4,
    },
    "workload": {
        "block_tokens": 16,
        "requests": [
            {"at_iteration": 0, "prefix_blocks": [0, 1], "prompt": 2, "rid": "R1"},
            {"at_iteration": 0, "output": 2, "prefix_blocks": [0, 0], "prompt": 1, "rid": "R2"},
        ],
        "source": "requests",
    },
}
TAPE = tape_of("2")


def test_a_page_loaded_for_a_request_that_was_put_back_holds_with_the_right_protocol() -> None:
    outcome = run_experiment(Experiment(RAW, TAPE))
    assert outcome.verdict.kind == "pass", outcome.verdict.message
