"""``python -m ppsim``: the command line."""

from ppsim.cli.entry import main

main()
