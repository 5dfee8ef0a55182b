"""The replicated scheduler. Pure: it touches no clock, socket, device, file or random number.

Every pipeline rank runs the same code. A rank is a generator that *yields effects* (``effects.py``) and is resumed
with the reply; a world (``ppsim.world`` or ``executor``) gives the replies. Nothing here imports anything but this
package and a harmless part of the standard library (the import table of docs/design.md).
"""
