"""The rivals in benchmarks/ keep the learners' contract."""

from __future__ import annotations

from benchmarks.rivals.als import Als

from bgtplanner.testing import LearnerContract


class TestRankingContract(LearnerContract):
    learner, optimizer = Als(task="ranking", dim=2), "posterior"


class TestPublishedContract(LearnerContract):
    learner, optimizer = Als(task="ratings", dim=2, gramian="items", adaptive=0.3), "posterior"
