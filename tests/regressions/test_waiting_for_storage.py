"""INV-69: found by the fuzzer and shrunk; kept so that it cannot come back."""

from ppsim.fuzz.experiment import Experiment, run_experiment, tape_of

RAW = {
    "chance": {"max_arrival_delay": 20},
    "cluster": {"pp_size": 3},
    "cost": {"source": "unit", "unit_ms": 1.0},
    "hicache": {"enabled": True, "host_tokens": 32, "storage": True},
    "name": "fuzz",
    "observations": {"max_delay": 6},
    "run": {"invariants": True, "max_iterations": 3000, "max_wait_iterations": 368},
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
        "requests": [{"at_iteration": 19, "prompt": 2, "rid": "R0"}, {"at_iteration": 13, "prompt": 49, "rid": "R1"}],
        "source": "requests",
    },
}
TAPE = tape_of("7 9 0x49 6 3")


def test_who_waits_for_storage_is_not_passed_over_holds_with_the_right_protocol() -> None:
    outcome = run_experiment(Experiment(RAW, TAPE))
    assert outcome.verdict.kind == "pass", outcome.verdict.message
