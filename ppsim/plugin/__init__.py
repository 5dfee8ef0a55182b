"""Changes to the protocol as data: planted bugs and users' own files, loaded in one way for every world.

    declare.py   ``@planted``: a class that subclasses a part, the policy or the world is a bug, with a name and a rule
    loader.py    from names and a file to the ``Change`` that ranks are built with; what is wrong with a file is told
    watched.py   counts how often a change was asked, and holds what it answers to the type that it must have
    plans.py     small edits of the list of phases

It imports the core only, so the simulated world, the executor and the fuzzer can all use it. The project's own bugs
stand under ``ppsim/fuzz/bugs``.
"""

from ppsim.plugin.declare import Planted, bugs_in, planted
from ppsim.plugin.loader import Loaded, all_bugs, bug, load, load_plugin

__all__ = ["Loaded", "Planted", "all_bugs", "bug", "bugs_in", "load", "load_plugin", "planted"]
