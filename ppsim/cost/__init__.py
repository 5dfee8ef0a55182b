"""Stage, link and chunk times: formulas and integers, no clock. Floats end here: what leaves is integer nanoseconds."""
