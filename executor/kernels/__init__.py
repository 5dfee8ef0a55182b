"""One Triton kernel a file, with its launcher and preconditions; ``reference.py`` is the same in plain torch."""
