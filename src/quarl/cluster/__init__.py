"""Several machines as one, by Ray: raylets that are started here, and what talks to those of others."""
