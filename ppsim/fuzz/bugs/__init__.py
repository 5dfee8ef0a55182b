"""Planted bugs: small classes that subclass the very part they break, one or more for each rule that can be broken.

They test the tester: every rule of the protocol has a bug that breaks it and a check that names it. Each module below
holds the bugs of one kind; ``ppsim.plugin`` finds them by the name of this package. Nothing here runs unless a
scenario, ``--bug`` or a test switches it on.
"""
