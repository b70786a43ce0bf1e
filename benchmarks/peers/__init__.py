"""The same work elsewhere, side by side in one run; what comes out equal is timed.

    make bench                              this and the quick half of benchmarks.speed
    python -m benchmarks.peers              a few minutes
    python -m benchmarks.peers --long       more turns; all clients of slow peers as well
    python -m benchmarks.peers --only rounds-1m

``rounds-100k``, ``rounds-1m``: the task of ``task.py`` on Flower's simulation engine, in torch
   with `vmap` over padded clients, in torch on flat arrays, and in ours, at the sizes of
   MovieLens 100K and 1M. The sum of clipped uploads before noise is compared with a plain NumPy
   loop in double precision; who differs by more than rounding is not timed. All sides are in one
   process and take turns. What Flower's engine takes grows with the number of clients; in the
   quick form it has a part of them, drawn at random, and what a client more takes is added for
   each of the others. Of ours, the part of a round is timed that is the task; a whole round,
   which also takes the server's step and solves for the users again, is named below the table.
   Target at the size of ML-1M: at least 200 and 5 times as fast as Flower's engine and the
   vmapped version. The flat version has no target; it is the fastest that we could write in
   torch.

What a peer needs and is not installed is left out, and the command says so. The tables go into
docs/benchmarks.md, the single measurements to ``build/bench/peers.json``.
"""
