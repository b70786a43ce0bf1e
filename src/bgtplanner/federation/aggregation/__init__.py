"""Secure aggregation: the server learns the sum of the clients' integers, and no single one.

Bonawitz et al. 2017 in its form against an active server, on the ring of neighbours of Bell et al.
2020; `docs/proofs/aggregation.md` has the statement, the steps and the proof. Client and server
are state machines that take and give bytes; whoever uses them carries the bytes.
"""
