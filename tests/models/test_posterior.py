"""The server that knows its own noise: popularity, quality, and how sure it is of them."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar

from bgtplanner.models import posterior
from bgtplanner.models.interactions import Shared
from bgtplanner.models.optimizers import NO_NOISE, Noise
from bgtplanner.models.posterior import COUNT_WEIGHT, Posterior

Float = NDArray[np.float64]
CLIP, CLIENTS, RATINGS, ITEMS = 0.1, 1000, 40, 40


@partial(jax.jit, static_argnums=2)
def weights_of(counts: Any, std: Any, norm: Any) -> tuple[jax.Array, jax.Array]:
    weight, logarithm = posterior._weights(counts, std)
    return weight, posterior._varied(counts, std, norm) * logarithm


@jax.jit
def line_of(theta: Any, popularity: Any, *rest: Any) -> tuple[jax.Array, jax.Array]:
    columns = jnp.stack([jnp.ones_like(popularity), popularity], axis=1)
    return posterior._line(theta, columns, *rest)


@partial(jax.jit, static_argnames="norm")
def after(
    known: Posterior,
    shared: Shared,
    uploads: Any,
    std: Any,
    clip: Any,
    norm: Any,
    features: Any = None,
) -> tuple[Shared, Posterior]:
    noise = Noise(std, clip, float(CLIENTS), norm)
    items, moved = known.after(shared.items[:, 0], uploads, noise, features=features)
    return Shared(items, shared.dense), moved


def nothing_known(items: int) -> tuple[Shared, Posterior]:
    shared = Shared(jnp.zeros((items, 3)), jnp.zeros(0))
    return shared, Posterior.initial(shared)


def promised(known: Posterior, precision: float, norm: Any) -> float:
    """What so much more precision is forecast to bring."""
    (found,) = known.forecast(np.array([precision]), CLIP, norm)
    return float(found)


def zipf(items: int, total: float) -> Float:
    """How often items are rated in any catalogue."""
    weight = 1.0 / (np.arange(items) + 0.02 * items + 1.0)
    return np.asarray(weight / weight.sum() * total)


def noise_of(draw: np.random.Generator, norm: str, size: Any) -> Float:
    """Of deviation 1, as the mechanism of that norm makes it."""
    return draw.laplace(scale=0.5**0.5, size=size) if norm == "l1" else draw.normal(size=size)


def single(values: Any) -> jax.Array:
    return jnp.asarray(values, jnp.float32)


class TestWeights:
    """M of each item from noisy counts, none of which can be below zero."""

    @pytest.mark.parametrize("std", [1.0, 10.0, 100.0])
    def test_the_distribution_that_makes_the_counts_likeliest(self, std: float) -> None:
        """Expectation maximisation again, with its likelihood looked at in every step."""
        counts = zipf(200, 2000.0) + std * np.random.default_rng(7).normal(size=200)
        found, logarithm = weights_of(single(counts), single(std), "l2")
        top = 1.05 * max(counts.max(), std)
        grid = np.r_[0.0, top * np.geomspace(1 / 3000, 1.0, posterior._GRID - 1)]
        density = np.exp(-0.5 * ((counts[:, None] - grid) / std) ** 2)
        mass = np.full(len(grid), 1 / len(grid))
        likelihoods = [np.log(density @ mass).sum()]
        for _ in range(posterior._EM_STEPS):
            chances = density * mass / (density @ mass)[:, None]
            mass = chances.mean(axis=0)
            likelihoods.append(np.log(density @ mass).sum())
        assert (np.diff(likelihoods) > -1e-9).all()
        assert likelihoods[-1] > likelihoods[0] + 1
        assert mass.sum() == pytest.approx(1)
        chances = density * mass / (density @ mass)[:, None]
        clear = counts > posterior._CLEAR * std
        weight = np.where(clear, counts, chances @ grid)
        logs = chances @ np.log1p(grid / weight.mean())
        logs[clear] = np.log1p(counts[clear] / weight.mean())
        ratio, doubt = counts.var() / std**2, posterior._SURE * np.sqrt(2 / len(counts))
        real = max(1 - (doubt / (ratio - 1)) ** 2, 0.0) if ratio > 1 else 0.0
        assert (real > 0.8) == (std < 100)
        np.testing.assert_allclose(found, weight, rtol=1e-2, atol=1e-3 * std)
        np.testing.assert_allclose(logarithm, real * logs, rtol=1e-2, atol=1e-3)


class TestLine:
    """Qualities of which some are hardly known and some not at all."""

    DRAW = np.random.default_rng(4)
    POPULARITY, NOISY = DRAW.normal(0, 1, 80), np.geomspace(1e-4, 1.0, 80)
    THETA = 0.02 + 0.1 * POPULARITY + DRAW.normal(0, np.sqrt(0.15**2 + NOISY))
    KNOWN = np.arange(80) % 5 > 0
    COLUMNS = np.column_stack([np.ones(80), POPULARITY])

    def least_squares(self, spread: float) -> tuple[Float, Float]:
        """Level and slope, and their variances: every item by its deviation, and the prior."""
        rows, weight = self.COLUMNS[self.KNOWN], 1 / (self.NOISY + spread)[self.KNOWN]
        inverse = np.linalg.inv((rows.T * weight) @ rows + np.eye(2) / posterior._LINE**2)
        return inverse @ (rows.T * weight) @ self.THETA[self.KNOWN], inverse.diagonal()

    def test_where_the_steps_lead_is_likeliest(self) -> None:
        """Of the spread, with the prior's items on top, and generalised least squares for it."""
        spread, parts = 0.01, [single(of) for of in (self.THETA, self.POPULARITY, self.NOISY)]
        for _ in range(30):
            found, new = line_of(*parts, single(spread), jnp.asarray(self.KNOWN))
            spread = float(new)
        line, variance = self.least_squares(spread)
        expected = line * np.maximum(1 - posterior._DOUBT * variance / line**2, 0)
        np.testing.assert_allclose(found, expected, atol=1e-4)

        def unlikely(logarithm: float) -> float:
            tried = float(np.exp(logarithm))
            best = self.least_squares(tried)[0]
            off = (self.THETA - self.COLUMNS @ best)[self.KNOWN]
            variance = (self.NOISY + tried)[self.KNOWN]
            prior = posterior._SPREAD_ITEMS * (np.log(tried) + posterior._SPREAD**2 / tried)
            fit = (np.log(variance) + off**2 / variance).sum()
            return float(fit + prior + (best**2).sum() / posterior._LINE**2)

        best = minimize_scalar(unlikely, bounds=(np.log(1e-4), 0.0), method="bounded")
        assert spread == pytest.approx(np.exp(best.x), rel=1e-2)


class World(NamedTuple):
    """Items as the server's assumptions have them."""

    weight: Float
    true: Float
    rated: Float

    @classmethod
    def drawn(cls, seed: int, items: int = 400, spread: float = 0.1) -> World:
        draw = np.random.default_rng(seed)
        size = (0.2**2 + COUNT_WEIGHT**2) ** 0.5
        weight = draw.permutation(zipf(items, CLIP / size * RATINGS**0.5))
        share = weight / weight.sum()
        popularity = np.log1p(weight / weight.mean())
        popularity -= share @ popularity
        true = 0.01 + 0.02 * popularity + spread * draw.normal(size=items)
        sampling = 0.2 / np.sqrt(share * CLIENTS * RATINGS)
        return cls(weight, true, true + sampling * draw.normal(size=items))

    def play(self, std: float, rounds: int, seed: int = 0) -> tuple[Shared, Posterior]:
        """So many rounds, whose noise is `std` in all of them taken together."""
        draw, each = np.random.default_rng([seed, 1]), std * rounds**0.5
        shared, known = nothing_known(len(self.weight))
        for _ in range(rounds):
            sent = np.asarray(shared.items[:, 0], float)
            told = [self.weight * (self.rated - sent), COUNT_WEIGHT * self.weight]
            uploads = np.stack(told, axis=1) + each * draw.normal(size=(len(sent), 2))
            shared, known = after(known, shared, single(uploads), each, CLIP, "l2")
        return shared, known

    def squared_error(self, shared: Shared) -> Float:
        return np.asarray((np.asarray(shared.items[:, 0], float) - self.true) ** 2)


class TestRounds:
    def uploads(self, seed: int, items: int = ITEMS) -> Float:
        draw = np.random.default_rng(seed)
        weight = zipf(items, 3.0)
        means = np.stack([weight * draw.normal(0, 0.1, items), COUNT_WEIGHT * weight], axis=1)
        return means + 0.002 * draw.normal(size=(items, 2))

    def test_add_up_by_their_precision(self) -> None:
        """Two of 1.4 times the noise are as good as one, and are averaged."""
        one, two = self.uploads(1), self.uploads(2)
        shared, start = nothing_known(ITEMS)
        _, half = after(start, shared, single(one), 0.002 * 2**0.5, CLIP, "l2")
        got, both = after(half, shared, single(two), 0.002 * 2**0.5, CLIP, "l2")
        expected, whole = after(start, shared, single((one + two) / 2), 0.002, CLIP, "l2")
        assert float(both.precision[0]) == pytest.approx(1 / 0.002**2, rel=1e-5)
        assert float(half.precision[0]) == pytest.approx(0.5 / 0.002**2, rel=1e-5)
        np.testing.assert_allclose(both.told, whole.told, rtol=1e-4, atol=1e-2)
        np.testing.assert_allclose(both.weight, whole.weight, rtol=1e-3, atol=1e-5)
        np.testing.assert_allclose(got.items[:, 1], expected.items[:, 1], atol=1e-3)
        assert np.asarray(expected.items).all()
        # the spread has had twice the steps to settle
        np.testing.assert_allclose(got.items[:, 0], expected.items[:, 0], atol=5e-3)

    @pytest.mark.parametrize("norm", ["l1", "l2"])
    def test_noise_alone_teaches_nothing(self, norm: str) -> None:
        """Mostly nothing is sent at all (0.70 of 6,000 seeds in L2, 0.77 in L1), and never much.

        Of a hundred seeds, the share deviates by 0.046 and the mean, of 0.00006, by 0.00002: both
        bounds are more than four deviations away, a chance below 1 in 1,000.
        """
        squares = []
        for seed in range(100):
            draw = np.random.default_rng(seed)
            shared, known = nothing_known(ITEMS)
            for _ in range(3):
                noise = single(0.01 * noise_of(draw, norm, (ITEMS, 2)))
                shared, known = after(known, shared, noise, 0.01, CLIP, norm)
            nothing = not np.asarray(shared.items).any()
            squares.append(0.0 if nothing else float((shared.items[:, 0] ** 2).mean()))
        assert np.mean(np.array(squares) == 0) > 0.5
        assert np.mean(squares) < 0.0002  # a fiftieth of what qualities vary by

    def test_without_clip_and_noise_sums_are_what_they_are(self) -> None:
        draw = np.random.default_rng(0)
        weight, quality = zipf(ITEMS, 80.0), draw.normal(0, 0.1, ITEMS)
        uploads = np.stack([weight * quality, COUNT_WEIGHT * weight], axis=1)
        shared, known = nothing_known(ITEMS)
        shared, known = after(
            known, shared, single(uploads), NO_NOISE.std, NO_NOISE.clip, NO_NOISE.norm
        )
        np.testing.assert_allclose(known.weight, weight, rtol=1e-5)
        np.testing.assert_allclose(shared.items[:, 0], quality, atol=2e-3)
        popularity = np.log1p(weight / weight.mean())
        popularity -= popularity @ weight / weight.sum()
        np.testing.assert_allclose(shared.items[:, 1], popularity, atol=1e-4)

    @pytest.mark.parametrize(
        ("items", "norm"), [(ITEMS, "l1"), (ITEMS, "l2"), (ITEMS, None), (1, "l2")]
    )
    @pytest.mark.parametrize("std", [0.0, 1e-9, 1e-3, 1e6, np.inf])
    @pytest.mark.parametrize("told", ["nothing", "noise", "much", "less than nothing"])
    def test_are_numbers_whatever_comes(
        self, told: str, items: int, std: float, norm: str | None
    ) -> None:
        draw = np.random.default_rng(0)
        uploads = {
            "nothing": np.zeros((items, 2)),
            "noise": min(std, 1e9) * draw.normal(size=(items, 2)),
            "much": np.full((items, 2), CLIP),
            "less than nothing": np.full((items, 2), -CLIP),
        }[told]
        shared, known = nothing_known(items)
        for _ in range(3):
            clip = jnp.inf if norm is None else CLIP
            shared, known = after(known, shared, single(uploads), std, clip, norm)
            for part in jax.tree.leaves((shared, known)):
                assert np.isfinite(np.asarray(part)).all()
        assert np.asarray(known.weight).min() >= 0
        assert np.asarray(known.error).min() >= 0
        if norm is not None:
            assert np.isfinite(promised(known, 1.0, norm))


class TestHowSure:
    @pytest.mark.parametrize("rounds", [1, 6])
    @pytest.mark.parametrize("std", [1e-6, 1e-4, 1e-3])
    def test_error_is_as_large_as_it_is_said_to_be(self, std: float, rounds: int) -> None:
        """Where qualities vary as assumed; M is never quite right, which is not counted.

        The ratio is 0.96 to 1.21, and deviates by at most 0.04 over a dozen seeds: the bounds
        are four deviations away.
        """
        real, said = [], []
        for seed in range(12):
            world = World.drawn(seed)
            shared, known = world.play(std, rounds, seed)
            real.append(world.squared_error(shared).mean())
            said.append(float(known.error.mean()))
        assert 0.8 < np.mean(real) / np.mean(said) < 1.37


# ---- a few clients and items, with all that belongs to a round


def test_a_round_with_few_clients_does_not_make_the_server_less_sure() -> None:
    """Those who joined late pay on their own: what is known of the others stays known."""
    world, sent = World.drawn(3), jnp.zeros(400)
    known = nothing_known(400)[1]
    for clients, seed in ((CLIENTS, 1), (3, 2)):
        before, std = sent, 0.3 / clients
        told = [world.weight * (world.rated - np.asarray(sent)), COUNT_WEIGHT * world.weight]
        noise = std * np.random.default_rng(seed).normal(size=(400, 2))
        uploads = single(np.stack(told, axis=1) + noise)
        items, known = known.after(sent, uploads, Noise(std, CLIP, float(clients), "l2"))
        sent = items[:, 0]
    assert float(known.clients) == CLIENTS
    assert float(jnp.abs(before).max()) > 0.1
    np.testing.assert_allclose(sent, before, atol=0.02)


def test_the_scale_is_a_ridge_regression_of_log_popularity() -> None:
    """By LAPACK on an extended system, with an intercept that is not shrunk."""
    genres = np.eye(4)[np.random.default_rng(3).integers(4, size=400)]
    weight = World.drawn(3).weight * np.exp(genres @ [1.2, -1.2, 0.0, 0.0])
    found = np.asarray(posterior._scales(single(weight), single(genres)), float)
    logs = np.log(weight / weight.mean() + posterior._FLOOR)
    centred = genres - genres.mean(axis=0)
    prior = posterior._FEATURE_ITEMS**0.5 * np.eye(4)
    right = np.r_[logs - logs.mean(), np.zeros(4)]
    slopes = np.linalg.lstsq(np.vstack([centred, prior]), right)[0]
    np.testing.assert_allclose(found, np.exp(centred @ slopes), rtol=1e-3)
    assert found.max() > 2 * found.min()


class TestForecast:
    def counted(self, total: float, items: int, precision: float) -> Posterior:
        """All that was released is counts, and what stands out is their sum."""
        start = nothing_known(items)[1]
        told = start.told.at[:, 1].set(COUNT_WEIGHT * total / items * precision)
        return start._replace(precision=start.precision + precision, told=told)

    def test_the_sum_of_counts_tells_how_many_ratings_clients_have(self) -> None:
        """By integration over what is likely of them: log-normal before, the noise known."""
        items, precision, more = 100, 2e4, 3e6
        one = CLIP / (0.2**2 + COUNT_WEIGHT**2) ** 0.5  # sum of counts, of one rating
        for total in (2.0, 6.0, 12.0):
            known = self.counted(total, items, precision)
            spread = float(known.spread)

            def gain(ratings: float, spread: float = spread) -> float:
                weights = zipf(items, one * ratings**0.5)
                information = weights**2 * (precision + more)
                counted = information * COUNT_WEIGHT**2
                gains = spread**2 / (spread + 1 / information) * counted / (1 + counted)
                return float((weights / weights.sum() * gains).sum())

            noise = (items / precision) ** 0.5 / COUNT_WEIGHT
            logs = np.linspace(-4, 4, 4001)
            sums = one * (RATINGS * np.exp(1.2 * logs)) ** 0.5
            chance = np.exp(-(logs**2) / 2 - ((total - sums) / noise) ** 2 / 2)
            expected = sum(
                share * gain(RATINGS * np.exp(1.2 * log))
                for share, log in zip(chance / chance.sum(), logs, strict=True)
            )
            relative = 0.5 * expected / (0.2**2 + 0.1**2 / 2)
            assert promised(known, more, "l2") == pytest.approx(relative, rel=0.01)
