"""INV-70: an abort left the first rank idle, and it waited for clients before the others had heard of the abort."""

from ppsim.fuzz.experiment import Experiment, run_experiment

RAW = {
    "cluster": {"pp_size": 3},
    "cost": {"source": "unit", "unit_ms": 1.0},
    "disaggregation": {
        "bootstrap_timeout_ms": 0.0,
        "control_latency_us": 700.0,
        "decode_max_total_tokens": 34,
        "decode_pp_size": 3,
        "lease_ms": 500.0,
        "num_reserved_decode_tokens": 4,
        "receive_timeout_ms": 0.0,
        "role": "pd",
    },
    "model": {"num_attention_heads": 1, "num_hidden_layers": 4, "num_key_value_heads": 1},
    "name": "fuzz",
    "run": {"invariants": True, "max_iterations": 3000, "max_retractions": 10, "max_wait_ms": 7256.0},
    "scheduler": {
        "chunked_prefill_size": 64,
        "context_length": 256,
        "max_running_requests": 16,
        "max_total_tokens": 400,
        "pp_max_micro_batch_size": 4,
    },
    "workload": {
        "aborts": [{"abort_all": True, "at_ms": 0.3999999999999999, "side": "prefill"}],
        "block_tokens": 16,
        "concurrency": 2,
        "requests": [{"prompt": 1, "rid": "R0"}, {"prompt": 1, "rid": "R1"}, {"prompt": 1, "rid": "R2"}],
        "source": "requests",
    },
}


def test_an_abort_reaches_all_ranks_although_the_first_is_idle() -> None:
    outcome = run_experiment(Experiment(RAW, ()))
    assert outcome.verdict.kind == "pass", outcome.verdict.message
