"""Published figures and open questions, each answered by runs: ``ppsim paper``, ``ppsim questions``."""
