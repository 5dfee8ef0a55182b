"""The adversary: generated experiments, shrinking, reproductions, exploration of every interleaving."""
