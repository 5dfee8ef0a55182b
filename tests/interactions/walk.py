"""What the real objects hold, found by walking them: the other side of every comparison with a naive model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from ppsim.core.memory.node import Node
from ppsim.core.memory.pool import Pool
from ppsim.core.memory.prefix import RadixCache
from ppsim.core.schedule.request import Request
from ppsim.core.tokens import unpack


def nodes(tree: RadixCache) -> Iterator[tuple[Node, tuple[int, ...]]]:
    """Every node but the root, with the tokens of its whole path."""
    stack = [(child, tuple(unpack(child.key))) for child in tree.root.children.values()]
    while stack:
        node, path = stack.pop()
        yield node, path
        stack += [(child, path + tuple(unpack(child.key))) for child in node.children.values()]


def picture(tree: RadixCache) -> list[tuple[int, tuple[int, ...], bool]]:
    """(start, path, locked) of every node, sorted, as ``NaiveTree.picture``."""
    page = tree.pool.page_size
    return sorted((len(path) - len(node.pages) * page, path, node.lock_ref > 0) for node, path in nodes(tree))


def holders(tree: RadixCache, requests: Iterable[Request]) -> Counter[int]:
    """How many hold each page: the node that owns it, and every request that has it in its row."""
    count: Counter[int] = Counter()
    for node, _ in nodes(tree):
        count.update(node.pages)
    for request in requests:
        count.update(request.pages)
    return count


def ownership_problem(pool: Pool, tree: RadixCache, requests: Iterable[Request]) -> str:
    """Empty if the pool's reference counts are exactly what walking finds, and no page is lost or doubled."""
    count = holders(tree, requests)
    for page in range(1, pool.num_pages + 1):
        if pool.refs(page) != count.get(page, 0):
            return f"page {page}: the pool counts {pool.refs(page)} holders, walking finds {count[page]}"
    if len(count) + pool.num_free_pages != pool.num_pages:
        return f"{len(count)} held + {pool.num_free_pages} free pages of {pool.num_pages}"
    sizes = [(len(node.pages) * pool.page_size, node.lock_ref > 0) for node, _ in nodes(tree)]
    evictable = sum(size for size, locked in sizes if not locked)
    protected = sum(size for size, locked in sizes if locked)
    if (tree.evictable_tokens, tree.protected_tokens) != (evictable, protected):
        return (
            f"the tree counts {tree.evictable_tokens} evictable and {tree.protected_tokens} protected tokens, "
            f"walking finds {evictable} and {protected}"
        )
    return ""
