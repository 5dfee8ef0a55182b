"""What every section of a scenario is."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """Unknown keys are refused, values are not coerced from strings, and nothing changes after loading."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
