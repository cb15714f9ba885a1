"""The constraints in nats, where the KL is known: Gaussians with affine maps, mixtures by quadrature."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fidec.geometry.landscapes import Mixture, axis_aligned, grid
from fidec.ops import fisher
from fidec.ops.jacobian import value_and_jacobian
from helpers.algorithms import fast_jit
from helpers.gaussians import gaussian_kl

SDS = np.array([0.3, 0.6])
GAUSSIAN = axis_aligned([[0.2, -0.1]], [SDS])
MIXTURE = axis_aligned([[-0.5, 0.0], [0.4, 0.3]], [[0.2, 0.3], [0.25, 0.2]], [0.6, 0.4])
STRETCH = np.array([[0.2, 0.1], [0.0, -0.15]])
SHIFT = np.array([0.1, 0.05])


def affine(points, size=1.0):
    return size * (points @ jnp.asarray(STRETCH.T, points.dtype) + jnp.asarray(SHIFT, points.dtype))


def bend(points, size=1.0):
    x, y = points[..., 0], points[..., 1]
    return size * jnp.stack([0.15 * jnp.sin(2 * y), 0.2 * jnp.tanh(x) * y], axis=-1)


def exact_score(mixture):
    return lambda points, key: mixture.score(points)[None]


def affine_kl(size=1.0):
    """KL of the affine push-forward of GAUSSIAN, in closed form."""
    matrix = np.eye(2) + size * STRETCH
    mean, covariance = GAUSSIAN.means[0], np.diag(SDS**2)
    moved = matrix @ mean + size * SHIFT
    return gaussian_kl(moved, matrix @ covariance @ matrix.T, mean, covariance)


def expectation(mixture: Mixture, cost):
    """By quadrature in float64: no Monte Carlo noise."""
    with jax.enable_x64(True):
        points, weights = grid(mixture, 0.04)
        return float(fast_jit(lambda points, weights: jnp.sum(weights * cost(points)))(points, weights))


def true_kl(mixture: Mixture, field):
    def ratio(points):
        displacement, matrix = value_and_jacobian(field, points)
        log_determinant = jnp.linalg.slogdet(jnp.eye(2) + matrix)[1]
        return mixture.log_density(points) - mixture.log_density(points + displacement) - log_determinant

    return expectation(mixture, ratio)


@pytest.mark.parametrize("centred", [False, True])
def test_path_is_the_kl_of_an_affine_map_of_a_gaussian(centred):
    """The score is linear: one node is exact."""
    key = jax.random.key(0)
    cost = lambda a: fisher.path(affine, a, exact_score(GAUSSIAN), key, nodes=1, centred=centred)  # noqa: E731
    assert expectation(GAUSSIAN, cost) == pytest.approx(affine_kl(), rel=1e-6)


@pytest.mark.parametrize("centred", [False, True])
def test_path_is_the_kl_of_a_bent_mixture(centred):
    key, truth = jax.random.key(0), true_kl(MIXTURE, bend)
    found = {
        nodes: expectation(
            MIXTURE,
            lambda a: fisher.path(bend, a, exact_score(MIXTURE), key, nodes=nodes, centred=centred),  # noqa: B023
        )
        for nodes in (1, 4)
    }
    assert truth > 0.02
    assert found[4] == pytest.approx(truth, rel=1e-3)
    assert abs(found[1] - truth) > 3 * abs(found[4] - truth)


def test_centring_takes_variance_away():
    """For a small displacement the first-order terms are most of path's spread."""
    points = GAUSSIAN.sample(jax.random.key(1), 4000)
    small = lambda a: affine(a, 0.1)  # noqa: E731
    score, key = exact_score(GAUSSIAN), jax.random.key(0)
    path = fast_jit(lambda a, centred: fisher.path(small, a, score, key, centred=centred), static_argnums=1)
    spread = {centred: float(np.std(path(points, centred))) for centred in (False, True)}
    assert spread[True] < 0.2 * spread[False]


@pytest.mark.parametrize(("mixture", "field"), [(GAUSSIAN, affine), (MIXTURE, bend)])
def test_stein_is_the_kl_to_second_order(mixture, field):
    errors = []
    for size in (0.2, 0.1):
        moved = lambda a: field(a, size)  # noqa: B023, E731
        found = expectation(mixture, lambda a: fisher.stein(moved, a, exact_score(mixture), jax.random.key(0)))  # noqa: B023
        errors.append(abs(found / true_kl(mixture, moved) - 1))
    assert errors[1] < 0.05
    assert errors[1] < 0.7 * errors[0]  # the relative error falls with the size


def test_the_fisher_form_alone_is_not_the_kl_of_a_stretch():
    """N(0, 1) and delta = 0.01 a: KL 1.0e-4, the paper's form 1.5e-4, stein 1.0e-4."""
    normal = axis_aligned([[0.0]], [[1.0]])
    field = lambda a: 0.01 * a  # noqa: E731
    paper = expectation(normal, lambda a: fisher.penalty(field(a), normal.score(a)[None], scale="half"))
    exact = expectation(normal, lambda a: fisher.stein(field, a, exact_score(normal), jax.random.key(0)))
    assert paper == pytest.approx(1.5e-4, rel=1e-3)
    assert exact == pytest.approx(1.0e-4, rel=1e-3)
    assert true_kl_1d(0.01) == pytest.approx(1.0e-4, rel=0.02)


def true_kl_1d(h):
    return gaussian_kl(np.zeros(1), np.eye(1) * (1 + h) ** 2, np.zeros(1), np.eye(1))


@pytest.mark.parametrize("constraint", ["stein", "path"])
def test_probes_estimate_what_the_exact_jacobian_gives(constraint):
    """Above `exact_up_to` dimensions: the same mean, from probes."""
    points = jnp.repeat(GAUSSIAN.sample(jax.random.key(2), 8), 4000, axis=0)
    function = {"stein": fisher.stein, "path": fisher.path}[constraint]
    score = exact_score(GAUSSIAN)
    exact = fast_jit(lambda a: function(affine, a, score, jax.random.key(0)))(points[::4000])
    probed = fast_jit(lambda a: function(affine, a, score, jax.random.key(0), exact_up_to=0, probes=2))
    found = np.asarray(probed(points)).reshape(8, -1)
    error = found.std(axis=1) / np.sqrt(found.shape[1])
    if constraint == "path":  # one roulette length a call: the rows of one call share it
        calls = fast_jit(
            jax.vmap(lambda k: function(affine, points[::4000], score, k, exact_up_to=0)),
        )(jax.random.split(jax.random.key(3), 4000))
        found, error = np.asarray(calls).T, np.asarray(calls).std(axis=0) / np.sqrt(4000)
    assert np.all(np.abs(found.mean(axis=1) - exact) < 4.5 * error + 1e-5)
    assert error.max() < 0.02


def test_precision_is_the_kl_of_a_shift():
    """Of a Gaussian with independent dimensions, for any shift."""
    variance = np.array([0.09, 0.36])
    found = fisher.shift_cost(jnp.asarray(SHIFT[None], jnp.float32), jnp.asarray(1 / variance[None], jnp.float32))
    covariance = np.diag(variance)
    assert float(found[0]) == pytest.approx(gaussian_kl(SHIFT, covariance, np.zeros(2), covariance), rel=1e-5)


def test_the_precision_of_few_samples_is_unbiased():
    """Over many states; without the correction the diagonal of 8 samples would be 1.4 times too large."""
    samples = jnp.asarray(SDS) * jax.random.normal(jax.random.key(0), (200_000, 8, 2))
    found = fisher.precision(samples, floor=1e-3)
    np.testing.assert_allclose(found.mean(axis=0), 1 / SDS**2, rtol=0.02)
    constant = fisher.precision(jnp.zeros((1, 8, 2)), floor=0.01)  # behaviour that never varies
    np.testing.assert_allclose(constant, 1e4, rtol=1e-5)


def test_denoising_is_the_log_density_ratio():
    """For an exact field its mean is log p(a) - log p(a + delta) - log|det|, at every action."""
    points = jnp.asarray([[0.2, -0.1], [0.6, 0.3], [-0.3, -0.8]])
    rows = jnp.repeat(points, 3000, axis=0)
    levels = {"t_start": 0.005, "t_eps": 0.995, "samples": 8}
    denoising = fast_jit(lambda a: fisher.denoising(affine, a, GAUSSIAN.velocity, jax.random.key(4), **levels))
    found = np.asarray(denoising(rows)).reshape(3, -1)
    displacement, matrix = value_and_jacobian(affine, points)
    log_determinant = jnp.linalg.slogdet(jnp.eye(2) + matrix)[1]
    exact = GAUSSIAN.log_density(points) - GAUSSIAN.log_density(points + displacement) - log_determinant
    error = found.std(axis=1) / np.sqrt(found.shape[1])
    assert error.max() < 0.02
    np.testing.assert_allclose(found.mean(axis=1), exact, atol=4.5 * error.max() + 0.01)


def test_denoising_is_the_kl_of_a_bent_mixture():
    points = MIXTURE.sample(jax.random.key(5), 60_000)
    field = lambda a: bend(a, 2.0)  # noqa: E731
    levels = {"t_eps": 0.99, "samples": 2}
    denoising = fast_jit(lambda a: fisher.denoising(field, a, MIXTURE.velocity, jax.random.key(6), **levels))
    found = np.asarray(denoising(points))
    error = found.std() / np.sqrt(len(found))
    truth = true_kl(MIXTURE, field)
    assert error < 0.1 * truth
    assert abs(found.mean() - truth) < 4.5 * error + 0.02 * truth


@pytest.mark.parametrize("constraint", ["stein", "path", "denoising"])
def test_gradients_are_those_of_finite_differences(constraint):
    key = jax.random.key(7)
    score = fisher.scaled_score(MIXTURE.velocity, 0.9)

    def cost(size, points):
        field = lambda a: bend(a, size)  # noqa: E731
        if constraint == "denoising":
            return fisher.denoising(field, points, MIXTURE.velocity, key, t_eps=0.9).mean()
        return {"stein": fisher.stein, "path": fisher.path}[constraint](field, points, score, key).mean()

    with jax.enable_x64(True):
        points = jnp.asarray(np.random.default_rng(8).normal(size=(6, 2)) * 0.3)
        step, slope = 1e-5, fast_jit(jax.value_and_grad(cost))
        difference = (slope(0.7 + step, points)[0] - slope(0.7 - step, points)[0]) / (2 * step)
        assert slope(0.7, points)[1] == pytest.approx(float(difference), rel=1e-5)
        assert abs(difference) > 1e-3


def test_the_error_of_the_score_is_of_first_order_at_the_action_and_of_second_order_at_the_scaled_one():
    def order(score):
        errors = [float(jnp.abs(score(points, 1 - eps)[0] - MIXTURE.score(points)).max()) for eps in (2e-3, 1e-3)]
        return np.log2(errors[0] / errors[1])

    key = jax.random.key(0)
    with jax.enable_x64(True):
        points = jnp.asarray(np.random.default_rng(9).normal(size=(50, 2)) * 0.3)
        clean = order(lambda a, t: fisher.local_scores(MIXTURE.velocity, a, key, t_eps=t))
        scaled = order(lambda a, t: fisher.scaled_score(MIXTURE.velocity, t)(a, key))
    assert clean == pytest.approx(1.0, abs=0.1)
    assert scaled == pytest.approx(2.0, abs=0.1)


def test_score_matching_ranks_scores_by_their_error():
    points = MIXTURE.sample(jax.random.key(11), 40_000)
    true = MIXTURE.score(points)
    losses, errors = [], []
    for shift in (0.0, 0.5, 1.0):
        score = lambda a, key: (MIXTURE.score(a) * (1 + shift))[None]  # noqa: B023, E731
        matching = fast_jit(lambda a: fisher.score_matching(score, a, jax.random.key(0)))  # noqa: B023
        losses.append(float(matching(points)))
        errors.append(float(0.5 * jnp.mean(jnp.sum((shift * true) ** 2, axis=-1))))
    np.testing.assert_allclose(np.diff(losses), np.diff(errors), rtol=0.05)


def test_the_time_is_chosen_near_the_end_for_an_exact_field_and_away_from_it_for_a_noisy_one():
    points = MIXTURE.sample(jax.random.key(12), 2000)
    choose = fast_jit(lambda velocity, a: fisher.choose_time(velocity, a, jax.random.key(0)), static_argnums=0)
    t, losses = choose(MIXTURE.velocity, points)
    assert losses.shape == (len(fisher.DISTANCES),)
    assert float(t) >= 0.97  # nothing speaks against it but rounding

    def rough(x, t):  # an error of the velocity is divided by 1 - t in the score
        return MIXTURE.velocity(x, t) + 0.1 * jnp.sin(40 * x)

    noisy, _ = choose(rough, points)
    assert float(noisy) < float(t)
