"""How fast, and how much memory: three questions with targets, answered in one run.

    make bench                              the quick ones, and benchmarks.peers
    make bench LONG=1                       everything; most of an hour, with regret
    python -m benchmarks.speed              the quick ones: ledger, planner
    python -m benchmarks.speed --long       all three
    python -m benchmarks.speed --only memory --no-check

1. ``memory``: what does a whole run at the size of MovieLens 1M need (605 clients of ten users,
   800 thousand ratings in training and 200 thousand held out)? The figure is the largest resident
   size of a process of its own, interpreter and libraries included. It must not grow from round to
   round; the table says how much it did after the first five.
   Target: below 2 GB.
2. ``ledger``: what does it cost to reserve and settle a round in a durable ledger? Against a bare
   durable SQLite insert of a row a client; a million clients against a thousand; after thousands
   of rounds against none.
   Target: at most twice, ten times and one and a half times.
3. ``planner``: what do ask and tell of the planner cost? A thousand rounds, five levels, contexts
   of length five, a million clients in three classes of budgets; a round after 2,000 rounds that
   are all remembered against one after 1,000; and beside a training round at the size of MovieLens
   100K (no evaluation and no noise, the shortest round there is), the planner
   without its context, and the singular values of the usage matrix that can be its context.
   Target: at most 4.5 times; below 5 % of a training round or 0.3 ms, and below 50 %.

How to read it: times are of the machine at hand and say little elsewhere; ratios carry over. Next
to every ratio stand its quartiles over the turns; when they are far apart the machine was busy and
the run should be repeated. The tables are written into docs/benchmarks.md, each with its commit
and machine, and all the single measurements to ``build/bench/speed.json``. The exit code is 1 if a
target was missed.

The data are synthetic (`bgtplanner.data.synthetic`), so that nothing has to be downloaded: same
numbers of users, items and ratings as the sets they stand for, a few busy users and items, many
quiet ones. Speed does not depend on what the ratings are.
"""
