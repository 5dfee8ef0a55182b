"""What the prefix tree is made of, and what a look into it finds (prefix.py)."""

from __future__ import annotations

from dataclasses import dataclass, field

from ppsim.core.tokens import TokenBytes


@dataclass(slots=True, eq=False)
class Node:
    """``key`` and ``pages`` exclude what the parents hold; ``host_pages`` is a copy in host memory (hicache.py)."""

    node_id: int
    key: TokenBytes
    pages: list[int]
    parent: Node | None
    children: dict[bytes, Node] = field(default_factory=dict)
    lock_ref: int = 0
    last_access: int = 0
    host_pages: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Match:
    """The longest cached prefix of a key: ``num_tokens`` on ``pages``, ending at ``node``.

    With a host tier (hicache.py) ``host_tokens`` more are in host memory, ending at ``host_node``.
    """

    num_tokens: int
    pages: list[int]
    node: Node
    host_tokens: int = 0
    host_node: Node | None = None
