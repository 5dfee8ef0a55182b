"""KV memory over time: what requests hold, what only the prefix cache holds, and what is free.

Rule: tokens as the ranks counted them at each harvest. Ranks that counted alike at every harvest share a panel. The
axis is the pool; where nearly all of it stays free it ends earlier, and the words say at which share of the pool.
"""

from __future__ import annotations

from collections.abc import Sequence

from ppsim.recording.record import Recording
from ppsim.report.canvas import LEFT, WIDTH, Block, put_words
from ppsim.report.charts import BLUE, CAPTION, GREEN, PALE, Layer, area_block, nice_top
from ppsim.report.lanes import Part, rank_name
from ppsim.report.series import highest, kv_use, maxima, means, total
from ppsim.report.window import Window

MOST = 8  # panels
LEAST = 4  # a pool so many times larger than all that is in it is not drawn to its end


def kv_blocks(parts: Sequence[Part], window: Window) -> list[Block]:
    """A panel for each group of ranks that counted alike."""
    blocks = []
    for part in parts:
        for ranks in alike(part.recording):
            blocks.append(kv_block(part, ranks, window))
    if len(blocks) <= MOST:
        return blocks
    words = f"{len(blocks) - MOST} more groups of ranks that counted otherwise are not drawn (--side: one pipeline)"
    more = Block(CAPTION, lambda figure, top: put_words(figure, LEFT, top + 6, words, size=9))
    return [*blocks[:MOST], more]


def alike(recording: Recording) -> list[list[int]]:
    """Ranks by what they counted; the first group holds rank 0."""
    groups: dict[tuple[tuple[int, int, int], ...], list[int]] = {}
    for rank, harvests in enumerate(recording.harvests):
        counted = tuple((h.iteration, h.free_tokens, h.evictable_tokens) for h in harvests)
        groups.setdefault(counted, []).append(rank)
    return [ranks for counted, ranks in groups.items() if counted]


def kv_block(part: Part, ranks: Sequence[int], window: Window) -> Block:
    """Tokens of the first of some ranks that are alike."""
    use = kv_use(part.recording, ranks[0])
    held, cached = (means(series, window, WIDTH) for series in (use.in_use, use.cached))
    peaks = maxima(total(use.in_use, use.cached), window, WIDTH)
    layers = [
        Layer("held by requests", held, BLUE),
        Layer("only cached", cached, GREEN),
        Layer("peak within a pixel", peaks - held - cached, PALE),
    ]
    names = rank_name(part, ranks[0])
    if len(ranks) > 1:
        names = f"{names} to {rank_name(Part('', part.recording), ranks[-1])}" if is_row(ranks) else f"{names}, ..."
        names += f" ({len(ranks)} ranks alike)"
    most = highest([maxima(use.in_use, window, WIDTH)])
    words = f"KV tokens of {names}: requests hold at most {most:,.0f} of a pool of {use.pool:,}"
    peak = highest([peaks])
    if peak * LEAST >= use.pool:
        return area_block(f"{words}; blank is free", layers, max(1.0, float(use.pool)), window)
    top = nice_top(peak)
    words += f"; the axis ends at {100 * top / use.pool:.2g} % of the pool, and all above it is free"
    return area_block(words, layers, top, window)


def is_row(ranks: Sequence[int]) -> bool:
    return list(ranks) == list(range(ranks[0], ranks[-1] + 1))
