"""One driver for the command-line agents of others; each has a thin adapter in its own folder."""
