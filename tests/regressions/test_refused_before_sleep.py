"""INV-70: found by the fuzzer and shrunk; kept so that it cannot come back."""

from ppsim.fuzz.experiment import Experiment, run_experiment, tape_of

RAW = {
    "chance": {"max_failed_allocations": 3},
    "cluster": {"pp_size": 1, "tp_replicas": 2, "tp_size": 2},
    "cost": {"source": "unit", "unit_ms": 1.0},
    "disaggregation": {
        "bootstrap_timeout_ms": 0.0,
        "decode_max_total_tokens": 39,
        "decode_pp_async_batch_depth": 2,
        "decode_pp_size": 1,
        "lease_ms": 500.0,
        "num_reserved_decode_tokens": 4,
        "receive_timeout_ms": 0.0,
        "role": "pd",
        "store_lag_us": 3000.0,
    },
    "host": {"schedule_us": 50.0},
    "links": {"latency_us": 20.0},
    "model": {"num_attention_heads": 2, "num_hidden_layers": 4, "num_key_value_heads": 2},
    "name": "fuzz",
    "run": {"invariants": True, "max_iterations": 3000},
    "scheduler": {
        "chunked_prefill_size": 64,
        "context_length": 256,
        "max_running_requests": 16,
        "max_total_tokens": 400,
        "pp_max_micro_batch_size": 4,
    },
    "workload": {"block_tokens": 16, "requests": [{"at_ms": 0.0, "prompt": 1, "rid": "R1"}], "source": "requests"},
}
TAPE = tape_of("1")


def test_memory_refused_just_before_a_sleep_is_asked_for_again_with_the_right_protocol() -> None:
    outcome = run_experiment(Experiment(RAW, TAPE))
    assert outcome.verdict.kind == "pass", outcome.verdict.message
