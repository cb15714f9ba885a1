"""A request gets the action of the policy, whoever shares its batch."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fidec.algos.common.base import METHODS
from fidec.errors import ConfigError
from fidec.serve.batching import ServedPolicy
from fidec.serve.requests import Request
from fidec.train.acting import PUBLISHED, ActOptions
from helpers.serving import OBSERVATION, SPEC, make_policy


def request(observation, seed: int, step: int, noise: float = 1.0, strength: float = 1.0) -> Request:
    return Request(observation, seed, step, replace(PUBLISHED, noise=noise, strength=strength))


def requests_of(count: int) -> list[Request]:
    random = np.random.default_rng(0)
    seen = random.normal(size=(count, 3)).astype(np.float32)
    return [request(seen[i], 100 + i % 3, i, [1.0, 0.5, 0.0][i % 3], [1.0, 0.0][i % 2]) for i in range(count)]


def test_actions_are_those_of_the_policy_with_the_seed(served):
    policy = make_policy()
    policy.reset(seed=5)
    for step in range(3):
        (chunk,) = served([request(OBSERVATION, 5, step)])
        np.testing.assert_allclose(chunk, policy(OBSERVATION)[None], atol=1e-5)
    policy.reset(seed=2**32 - 1)
    policy.warm_up(noise=0.5, strength=0.3)
    (chunk,) = served([request(OBSERVATION, 2**32 - 1, 0, 0.5, 0.3)])
    np.testing.assert_allclose(chunk, policy(OBSERVATION, noise=0.5, strength=0.3)[None], atol=1e-5)


def test_neighbours_and_places_in_a_batch_do_not_matter(served):
    """Bit for bit in batches of one compiled size, to rounding between sizes."""
    requests = requests_of(8)
    together = served(requests)
    assert together.shape == (8, 1, 2)
    assert len(np.unique(together.reshape(8, -1), axis=0)) == 8
    assert np.array_equal(served(requests[::-1]), together[::-1])
    others = [one._replace(observation=one.observation * 9, seed=1) for one in requests]
    assert np.array_equal(served([*others[:3], requests[3], *others[4:]])[3], together[3])
    assert np.array_equal(served(requests[:5]), together[:5])  # padded to 8
    for one, action in zip(requests, together, strict=True):
        np.testing.assert_allclose(served([one])[0], action, atol=1e-5)


def test_a_chunk_has_the_actions_of_its_steps():
    policy = make_policy(replace(SPEC, action_dim=6, chunk=3, replan=2))
    (chunk,) = ServedPolicy(policy, largest=1)([request(OBSERVATION, 0, 0)])
    assert chunk.shape == (3, 2)
    np.testing.assert_allclose(chunk, policy(OBSERVATION), atol=1e-5)


def test_a_method_without_a_displacement_has_noise_alone():
    served = ServedPolicy(make_policy(algo="bc"), largest=1)
    assert served.dials == ("noise",)
    with pytest.raises(ConfigError, match="does not move a base action"):
        served.check(ActOptions(strength=0.5))
    first, second = (served([request(OBSERVATION, seed, 0, 0.0, 1.0)]) for seed in (0, 1))
    assert np.array_equal(first, second)


def test_candidates_are_chosen_by_the_critic(served):
    best = ServedPolicy(make_policy(), ActOptions(candidates=8), largest=1)
    requests = [request(OBSERVATION, 0, step) for step in range(3)]
    assert not np.allclose([best([one])[0] for one in requests], served(requests))
    with pytest.raises(ConfigError, match="no candidates"):
        ServedPolicy(make_policy(algo="bc"), ActOptions(candidates=2))
    with pytest.raises(ConfigError, match="not 3"):
        ServedPolicy(make_policy(), largest=3)


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS.builtin())
def test_every_method_is_served(name):
    policy = make_policy(algo=name, denoiser_blocks=1, diffusion_steps=2, policy_hidden=(8,))
    served = ServedPolicy(policy, largest=2)
    noise = 0.5 if "noise" in served.dials else 1.0
    actions = served([request(OBSERVATION, 3, 0), request(2 * OBSERVATION, 3, 1, noise)])
    policy.reset(seed=3)
    for factor in (1.0, noise):
        policy.warm_up(noise=factor)
    expected = [policy(OBSERVATION), policy(2 * OBSERVATION, noise=noise)]
    np.testing.assert_allclose(actions[:, 0], expected, atol=1e-5)
