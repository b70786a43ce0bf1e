"""How fast, and how much memory: seven questions, most with a target, answered in one run.

    make bench                              the quick ones, and benchmarks.peers
    make bench LONG=1                       everything; most of an hour
    python -m benchmarks.speed              the quick ones: ledger, planner
    python -m benchmarks.speed --long       all seven
    python -m benchmarks.speed --only round --no-check

1. ``round``: how much faster is a FedGNN round of this package, all clients at once, than the same
   model in a loop over the clients in torch? One round is: every client's gradients, aggregation,
   the server's step, the clients' local step; no evaluation. Both sides run in one process, on the
   same CPUs, in float32, by turns; the figure is the median over the turns of the ratio of the two
   times ("at best": the ratio of the two shortest). Torch gets as many threads as suit it
   better, one or all. Before anything is timed, the clients' gradients of both sides are compared,
   and so are the parameters after a round: it is the same model or there is no figure.
   Target: at least 20 times at the size of MovieLens 100K, 15 times at that of MovieLens 1M.
2. ``memory``: what does a whole run at the size of MovieLens 1M need (605 clients of ten users,
   800 thousand ratings in training and 200 thousand held out)? The figure is the largest resident
   size of a process of its own, interpreter and libraries included. It must not grow from round to
   round; the table says how much it did after the first five.
   Target: below 2 GB.
3. ``scaling``: does a rating cost the same in a large set as in a small one? A training round at
   100 thousand, 1 million and 10 million ratings, the clients growing with the ratings (one for
   each hundred) and the items with their square root. No evaluation. The sizes are timed by turns,
   small ones over many rounds. Memory is that of a process of its own less that of one with next
   to no data, per rating.
   Target: a rating at 10 million costs at most twice what it costs at 100 thousand.
4. ``ledger``: what does it cost to reserve and settle a round in a durable ledger? Against a bare
   durable SQLite insert of a row a client; a million clients against a thousand; after thousands
   of rounds against none.
   Target: at most twice, ten times and one and a half times.
5. ``planner``: what do ask and tell of the planner cost? A thousand rounds, five levels, contexts
   of length five, a million clients in three classes of budgets; a round after 2,000 rounds that
   are all remembered against one after 1,000; and beside a training round at the size of MovieLens
   100K (as in question 1: no evaluation and no noise, the shortest round there is), the planner
   without its context, and the singular values of the usage matrix that can be its context.
   Target: at most 4.5 times; below 5 % of a training round or 0.3 ms, and below 50 %.
6. ``flower``: what does it cost to carry a round to clients that are each on their own? The same
   run in our simulation and as server and client app on Flower's simulation engine, 100 clients
   with the payload of MovieLens 100K, each with a file, a ledger and a message of its own.
   No target: most of it is the engine's.
7. ``sums``: what does secure aggregation cost, in bytes and in CPU time, for 20, 100 and 1,000
   clients? Beside plain uploads, and beside the SecAgg+ workflow that comes with Flower.
   No target.

How to read it: times are of the machine at hand and say little elsewhere; ratios carry over. Next
to every ratio stand its quartiles over the turns; when they are far apart the machine was busy and
the run should be repeated. The tables are written into docs/benchmarks.md, each with its commit
and machine, and all the single measurements to ``build/bench/speed.json``. The exit code is 1 if a
target was missed.

The data are synthetic (`bgtplanner.data.synthetic`), so that nothing has to be downloaded: same
numbers of users, items and ratings as the sets they stand for, a few busy users and items, many
quiet ones. Speed does not depend on what the ratings are.
"""
