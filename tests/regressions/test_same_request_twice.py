"""INV-76: the same request came twice in one iteration; the second is refused, and nothing is due to its client."""

from ppsim.fuzz.experiment import Experiment, run_experiment

RAW = {
    "cluster": {"pp_async_batch_depth": 1, "pp_size": 1},
    "cost": {"source": "unit", "unit_ms": 1.0},
    "faults": {"pauses": [{"at_iteration": 2, "ms": 4.0, "rank": 0}]},
    "model": {"num_attention_heads": 1, "num_hidden_layers": 4, "num_key_value_heads": 1},
    "name": "fuzz",
    "run": {"invariants": True, "max_iterations": 3000, "max_retractions": 20, "max_wait_ms": 11180.0},
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
            {"at_ms": 0.7, "prefix_blocks": [1], "prompt": 1, "rid": "R0x", "stop_after": 3},
            {"at_ms": 0.0, "prompt": 1, "rid": "R2x"},
            {"at_ms": 1.4, "prefix_blocks": [1], "prompt": 1, "rid": "R0x", "stop_after": 3},
        ],
        "source": "requests",
    },
}


def test_of_a_request_that_comes_twice_one_is_told_its_tokens() -> None:
    outcome = run_experiment(Experiment(RAW, ()))
    assert outcome.verdict.kind == "pass", outcome.verdict.message
