"""Planted bugs: small classes that override a documented hook, one for each rule that can be broken.

They test the tester: every rule of the protocol has a bug that breaks it and a check that names it. ``registry.py``
holds the catalogue; each module below holds the bugs of one kind. Nothing here runs unless a scenario, ``--bug`` or a
test switches it on.
"""

from ppsim.planted.registry import Planted, all_bugs, bug, hooks_for, load_plugin, planted

__all__ = ["Planted", "all_bugs", "bug", "hooks_for", "load_plugin", "planted"]
