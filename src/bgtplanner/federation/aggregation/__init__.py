"""Secure aggregation: the server learns the sum of the clients' integers, and no single one.

Bonawitz et al. 2017 in its form against an active server, on the ring of neighbours of Bell et al.
2020. `docs/proofs/aggregation.md` has the statement and its proof. What happens in a round:

======  =====================================  =============================================
step    a client                               the server sends on
======  =====================================  =============================================
keys    signs fresh keys                       to each client the keys of its neighbours
shares  shares its two secrets among them      to each client the shares meant for it
upload  masks its integers, says with whom     to the witnesses: who has uploaded
sign    (witnesses) signs who has uploaded     to all of those: the signatures
open    reveals one share per neighbour        nothing: it has the sum
======  =====================================  =============================================

Client and server are state machines that take and give bytes; whoever uses them carries the bytes.
"""
