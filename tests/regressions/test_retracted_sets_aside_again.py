"""INV-69: the check counted the tokens to come of a retracted request, admission sets all of its output aside again."""

from ppsim.fuzz.experiment import Experiment, run_experiment

RAW = {
    "cluster": {"pp_size": 2},
    "cost": {"source": "unit", "unit_ms": 1.0},
    "name": "fuzz",
    "run": {
        "invariants": True,
        "max_iterations": 3000,
        "max_retractions": 14,
        "max_wait_iterations": 556,
        "max_wait_ms": 8392.0,
    },
    "scheduler": {
        "chunked_prefill_size": -1,
        "context_length": 256,
        "max_running_requests": 16,
        "max_total_tokens": 46,
        "pp_max_micro_batch_size": 4,
    },
    "workload": {
        "aborts": [{"at_iteration": 12, "rid": "R1"}],
        "block_tokens": 16,
        "concurrency": 2,
        "requests": [
            {"output": 16, "prompt": 2, "rid": "R1"},
            {"output": 22, "prefix_blocks": [3], "prompt": 4, "rid": "R2"},
            {"output": 17, "prefix_blocks": [3], "prompt": 10, "rid": "R0x"},
            {"prompt": 1, "rid": "R1x"},
        ],
        "source": "requests",
    },
}


def test_a_retracted_request_may_close_a_slot_for_all_of_its_output() -> None:
    outcome = run_experiment(Experiment(RAW, ()))
    assert outcome.verdict.kind == "pass", outcome.verdict.message
