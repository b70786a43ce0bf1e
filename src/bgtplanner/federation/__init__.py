"""Who learns with whom: the round, clients and server, and the simulation of all clients."""
