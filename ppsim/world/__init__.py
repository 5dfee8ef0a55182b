"""The simulated world: virtual time, links, GPU streams, clients. The only package that imports SimPy.

A rank runs ahead on its own local clock as long as what it needs is already there, and blocks on a SimPy event only
where it is not (design decision 11). All times are integer nanoseconds.
"""

from ppsim.world.simulate import SimulationResult, simulate

__all__ = ["SimulationResult", "simulate"]
