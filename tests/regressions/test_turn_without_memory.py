"""INV-69: found by the fuzzer and shrunk; kept so that it cannot come back."""

from ppsim.fuzz.experiment import Experiment, run_experiment, tape_of

RAW = {
    "chance": {"max_failed_allocations": 3},
    "cluster": {"pp_size": 1},
    "cost": {"source": "unit", "unit_ms": 1.0},
    "name": "fuzz",
    "run": {"invariants": True, "max_iterations": 3000, "max_wait_iterations": 96},
    "scheduler": {
        "chunked_prefill_size": 16,
        "context_length": 256,
        "max_consecutive_chunks": 2,
        "max_running_requests": 16,
        "max_total_tokens": 400,
        "pp_max_micro_batch_size": 4,
    },
    "workload": {
        "block_tokens": 16,
        "requests": [{"at_iteration": 0, "prompt": 49, "rid": "R1"}, {"at_iteration": 0, "prompt": 1, "rid": "R2x"}],
        "source": "requests",
    },
}
TAPE = tape_of("0 1")


def test_a_turn_without_memory_was_a_turn_holds_with_the_right_protocol() -> None:
    outcome = run_experiment(Experiment(RAW, TAPE))
    assert outcome.verdict.kind == "pass", outcome.verdict.message
