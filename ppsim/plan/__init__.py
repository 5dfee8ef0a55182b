"""Plan before you buy: published figures beside ours, tuning, pipeline against tensor and context parallelism."""
