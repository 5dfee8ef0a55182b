"""INV-80: the last chunk of a cut prompt was refused its memory, and it waited again while in flight; fuzzed, kept."""

from ppsim.fuzz.experiment import Experiment, run_experiment, tape_of

RAW = {
    "chance": {
        "max_arrival_delay": 20,
        "max_failed_allocations": 1,
        "max_good_allocations": 2,
        "pause_iterations": 30,
        "pause_ms": 4.0,
    },
    "cluster": {"pp_size": 3, "tp_replicas": 2, "tp_size": 2},
    "cost": {"source": "unit", "unit_ms": 1.0},
    "name": "fuzz",
    "run": {
        "invariants": True,
        "max_iterations": 3000,
        "max_retractions": 8,
        "max_wait_iterations": 132,
        "max_wait_ms": 7130.0,
    },
    "scheduler": {
        "chunked_prefill_size": 16,
        "context_length": 256,
        "max_running_requests": 16,
        "max_total_tokens": 400,
        "pp_max_micro_batch_size": 4,
    },
    "workload": {
        "block_tokens": 16,
        "requests": [{"at_iteration": 0, "prompt": 33, "rid": "R0"}],
        "source": "requests",
    },
}
TAPE = tape_of(
    "11 1 2 0 9 13 0 9 0x6 1 0x24 1x2 2x2 1 0x4 1 2x2 0x3 1x3 0x4 2x2 1x2 2 0x4 4 1 3 1 0x28 1x2 0x14 1x3 0 2 0x2 2"
)


def test_lf1_repro_inv80_0_holds_with_the_right_protocol() -> None:
    outcome = run_experiment(Experiment(RAW, TAPE))
    assert outcome.verdict.kind == "pass", outcome.verdict.message
