"""A request gets the action of the policy, whoever shares its batch."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fidec.algos.common.base import METHODS
from fidec.errors import ConfigError
from fidec.serve.asking import Ask
from fidec.serve.lanes import Lanes
from helpers.serving import OBSERVATION, SPEC, make_policy


def asks_of(count: int) -> list[Ask]:
    random = np.random.default_rng(0)
    seen = random.normal(size=(count, 3)).astype(np.float32)
    return [Ask(seen[i], 100 + i % 3, i, [1.0, 0.5, 0.0][i % 3], [1.0, 0.0][i % 2]) for i in range(count)]


def test_actions_are_those_of_the_policy_with_the_seed(lanes):
    policy = make_policy()
    policy.reset(seed=5)
    for step in range(3):
        (served,) = lanes([Ask(OBSERVATION, 5, step, 1.0, 1.0)])
        np.testing.assert_allclose(served, policy(OBSERVATION)[None], atol=1e-5)
    policy.reset(seed=2**32 - 1)
    policy.warm_up(noise=0.5, strength=0.3)
    (served,) = lanes([Ask(OBSERVATION, 2**32 - 1, 0, 0.5, 0.3)])
    np.testing.assert_allclose(served, policy(OBSERVATION, noise=0.5, strength=0.3)[None], atol=1e-5)


def test_neighbours_and_places_in_a_batch_do_not_matter(lanes):
    """Bit for bit in batches of one compiled size, to rounding between sizes."""
    asks = asks_of(8)
    together = lanes(asks)
    assert together.shape == (8, 1, 2)
    assert len(np.unique(together.reshape(8, -1), axis=0)) == 8
    assert np.array_equal(lanes(asks[::-1]), together[::-1])
    others = [ask._replace(observation=ask.observation * 9, seed=1) for ask in asks]
    assert np.array_equal(lanes([*others[:3], asks[3], *others[4:]])[3], together[3])
    assert np.array_equal(lanes(asks[:5]), together[:5])  # padded to 8
    for ask, action in zip(asks, together, strict=True):
        np.testing.assert_allclose(lanes([ask])[0], action, atol=1e-5)


def test_a_chunk_has_the_actions_of_its_steps():
    policy = make_policy(replace(SPEC, action_dim=6, chunk=3, replan=2))
    (served,) = Lanes(policy, largest=1)([Ask(OBSERVATION, 0, 0, 1.0, 1.0)])
    assert served.shape == (3, 2)
    np.testing.assert_allclose(served, policy(OBSERVATION), atol=1e-5)


def test_a_method_without_a_displacement_has_noise_alone():
    lanes = Lanes(make_policy(algo="bc"), largest=1)
    assert lanes.dials == ("noise",)
    with pytest.raises(ConfigError, match="does not move a base action"):
        lanes.check_dials(strength=0.5)
    first, second = (lanes([Ask(OBSERVATION, seed, 0, 0.0, 1.0)]) for seed in (0, 1))
    assert np.array_equal(first, second)


def test_candidates_are_chosen_by_the_critic(lanes):
    best = Lanes(make_policy(), candidates=8, largest=1)
    asks = [Ask(OBSERVATION, 0, step, 1.0, 1.0) for step in range(3)]
    assert not np.allclose([best([ask])[0] for ask in asks], lanes(asks))
    with pytest.raises(ConfigError, match="no candidates"):
        Lanes(make_policy(algo="bc"), candidates=2)
    with pytest.raises(ConfigError, match="not 3"):
        Lanes(make_policy(), largest=3)


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS.builtin())
def test_every_method_is_served(name):
    policy = make_policy(algo=name, denoiser_blocks=1, diffusion_steps=2, policy_hidden=(8,))
    lanes = Lanes(policy, largest=2)
    noise = 0.5 if "noise" in lanes.dials else 1.0
    served = lanes([Ask(OBSERVATION, 3, 0, 1.0, 1.0), Ask(2 * OBSERVATION, 3, 1, noise, 1.0)])
    policy.reset(seed=3)
    for factor in (1.0, noise):
        policy.warm_up(noise=factor)
    expected = [policy(OBSERVATION), policy(2 * OBSERVATION, noise=noise)]
    np.testing.assert_allclose(served[:, 0], expected, atol=1e-5)
