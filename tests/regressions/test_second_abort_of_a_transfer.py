"""INV-52: found by the fuzzer and shrunk; kept so that it cannot come back."""

from ppsim.fuzz.experiment import Experiment, run_experiment, tape_of

RAW = {
    "chance": {"max_abort_delay": 12},
    "cluster": {"pp_size": 2, "tp_replicas": 2, "tp_size": 2},
    "cost": {"source": "unit", "unit_ms": 1.0},
    "disaggregation": {"num_reserved_decode_tokens": 4, "role": "decode"},
    "name": "fuzz",
    "observations": {"listed": [{"at": [0, 11, 0, 0], "rid": "R0", "what": "receive"}], "max_delay": 3},
    "run": {"invariants": True, "max_iterations": 3000, "max_wait_iterations": 1500},
    "scheduler": {
        "chunked_prefill_size": 64,
        "context_length": 256,
        "max_running_requests": 16,
        "max_total_tokens": 400,
        "pp_max_micro_batch_size": 4,
    },
    "workload": {
        "aborts": [{"at_iteration": 1, "rid": "R0"}, {"at_iteration": 2, "rid": "R0"}],
        "block_tokens": 16,
        "requests": [{"at_iteration": 0, "prompt": 1, "rid": "R0"}],
        "source": "requests",
    },
}
TAPE = tape_of("9 5 0x113 2 0x54 1 0x17")


def test_a_second_abort_of_a_transfer_holds_with_the_right_protocol() -> None:
    outcome = run_experiment(Experiment(RAW, TAPE))
    assert outcome.verdict.kind == "pass", outcome.verdict.message
