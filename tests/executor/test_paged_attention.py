"""The Triton kernel without a GPU: its arithmetic in Triton's interpreter, its compilation down to machine code."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="the executor extra is not installed")
triton = pytest.importorskip("triton", reason="triton is only available on Linux")

from executor.kernels.reference import paged_attention_reference  # noqa: E402
from tests.executor.kernel_cases import cases  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
CPU = torch.device("cpu")


def test_the_reference_equals_dense_attention_over_a_contiguous_cache() -> None:
    """By the formula: softmax over positions 0..p of q.k * scaling, in float64, one query and one head at a time."""
    for query, keys, values, packed in cases(CPU, torch.float32):
        got = paged_attention_reference(query, keys, values, packed, 0.3)
        group = query.shape[1] // keys.shape[2]
        row = 0
        for piece, (prefix, new) in enumerate(zip(packed.prefix_lens, packed.new_lens)):
            cells = [
                (int(packed.block_table[piece, at // packed.page_size]), at % packed.page_size)
                for at in range(prefix + new)
            ]
            key = torch.stack([keys[cell] for cell in cells]).double()
            value = torch.stack([values[cell] for cell in cells]).double()
            for position in (prefix, prefix + new - 1):  # first and last query of the piece
                for head in range(query.shape[1]):
                    seen = slice(0, position + 1)
                    q = query[row + position - prefix, head].double()
                    weight = (key[seen, head // group] @ q * 0.3).softmax(0)
                    want = weight @ value[seen, head // group]
                    torch.testing.assert_close(got[row + position - prefix, head].double(), want, rtol=1e-5, atol=1e-5)
            row += new


def test_the_kernel_equals_the_reference_in_the_interpreter() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.executor.kernel_cases"],
        cwd=ROOT,
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 2e-6


@pytest.mark.parametrize(("dtype", "head_dim"), [("bf16", 128), ("fp32", 32)])
def test_the_kernel_compiles_to_machine_code_for_hopper(dtype: str, head_dim: int) -> None:
    from triton.backends.compiler import GPUTarget  # type: ignore[import-untyped]
    from triton.compiler import ASTSource  # type: ignore[import-untyped]

    from executor.kernels.paged_attention import paged_attention_kernel

    constants = {
        "NUM_HEADS": 8,
        "NUM_KV_HEADS": 2,
        "HEAD_DIM": head_dim,
        "PAGE_SIZE": 16,
        "BLOCK_Q": 4,
        "BLOCK_ROWS": 16,
        "BLOCK_KV": 32,
        "BLOCK_D": head_dim,
    }
    types = dict.fromkeys(("query", "keys", "values", "out"), f"*{dtype}")
    types |= dict.fromkeys(("starts", "prefixes", "block_table"), "*i32")
    types |= {"scale_log2": "fp32", "max_pages": "i32"} | dict.fromkeys(constants, "constexpr")
    target = GPUTarget("cuda", 90, 32)
    compiled = triton.compile(ASTSource(paged_attention_kernel, types, constants), target=target)
    assert len(compiled.asm["cubin"]) > 1000


def test_the_launcher_refuses_what_the_kernel_does_not_assume() -> None:
    from executor.kernels.paged_attention import paged_attention

    query, keys, values, packed = next(iter(cases(CPU, torch.float32)))
    with pytest.raises(AssertionError, match="2 query rows for 1 tokens"):
        paged_attention(query.repeat(2, 1, 1), keys, values, packed, 1.0)
    with pytest.raises(AssertionError, match="bfloat16"):
        paged_attention(query, keys.bfloat16(), values.bfloat16(), packed, 1.0)
    with pytest.raises(AssertionError, match="computed offsets"):
        paged_attention(query, keys.transpose(0, 2).contiguous().transpose(0, 2), values, packed, 1.0)
    with pytest.raises(AssertionError, match="3 KV heads do not divide 4 heads"):
        paged_attention(query, keys[:, :, :3].contiguous(), values[:, :, :3].contiguous(), packed, 1.0)
