"""The whole executor with its stages on CUDA: the Triton kernel inside the model, hidden states through host memory."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="the executor extra is not installed")

from executor.launch import execute  # noqa: E402
from tests.executor.test_tokens import PLAIN, assert_parity, expected_tokens, scenario_of  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize("architecture", ["llama", "qwen3"])
def test_stages_on_cuda_give_the_tokens_of_the_unsplit_model_on_the_cpu(architecture: str) -> None:
    scenario = scenario_of(architecture, 2, 1, **PLAIN)
    real = execute(scenario, device="cuda")
    assert real.verdict.kind == "pass", real.verdict.message
    assert real.tokens == expected_tokens(architecture)
    assert all(span.end_ns > span.start_ns for spans in real.recording.spans for span in spans)
    assert_parity(scenario, real)
