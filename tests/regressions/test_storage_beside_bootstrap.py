"""INV-69: found by the fuzzer and shrunk; kept so that it cannot come back."""

from ppsim.fuzz.experiment import Experiment, run_experiment, tape_of

RAW = {
    "cluster": {"pp_size": 2},
    "cost": {"source": "unit", "unit_ms": 1.0},
    "disaggregation": {"num_reserved_decode_tokens": 4, "role": "prefill"},
    "hicache": {"enabled": True, "host_tokens": [271, 261], "storage": True},
    "name": "fuzz",
    "run": {"invariants": True, "max_iterations": 3000, "max_wait_iterations": 324},
    "scheduler": {
        "chunked_prefill_size": 64,
        "context_length": 256,
        "max_running_requests": 1,
        "max_total_tokens": 400,
        "pp_max_micro_batch_size": 4,
    },
    "workload": {
        "block_tokens": 16,
        "requests": [
            {"at_iteration": 0, "prompt": 2, "rid": "R0"},
            {"at_iteration": 1, "prompt": 1, "rid": "R1"},
            {"at_iteration": 0, "prompt": 2, "rid": "R0x"},
        ],
        "source": "requests",
    },
}
TAPE = tape_of("")


def test_storage_answers_while_others_bootstrap_holds_with_the_right_protocol() -> None:
    outcome = run_experiment(Experiment(RAW, TAPE))
    assert outcome.verdict.kind == "pass", outcome.verdict.message


def test_a_slow_storage_answers_after_its_latency_although_iterations_take_no_time() -> None:
    slow = {"enabled": True, "host_tokens": [271, 261], "storage": True, "storage_latency_us": 500_000.0}
    raw = {**RAW, "hicache": slow}
    outcome = run_experiment(Experiment(raw, TAPE))
    assert outcome.result is not None
    ended_ns = {reply.rid: reply.time_ns for reply in outcome.result.recording.replies}
    two_stages_ns, report_ns = 2_000_000, 1  # what another rank found is known an instant after its end
    assert ended_ns["R0"] == 500_000_000 + report_ns + two_stages_ns
    assert ended_ns["R0x"] == 2 * 500_000_000 + report_ns + two_stages_ns  # looked up when R0 has left its place
