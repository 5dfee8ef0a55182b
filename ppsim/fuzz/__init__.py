"""The adversary: generated experiments, shrinking, reproductions, exploration of every interleaving.

In the library this package is called like the function of its name: ``ppsim.fuzz(policy=...)`` (``ppsim/__init__.py``).
"""
