"""INV-69: the check asked the common rule where SGLang's foresight asks for more (core/schedule/foresight.py)."""

from ppsim.fuzz.experiment import Experiment, run_experiment

RAW = {
    "cluster": {"pp_size": 1},
    "cost": {"source": "unit", "unit_ms": 1.0},
    "name": "fuzz",
    "run": {
        "invariants": True,
        "max_iterations": 3000,
        "max_retractions": 20,
        "max_wait_iterations": 172,
        "max_wait_ms": 15942.0,
    },
    "scheduler": {
        "chunked_prefill_size": -1,
        "context_length": 256,
        "disable_radix_cache": True,
        "max_running_requests": 16,
        "max_total_tokens": 51,
        "pp_max_micro_batch_size": 4,
    },
    "workload": {
        "block_tokens": 16,
        "requests": [
            {"ignore_eos": True, "prompt": 1, "rid": "R0"},
            {"ignore_eos": True, "output": 23, "prompt": 1, "rid": "R2"},
        ],
        "source": "requests",
    },
}


def test_foresight_may_close_a_slot() -> None:
    outcome = run_experiment(Experiment(RAW, ()))
    assert outcome.verdict.kind == "pass", outcome.verdict.message
