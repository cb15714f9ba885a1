"""The audit where the truth is known: Gaussian flows with affine maps, folds, boxes, and a landscape."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from fidec.algos.common.base import Transport
from fidec.audit import figures as audit_report
from fidec.audit import neighbours
from fidec.audit.measure import ABSOLUTE, RELATIVE, Audit, carry, log_normal, measure
from fidec.audit.summary import state_kl, summarise
from fidec.data import dataset_from_arrays
from fidec.geometry import landscapes
from fidec.ops import flow

SIGMA = jnp.array([0.3, 0.5])
NONE = "not asked"


def gaussian_velocity(mean, sigma) -> flow.Velocity:
    """The exact flow of N(m, diag sigma^2): v = m + (t sigma^2 - (1 - t)) / (t^2 sigma^2 + (1 - t)^2) (x - t m)."""

    def velocity(x, t):
        gain = (t * sigma**2 - (1 - t)) / (t**2 * sigma**2 + (1 - t) ** 2)
        return mean + gain * (x - t * mean)

    return velocity


def mixture_velocity(landscape: landscapes.Landscape) -> flow.Velocity:
    """E[a - z | x_t = x] of a Gaussian mixture: x is N(t m_k, t^2 S_k + (1 - t)^2 I) in its component k."""
    means, log_weights = jnp.asarray(landscape.means), jnp.log(landscape.weights)
    variances, axes = (jnp.asarray(part) for part in np.linalg.eigh(landscape.covariances))

    def velocity(x, t):
        t = t[..., None]
        blurred = t**2 * variances + (1 - t) ** 2  # along the axes of each component
        offset = jnp.einsum("kji,bkj->bki", axes, x[:, None] - t * means)
        log_parts = log_weights - 0.5 * jnp.sum(offset**2 / blurred + jnp.log(blurred), axis=-1)
        gain = (t * variances - (1 - t)) / blurred
        towards = means + jnp.einsum("kij,bkj->bki", axes, gain * offset)
        return jnp.sum(jax.nn.softmax(log_parts)[..., None] * towards, axis=1)

    return velocity


def transport_of(velocity_of, displacement, budget=0.5, unit="nats"):
    """(state, observations) -> Transport; the observation is the mean of the state's behaviour."""

    def make(state, observations):
        velocity = velocity_of(observations)
        field = lambda actions: displacement(observations, actions)  # noqa: E731
        penalty = lambda actions, key: jnp.sum(field(actions) ** 2, axis=-1)  # noqa: E731
        return Transport(velocity, lambda z: flow.sample(velocity, z), field, penalty, budget, unit)

    return make


def gaussian(displacement, sigma=SIGMA, **options):
    return transport_of(lambda means: gaussian_velocity(means, sigma), displacement, **options)


def run(make, observations, samples=64, seed=0, **options) -> Audit:
    observations = np.asarray(observations, np.float32)
    return measure(
        make,
        None,
        observations,
        samples=samples,
        action_dim=observations.shape[1],
        key=jax.random.key(seed),
        **options,
    )


MEANS = np.array([[0.0, 0.0], [0.5, -0.3], [-0.2, 0.1], [0.1, 0.6], [0.4, 0.4]])
STRETCH, SHIFT = np.array([[0.3, 0.2], [-0.1, -0.2]]), np.array([0.1, -0.2])
NARROW = jnp.array([0.02, 0.02])
# Made once: a maker that is used again is not compiled again.
affine = gaussian(lambda _, a: a @ STRETCH.T + SHIFT)
narrow = gaussian(lambda _, a: jnp.zeros_like(a) + jnp.array([0.02, 0.0]), sigma=NARROW)


def affine_kl(mean: np.ndarray, matrix: np.ndarray, shift: np.ndarray) -> float:
    """KL(N(m', S') | N(m, S)) for a' = a + B a + c."""
    sigma = np.asarray(SIGMA)
    covariance, linear = np.diag(sigma**2), np.eye(2) + matrix
    moved = linear @ covariance @ linear.T
    offset = matrix @ mean + shift
    inverse = np.linalg.inv(covariance)
    volume = np.linalg.slogdet(covariance)[1] - np.linalg.slogdet(moved)[1]
    return 0.5 * (np.trace(inverse @ moved) + offset @ inverse @ offset - 2 + volume)


# --- the KL -------------------------------------------------------------------------------------------------


def test_the_kl_of_an_affine_map_is_the_closed_form_at_every_state():
    audit = run(affine, MEANS, samples=2000)
    kl, error = state_kl(audit)
    truth = np.array([affine_kl(mean, STRETCH, SHIFT) for mean in MEANS])
    assert np.ptp(truth) > 0.1  # the states do differ
    assert (np.abs(kl - truth) < 4 * error).all()
    assert (error < 0.05).all()
    assert audit.moved.settled.all()
    # And without sampling noise: each action's log ratio from the densities themselves.
    a, moved = audit.moved.actions, audit.moved.actions + audit.moved.displacement
    sigma = np.asarray(SIGMA)
    exact = (
        stats.norm.logpdf(a, MEANS[:, None], sigma).sum(-1)
        - stats.norm.logpdf(moved, MEANS[:, None], sigma).sum(-1)
        - np.linalg.slogdet(np.eye(2) + STRETCH)[1]
    )
    np.testing.assert_allclose(audit.moved.log_ratio, exact, atol=5e-3)


def test_a_shift_costs_half_its_squared_mahalanobis_length():
    shift = jnp.array([0.15, 0.25])
    audit = run(gaussian(lambda _, a: jnp.zeros_like(a) + shift), MEANS, samples=1000)
    summary = summarise(audit, NONE)
    truth = 0.5 * float(jnp.sum((shift / SIGMA) ** 2))  # 0.25
    assert summary["kl"]["mean"] == pytest.approx(truth, abs=0.05)
    assert summary["kl"]["above"][0] == {"nats": 1.0, "share": 0.0, "share_by_two_errors": 0.0}
    assert summary["kl"]["folded_actions"] == 0
    # Its log ratio is N(KL, 2 KL): the standard error is known too, and the states do not differ.
    assert summary["kl"]["standard_error_of_a_state"] == pytest.approx(np.sqrt(2 * truth / 1000), rel=0.15)
    assert summary["kl"]["spread_over_states"] < 0.03
    assert summary["penalty"]["mean"] == pytest.approx(0.085, rel=1e-3)
    assert summary["displacement"]["rms"] == pytest.approx(0.085**0.5, rel=1e-3)
    np.testing.assert_allclose(summary["displacement"]["rms_of_each_dimension"], shift, rtol=1e-4)


def test_no_displacement_costs_nothing():
    audit = run(gaussian(lambda _, a: jnp.zeros_like(a)), MEANS)
    summary = summarise(audit, NONE)
    assert abs(summary["kl"]["mean"]) < 1e-3
    assert summary["direction"]["mean_cosine"] is None
    assert all(isinstance(text, str) for text in audit_report.sentences(summary))


def test_a_map_that_folds_is_reported_and_its_kl_is_a_lower_bound():
    """a -> |a| makes a half-normal of a normal: KL log 2, of which the formula sees nothing."""
    make = gaussian(lambda _, a: jnp.abs(a) - a, sigma=jnp.array([0.4]))
    summary = summarise(run(make, np.zeros((4, 1)), samples=500), NONE)
    assert summary["kl"]["folded_actions"] == pytest.approx(0.5, abs=0.05)
    assert summary["kl"]["folded_states"] == 1.0
    assert summary["kl"]["mean"] < np.log(2) - 0.5
    assert any("folds" in text and "WARNING" in text for text in audit_report.sentences(summary))


def test_on_a_landscape_the_audit_agrees_with_its_exact_density():
    landscape = landscapes.get("bimodal")
    bend = lambda _, a: 0.12 * jnp.stack([jnp.sin(3 * a[:, 1]), jnp.cos(2 * a[:, 0])], -1)  # noqa: E731
    audit = run(transport_of(lambda _: mixture_velocity(landscape), bend), np.zeros((3, 2)), samples=200)
    moved = audit.moved
    jacobian = jax.vmap(jax.vmap(jax.jacfwd(lambda a: bend(None, a[None])[0])))(jnp.asarray(moved.actions))
    exact = (
        landscape.log_density(jnp.asarray(moved.actions))
        - landscape.log_density(jnp.asarray(moved.actions + moved.displacement))
        - jnp.linalg.slogdet(jnp.eye(2) + jacobian)[1]
    ).mean(axis=1)
    assert moved.settled.all()
    assert (np.asarray(exact) > 0.2).all()
    np.testing.assert_allclose(state_kl(audit)[0], exact, atol=0.005, rtol=0.02)


# --- the solver ---------------------------------------------------------------------------------------------


def test_the_solver_is_of_fourth_order():
    velocity = gaussian_velocity(jnp.array([0.3, -0.2]), SIGMA)
    z = jax.random.normal(jax.random.key(0), (64, 2))
    solve = jax.jit(lambda x, steps: carry(velocity, x, steps))
    truth = jnp.array([0.3, -0.2]) + SIGMA * z
    error = [float(jnp.abs(solve(z, steps)[0] - truth).max()) for steps in (4, 8, 16)]
    assert error[0] / error[1] > 10
    assert error[1] / error[2] > 10
    x, integral = solve(z, 32)
    np.testing.assert_allclose(integral, jnp.log(SIGMA).sum(), atol=1e-3)  # x = m + sigma z
    back, reverse = carry(velocity, x, 32, backwards=True)
    np.testing.assert_allclose(back, z, atol=1e-3)
    np.testing.assert_allclose(log_normal(back) + reverse, log_normal(z) - integral, atol=2e-3)


def test_a_narrow_behaviour_takes_more_steps_and_is_right():
    audit = run(narrow, MEANS, samples=200)
    assert audit.moved.settled.all()
    assert (audit.moved.steps > 32).all()
    kl, error = state_kl(audit)
    assert (np.abs(kl - 0.5) < 4 * error).all()
    assert (np.abs(audit.moved.change) <= np.maximum(ABSOLUTE, RELATIVE * np.abs(kl)) * 1.001).all()


def test_a_solver_that_did_not_settle_says_so():
    summary = summarise(run(narrow, MEANS, samples=200, most_steps=32), NONE)
    assert summary["solver"]["unsettled_states"] == 5
    assert any("not settled" in text for text in audit_report.sentences(summary))


def test_states_of_one_batch_are_refined_on_their_own_and_order_does_not_matter(monkeypatch):
    """Half of the states are narrow: only these are solved again; chunks of any size give the same numbers."""
    width = lambda s: jnp.where(s[:, :1] > 0, 0.02, 0.5)  # noqa: E731
    make = transport_of(
        lambda s: gaussian_velocity(jnp.zeros_like(s), width(s)), lambda s, a: 0.3 * width(s) + jnp.zeros_like(a)
    )
    states = np.array([[1.0, 0], [-1, 0], [1, 0], [-1, 0], [1, 0]])
    whole = run(make, states)
    assert (whole.moved.steps[[0, 2, 4]] > whole.moved.steps[1]).all()
    monkeypatch.setattr("fidec.audit.measure.ROWS", 2 * 64 * 3)  # two states at a time
    parts = run(make, states)
    np.testing.assert_allclose(parts.moved.log_ratio, whole.moved.log_ratio, atol=1e-3)
    np.testing.assert_array_equal(parts.moved.steps, whole.moved.steps)


# --- directions, the box, sentences -------------------------------------------------------------------------


def test_the_direction_is_relative_to_the_score():
    wide = jnp.array([0.5, 0.5])
    audit = run(gaussian(lambda _, a: -0.1 * a, sigma=wide), np.zeros((4, 2)))
    along = summarise(audit, NONE)["direction"]
    assert along["mean_cosine"] == pytest.approx(1, abs=1e-4)
    assert along["share_along_score"] == pytest.approx(1, abs=1e-4)
    turned = audit.moved._replace(displacement=audit.moved.displacement[..., ::-1] * [1, -1])
    across = summarise(audit._replace(moved=turned), NONE)["direction"]
    assert across["share_along_score"] == pytest.approx(0, abs=1e-4)
    assert across["share_if_isotropic"] == 0.5


def test_actions_outside_the_box_are_counted():
    means = np.tile([[0.9, 0.0]], (8, 1))
    make = gaussian(lambda _, a: jnp.zeros_like(a) + jnp.array([0.1, 0.0]), sigma=jnp.array([0.1, 0.1]))
    outside = summarise(run(make, means, samples=1000), NONE)["outside"]
    before, after = stats.norm.sf(1.0), 0.5  # one standard deviation, then none
    assert outside["base"]["components"] == pytest.approx(before / 2, abs=0.01)
    assert outside["base"]["actions"] == pytest.approx(before, abs=0.02)
    assert outside["refined"]["actions"] == pytest.approx(after, abs=0.02)
    assert outside["carried_out"] == pytest.approx((after - before) / 2, abs=0.01)


def test_the_sentences_say_budget_and_spending_in_either_unit():
    shift = lambda _, a: jnp.zeros_like(a) + jnp.array([0.3, 0.0])  # noqa: E731
    audit = run(gaussian(shift), MEANS)
    nats = audit_report.sentences(summarise(audit, NONE))[0]
    assert nats.startswith("The budget was 0.5 nats; the policy spends 0.")
    assert "more than 1 on" in nats
    assert " and 2 on 0 % of states" in nats
    other = audit._replace(budget=0.001, unit="of the penalty")
    text = audit_report.sentences(summarise(other, NONE))[0]
    assert text.startswith("Training held the penalty at 0.09 (budget 0.001); measured as KL the policy spends 0.")
    assert ", 2 on 0 % and 5 on 0 % of states" in text


def test_a_solve_that_blows_up_is_counted_and_left_out():
    def displacement(s, a):
        return jnp.where(s[:, :1] > 0.45, jnp.inf, 0.1) + jnp.zeros_like(a)

    summary = summarise(run(gaussian(displacement), MEANS, most_steps=32), NONE)
    assert summary["kl"]["not_finite_states"] == 1
    assert np.isfinite(summary["kl"]["mean"])
    assert any("not finite" in text for text in audit_report.sentences(summary))


def test_the_same_key_gives_the_same_numbers_and_another_does_not():
    first, again, other = (run(affine, MEANS, seed=seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first.moved.log_ratio, again.moved.log_ratio)
    assert not np.array_equal(first.moved.log_ratio, other.moved.log_ratio)


# --- neighbours ---------------------------------------------------------------------------------------------


def clusters(rows: int = 400, episode: int = 10):
    """Two far clusters of states with one action each; every trajectory stays in its own."""
    generator = np.random.default_rng(0)
    cluster = (np.arange(rows) // episode) % 2
    observations = np.stack([10.0 * cluster, np.zeros(rows)], -1) + generator.normal(0, 0.1, (rows, 2))
    return cluster, dataset_from_arrays(
        observations=observations.astype(np.float32),
        actions=np.where(cluster[:, None] > 0, 0.5, -0.5) * np.ones((rows, 2), np.float32),
        rewards=np.zeros(rows, np.float32),
        terminals=np.arange(rows) % episode == episode - 1,
    )


def test_distances_are_to_actions_of_similar_states_in_other_trajectories():
    cluster, data = clusters()
    rows = np.array([3, 17, 44, 399])
    near = neighbours.nearest_states(data, rows, np.random.default_rng(0))
    assert near.shape == (4, neighbours.NEIGHBOURS)
    assert (cluster[near] == cluster[rows][:, None]).all()
    assert (near // 10 != rows[:, None] // 10).all()
    base = np.tile(data.actions[rows][:, None], (1, 5, 1))
    shifted = base + np.array([0.3, 0.0])
    found = neighbours.distances(data, rows, base, shifted, seed=0)
    np.testing.assert_allclose(found["data"], 0, atol=1e-6)
    np.testing.assert_allclose(found["base"], 0, atol=1e-6)
    np.testing.assert_allclose(found["refined"], 0.3, atol=1e-6)
    outside = neighbours.distances(data, rows, base, np.full_like(base, 7.0), seed=0)["refined"]  # clipped to (1, 1)
    np.testing.assert_allclose(outside[:, 0], np.where(cluster[rows] > 0, 0.5, 1.5) * 2**0.5, atol=1e-6)


def test_with_one_trajectory_only_the_state_itself_is_left_out():
    _, data = clusters(rows=50, episode=50)
    rows = np.array([0, 49])
    near = neighbours.nearest_states(data, rows, np.random.default_rng(0))
    assert near.shape == (2, neighbours.NEIGHBOURS)
    assert (near != rows[:, None]).all()


@pytest.mark.slow
def test_the_picture_is_drawn_with_and_without_neighbours(tmp_path):
    audit = run(affine, MEANS)
    found = {"data": np.linspace(0, 1, 5), "base": np.ones((5, 4)), "refined": np.ones((5, 4))}
    for near in (found, NONE):
        audit_report.draw(audit, near, "title", tmp_path / "deep" / "audit.png")
        assert (tmp_path / "deep" / "audit.png").read_bytes().startswith(b"\x89PNG")
