"""Two servers in one world: their sides, what they know of a request, the transfers between them, their ranks."""
