"""INV-07: found by the fuzzer and shrunk; kept so that it cannot come back."""

from ppsim.fuzz.experiment import Experiment, run_experiment, tape_of

RAW = {
    "cluster": {"pp_size": 3, "tp_replicas": 2, "tp_size": 2},
    "cost": {"source": "unit", "unit_ms": 1.0},
    "name": "fuzz",
    "run": {"invariants": True, "max_iterations": 3000, "max_wait_iterations": 1612},
    "scheduler": {
        "chunked_prefill_size": 64,
        "context_length": 256,
        "max_running_requests": 16,
        "max_total_tokens": 400,
        "pp_max_micro_batch_size": 4,
    },
    "workload": {
        "block_tokens": 16,
        "requests": [{"at_iteration": 0, "prompt": 1, "rid": "R1x"}],
        "source": "requests",
    },
}
TAPE = tape_of("1 0x3 1 0x13 1x2 0 2x3 1 2x2 0 2 1x2 2 0x5 2")


def test_a_replica_behind_its_leader_holds_with_the_right_protocol() -> None:
    outcome = run_experiment(Experiment(RAW, TAPE))
    assert outcome.verdict.kind == "pass", outcome.verdict.message
