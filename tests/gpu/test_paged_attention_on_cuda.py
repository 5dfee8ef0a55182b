"""The Triton kernel on a real device."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the executor extra is not installed")

from tests.executor.kernel_cases import largest_difference  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-5), (torch.bfloat16, 3e-2)])
def test_the_kernel_equals_the_reference_on_cuda(dtype: Any, bound: float) -> None:
    assert largest_difference(torch.device("cuda"), dtype) < bound
