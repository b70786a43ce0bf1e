"""Who learns with whom: the round, the server's part of it, and all clients simulated at once."""
