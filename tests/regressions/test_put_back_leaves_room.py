"""INV-69: found by the fuzzer and shrunk; kept so that it cannot come back."""

from ppsim.fuzz.experiment import Experiment, run_experiment, tape_of

RAW = {
    "chance": {"max_failed_allocations": 1, "pause_ms": 4.0},
    "cluster": {"pp_size": 1},
    "cost": {"source": "unit", "unit_ms": 1.0},
    "name": "fuzz",
    "run": {"invariants": True, "max_iterations": 3000, "max_wait_iterations": 92},
    "scheduler": {
        "chunked_prefill_size": 64,
        "context_length": 256,
        "max_running_requests": 16,
        "max_total_tokens": 400,
        "pp_max_micro_batch_size": 2,
    },
    "workload": {
        "block_tokens": 16,
        "requests": [
            {"at_iteration": 0, "prompt": 1, "rid": "R2"},
            {"at_iteration": 0, "prompt": 1, "rid": "R2x"},
            {"at_iteration": 0, "prompt": 1, "rid": "R0xx"},
        ],
        "source": "requests",
    },
}
TAPE = tape_of("0 1")


def test_who_was_put_back_is_not_shut_out_holds_with_the_right_protocol() -> None:
    outcome = run_experiment(Experiment(RAW, TAPE))
    assert outcome.verdict.kind == "pass", outcome.verdict.message
