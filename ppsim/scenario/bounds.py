"""The types of the keys of a scenario, each with the least and the most that a value may be."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

MAX_COUNT = 2**31 - 1
MAX_TOKENS = 2**24  # of one request: more than any context, little enough to hold in memory
MAX_ITERATION = 100_000  # in which something may be planned: so many iterations of nothing take a minute
MAX_DELAY = 10_000  # iterations that a fact may be late; twice as many without a batch count as a livelock
MAX_STAGES, MAX_RANKS = 1024, 4096  # of a pipeline; with their replicas
MAX_ROWS = 100_000  # requests that run at once: each has a row in the table of each rank
MAX_REQUESTS = 200_000  # where all of them are made before a run begins
MAX_AMOUNT = 1e12  # in ms 31 years, in us 11 days, in GB/s more than any wire

Positive = Annotated[int, Field(gt=0, le=MAX_COUNT)]
NonNegative = Annotated[int, Field(ge=0, le=MAX_COUNT)]
Tokens = Annotated[int, Field(gt=0, le=MAX_TOKENS)]
Size = Annotated[int, Field(gt=0, le=2**24)]  # of a tensor's dimension
Stages = Annotated[int, Field(gt=0, le=MAX_STAGES)]
Rows = Annotated[int, Field(gt=0, le=MAX_ROWS)]
Iteration = Annotated[int, Field(ge=0, le=MAX_ITERATION)]
Delay = Annotated[int, Field(ge=0, le=MAX_DELAY)]
Cost = Annotated[float, Field(ge=0, le=MAX_AMOUNT, allow_inf_nan=False)]
Fraction = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]
Figure = Annotated[float, Field(ge=1e-9, le=1e6, allow_inf_nan=False)]  # of a GPU
KvCacheType = Literal["auto", "bf16", "bfloat16", "fp16", "float16", "fp8", "fp8_e4m3", "fp8_e5m2", "fp4", "fp4_e2m1"]


def zero_or(least: float, meaning: str) -> AfterValidator:
    """0 has a meaning of its own, and nothing between 0 and the smallest amount may be rounded to it."""

    def check(value: float) -> float:
        if 0 < value < least:
            raise ValueError(f"must be 0 ({meaning}) or at least {least:g}")
        return value

    return AfterValidator(check)


LimitMs = Annotated[Cost, zero_or(1e-6, "none")]  # of time; a nanosecond is the unit of the clock
Bandwidth = Annotated[Cost, zero_or(1e-9, "infinite")]  # GB/s: a byte a second
PositiveRate = Annotated[float, Field(ge=1e-9, le=MAX_AMOUNT, allow_inf_nan=False)]
