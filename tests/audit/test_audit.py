"""The audit where the truth is known: Gaussian flows with affine maps, folds, and a landscape."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from fidec import algos
from fidec.algos.common.base import Transport
from fidec.audit.figures import draw
from fidec.audit.measure import ABSOLUTE, RELATIVE, Measurement, integrate, log_normal, measure
from fidec.audit.run import NEIGHBOURS, account_of, nearest_states, neighbour_distances, state_kl, summarise
from fidec.audit.text import sentences, trust_region_summary
from fidec.data import dataset_from_arrays
from fidec.geometry.landscapes import get
from fidec.ops import flow
from helpers.gaussians import gaussian_kl

SIGMA = (0.3, 0.5)
STRETCH, SHIFT = np.array([[0.3, 0.2], [-0.1, -0.2]]), np.array([0.1, -0.2])
KINDS = {
    "affine": {"matrix": STRETCH, "shift": SHIFT},
    "affine, other mean": {"mean": (0.5, -0.3), "matrix": STRETCH, "shift": SHIFT},
    "shift": {"shift": (0.15, 0.25)},
    "no displacement": {},
    "narrow": {"sigma": (0.02, 0.02), "shift": (0.02, 0.0)},
    "fold": {"sigma": (0.4, 0.4), "fold": 1.0},
    "towards the mean": {"sigma": (0.5, 0.5), "matrix": -0.1 * np.eye(2)},
    "near the bound": {"mean": (0.9, 0.0), "sigma": (0.1, 0.1), "shift": (0.1, 0.0)},
    "infinite": {"shift": (np.inf, 0.1)},
}
SAMPLES = 500


def observation(mean=(0, 0), sigma=SIGMA, matrix=0 * STRETCH, shift=(0, 0), fold=0.0) -> np.ndarray:
    return np.concatenate([mean, sigma, np.ravel(matrix), shift, [fold]]).astype(np.float32)


def gaussian_velocity(mean, sigma) -> flow.Velocity:
    """The exact flow of N(m, diag sigma^2): v = m + (t sigma^2 - (1 - t)) / (t^2 sigma^2 + (1 - t)^2) (x - t m)."""

    def velocity(x, t):
        gain = (t * sigma**2 - (1 - t)) / (t**2 * sigma**2 + (1 - t) ** 2)
        return mean + gain * (x - t * mean)

    return velocity


def transport(state, observations) -> Transport:
    """The observation holds the behaviour N(m, sigma^2) and the map a + B a + c, or |a| with fold = 1."""
    mean, sigma, matrix, shift, fold = jnp.split(observations, [2, 4, 8, 10], axis=-1)
    velocity = gaussian_velocity(mean, sigma)

    def displacement(a):
        return jnp.einsum("bij,bj->bi", matrix.reshape(-1, 2, 2), a) + shift + fold * (jnp.abs(a) - a)

    penalty = lambda a, key: jnp.sum(displacement(a) ** 2, axis=-1)  # noqa: E731
    base = lambda z: flow.sample(velocity, z)  # noqa: E731
    return Transport(velocity, base, displacement, penalty, 0.5, "nats", lambda a: a[:, 0])


def run(observations: np.ndarray, samples: int = SAMPLES, seed: int = 0, **options) -> Measurement:
    key = jax.random.key(seed)
    return measure(transport, None, observations, samples=samples, action_dim=2, key=key, **options)


@pytest.fixture(scope="module")
def everything() -> Measurement:
    """All kinds in one measurement: one compiled program."""
    return run(np.stack([observation(**kind) for kind in KINDS.values()]), most_steps=128)


@pytest.fixture
def of(everything):
    """of(kind, ...): the part of the measurement at these states."""

    def part(*kinds: str) -> Measurement:
        rows = [list(KINDS).index(kind) for kind in kinds]
        return jax.tree.map(lambda leaf: leaf[rows] if isinstance(leaf, np.ndarray) else leaf, everything)

    return part


def summary_of(measured: Measurement) -> dict:
    return summarise(measured, "not asked")


# --- the KL -------------------------------------------------------------------------------------------------


def test_the_kl_of_an_affine_map_is_the_closed_form_at_every_state(of):
    measured = of("affine", "affine, other mean")
    kl, error = state_kl(measured)
    means = np.array([[0.0, 0.0], [0.5, -0.3]])
    covariance, step = np.diag(np.square(SIGMA)), np.eye(2) + STRETCH
    truth = [gaussian_kl(step @ m + SHIFT, step @ covariance @ step.T, m, covariance) for m in means]
    assert np.ptp(truth) > 0.1  # the states differ
    assert (np.abs(kl - truth) < 4 * error).all()
    assert (error < 0.05).all()
    assert measured.moved.settled.all()
    # Without sampling noise: the log ratio of each action from the densities themselves.
    a, moved = measured.moved.actions, measured.moved.actions + measured.moved.displacement
    exact = (
        stats.norm.logpdf(a, means[:, None], SIGMA).sum(-1)
        - stats.norm.logpdf(moved, means[:, None], SIGMA).sum(-1)
        - np.linalg.slogdet(step)[1]
    )
    np.testing.assert_allclose(measured.moved.log_ratio, exact, atol=5e-3)
    assert summary_of(measured)["kl"]["contraction"] == pytest.approx(-np.linalg.slogdet(step)[1], abs=1e-4)


def test_a_shift_costs_half_its_squared_mahalanobis_length(of):
    summary = summary_of(of("shift"))
    truth = 0.25
    assert summary["kl"]["mean"] == pytest.approx(truth, abs=0.07)
    assert summary["kl"]["above"][0] == {"nats": 1.0, "share": 0.0, "share_by_two_errors": 0.0}
    assert summary["kl"]["folded_actions"] == 0
    assert summary["kl"]["contraction"] == pytest.approx(0.0, abs=1e-5)
    assert any(text.startswith("Of its mean, 0.2") for text in sentences(summary))
    # The log ratio is N(KL, 2 KL), so the standard error is known too.
    assert summary["kl"]["standard_error_of_a_state"] == pytest.approx(np.sqrt(2 * truth / SAMPLES), rel=0.15)
    assert summary["penalty"]["mean"] == pytest.approx(0.085, rel=1e-3)
    assert summary["displacement"]["rms"] == pytest.approx(0.085**0.5, rel=1e-3)
    np.testing.assert_allclose(summary["displacement"]["rms_of_each_dimension"], [0.15, 0.25], rtol=1e-4)


def test_no_displacement_costs_nothing(of):
    summary = summary_of(of("no displacement"))
    assert abs(summary["kl"]["mean"]) < 1e-3
    assert summary["direction"]["mean_cosine"] is None
    assert all(isinstance(text, str) for text in sentences(summary))


def test_a_map_that_folds_is_reported_and_its_kl_is_a_lower_bound(of):
    """a -> |a| makes a half-normal of a normal in each coordinate: the KL is 2 log 2, the formula gives 0."""
    summary = summary_of(of("fold"))
    assert summary["kl"]["folded_actions"] == pytest.approx(0.5, abs=0.05)
    assert summary["kl"]["folded_states"] == 1.0
    assert summary["kl"]["mean"] < 2 * np.log(2) - 1
    assert any("folds" in text and "WARNING" in text for text in sentences(summary))


def test_on_a_landscape_the_audit_agrees_with_its_exact_density():
    landscape = get("bimodal")

    def bend(a):
        return 0.12 * jnp.stack([jnp.sin(3 * a[:, 1]), jnp.cos(2 * a[:, 0])], -1)

    def bent(state, observations):
        return Transport(landscape.velocity, lambda z: z, bend, lambda a, key: a[:, 0], 0.5, "nats")

    measured = measure(bent, None, np.zeros((2, 2)), samples=200, action_dim=2, key=jax.random.key(0))
    actions = jnp.asarray(measured.moved.actions).reshape(-1, 2)
    jacobian = jax.vmap(jax.jacfwd(lambda a: bend(a[None])[0]))(actions)
    exact = (
        landscape.log_density(actions)
        - landscape.log_density(actions + bend(actions))
        - jnp.linalg.slogdet(jnp.eye(2) + jacobian)[1]
    )
    assert measured.moved.settled.all()
    assert exact.mean() > 0.2
    np.testing.assert_allclose(state_kl(measured)[0], exact.reshape(2, -1).mean(axis=1), atol=0.005, rtol=0.02)


# --- the solver ---------------------------------------------------------------------------------------------


def test_the_solver_is_of_fourth_order_and_its_density_is_that_of_the_flow():
    mean, sigma = jnp.array([0.3, -0.2]), jnp.array(SIGMA)
    velocity = gaussian_velocity(mean, sigma)
    z = jax.random.normal(jax.random.key(0), (64, 2))
    solve = jax.jit(lambda x, steps: integrate(velocity, x, steps))
    error = [float(jnp.abs(solve(z, steps)[0] - (mean + sigma * z)).max()) for steps in (4, 8, 16)]
    assert error[0] / error[1] > 10
    assert error[1] / error[2] > 10
    x, integral = solve(z, 32)
    np.testing.assert_allclose(integral, jnp.log(sigma).sum(), atol=1e-3)  # x = m + sigma z
    back, reverse = integrate(velocity, x, 32, backwards=True)
    np.testing.assert_allclose(back, z, atol=1e-3)
    np.testing.assert_allclose(log_normal(back) + reverse, log_normal(z) - integral, atol=2e-3)


def test_a_narrow_behaviour_takes_more_steps_and_is_right(of):
    measured = of("narrow")
    assert measured.moved.settled.all()
    assert measured.moved.steps[0] > of("affine").moved.steps[0]
    kl, error = state_kl(measured)
    assert np.abs(kl - 0.5) < 4 * error
    assert np.abs(measured.moved.change) <= np.maximum(ABSOLUTE, RELATIVE * np.abs(kl)) * 1.001


def test_chunks_of_any_size_give_the_same_numbers_and_unsettled_states_are_counted(everything, monkeypatch):
    monkeypatch.setattr("fidec.audit.measure.ROWS", 4 * SAMPLES * 3)  # four states at a time, one at the end
    parts = run(np.stack([observation(**kind) for kind in KINDS.values()]), most_steps=32)
    quick = everything.moved.steps == 32
    assert 1 < quick.sum() < len(KINDS)
    np.testing.assert_allclose(parts.moved.log_ratio[quick], everything.moved.log_ratio[quick], atol=1e-3)
    np.testing.assert_array_equal(parts.moved.settled, quick)
    summary = summary_of(parts)
    assert summary["solver"]["unsettled_states"] == (~quick).sum()
    assert any("not settled" in text for text in sentences(summary))


def test_the_same_key_gives_the_same_numbers_and_another_does_not():
    observations = np.stack([observation(**KINDS["shift"])])
    first, again, other = (run(observations, samples=8, seed=seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first.moved.log_ratio, again.moved.log_ratio)
    assert not np.array_equal(first.moved.log_ratio, other.moved.log_ratio)


# --- directions, bounds, sentences, figure ------------------------------------------------------------------


def test_the_direction_is_relative_to_the_score(of):
    measured = of("towards the mean")
    along = summary_of(measured)["direction"]
    assert along["mean_cosine"] == pytest.approx(1, abs=1e-4)
    assert along["share_along_score"] == pytest.approx(1, abs=1e-4)
    assert along["cosine_histogram"][-1] == SAMPLES
    turned = measured.moved._replace(displacement=measured.moved.displacement[..., ::-1] * [1, -1])
    across = summary_of(measured._replace(moved=turned))["direction"]
    assert across["share_along_score"] == pytest.approx(0, abs=1e-4)
    assert across["share_if_isotropic"] == 0.5


def test_actions_outside_the_bounds_are_counted(of):
    outside = summary_of(of("near the bound"))["outside"]
    before, after = stats.norm.sf(1.0), 0.5  # one standard deviation from the bound, then none
    assert outside["base"]["components"] == pytest.approx(before / 2, abs=0.02)
    assert outside["base"]["actions"] == pytest.approx(before, abs=0.04)
    assert outside["refined"]["actions"] == pytest.approx(after, abs=0.05)
    assert outside["carried_out"] == pytest.approx((after - before) / 2, abs=0.03)


def test_states_that_are_not_finite_are_counted_and_left_out(of):
    summary = summary_of(of("shift", "infinite"))
    assert summary["kl"]["not_finite_states"] == 1
    assert np.isfinite(summary["kl"]["mean"])
    assert any("not finite" in text for text in sentences(summary))
    assert sentences(summary_of(of("infinite")))[0].startswith("The KL could not be measured")


@pytest.mark.parametrize(
    ("nats", "words"),
    [
        (-0.001, "hardly moved, -0.001 nats: a larger budget can be tried"),
        (0.004, "hardly moved, 0.004 nats: a larger budget can be tried"),
        (0.16, "0.16 nats is a moderate distance"),
        (0.6, "0.6 nats is far"),
        (1.3, "1.3 nats may be too far"),
    ],
)
def test_a_kl_says_what_follows(of, nats, words):
    summary = summary_of(of("shift"))
    summary["kl"]["mean"] = nats
    assert words in sentences(summary)[1]


@pytest.mark.parametrize(
    ("penalties", "multipliers", "region", "words"),
    [
        ([3e-3, 1e-3, 9e-4], [10, 12], (1e-3, "of the penalty"), ["0.0009 at the end, budget 0.001 (not in nats)"]),
        ([3e-3, 1e-3, 9e-4], [10, 12], (1e-3, "of the penalty"), ["in 67 % of", "10 at first, 12 at the end. `"]),
        (
            [1e-5, 2e-5],
            [10, 8],
            (1e-3, "of the penalty"),
            ["far below its budget and the multiplier falls", "in 0 % of"],
        ),
        ([1e-5, 2e-5], [10, 0], (1e-3, "of the penalty"), ["multiplier is 0", "does not limit"]),
        ([1e-3, 5e-3], [10, 12], (1e-3, "of the penalty"), ["exceeds its budget and the multiplier rises"]),
        (
            [0.1, 0.01],
            [10, 2],
            (0.5, "nats"),
            ["moved 0.01 nats from the clone (budget 0.5). The policy has hardly moved", "far below its budget"],
        ),
        ([0.1, 1.4], [10, 2], (1.0, "nats"), ["1.4 nats may be too far", "`fidec audit RUN` measures the KL. `"]),
        (
            [0.1, 0.21],
            [10, 2],
            (0.2, "nats"),
            [
                "was within a factor of 2 of its budget in 100 % of",
                "`fidec select RUN --env ID` plays clone and policy with a few",
            ],
        ),
        ([0.1, 0.21], [10, 2], (0.2, "nats", True), ["`fidec select RUN` plays clone and policy"]),
        ([0.05, 0.05], [10, 2], (0.2, "nats", True, True), ["the multiplier falls: train longer. The distance"]),
    ],
)
def test_the_end_of_training_says_how_the_budget_was_used(penalties, multipliers, region, words):
    text = trust_region_summary(penalties, multipliers, *region)
    assert all(word in text for word in words), text
    assert ("estimate" in text) == (region[1] == "nats")  # nothing follows from a number that is not in nats


def test_budgets_and_their_units():
    assert algos.get("fidec").configure(constraint="stein", budget=0.2).trust_region() == (0.2, "nats")
    assert algos.get("fidec").configure("paper", budget=0.2).trust_region() == (0.2, "of the penalty")
    assert algos.get("deflow").configure(budget=0.2).trust_region() == (0.2, "of the penalty")


def test_the_first_sentence_has_budget_and_spending_in_either_unit(of):
    measured = of("shift", "affine")
    nats = sentences(summary_of(measured))[0]
    assert nats.startswith("The budget was 0.5 nats; the policy spends 0.")
    other = sentences(summary_of(measured._replace(budget=0.001, unit="of the penalty")))[0]
    assert other.startswith("Training kept the penalty at 0.")
    assert "5 at 0 % of states" in other


def test_the_figure_is_drawn_with_and_without_distances_and_finite_states(of, tmp_path):
    near = {"data": np.linspace(0, 1, 5), "base": np.ones((5, 4)), "refined": np.ones((5, 4))}
    for result in (summarise(of("shift", "affine"), near), summary_of(of("infinite"))):
        draw(result, "title", tmp_path / "new" / "audit.png")
        assert (tmp_path / "new" / "audit.png").read_bytes().startswith(b"\x89PNG")


# --- the account ----------------------------------------------------------------------------------------------


def test_the_account_of_a_choice_less_noise_and_a_shift_is_the_closed_form():
    """N(m, c^2 sigma^2), the best of N by the first component, moved by a constant."""
    noise, count, shift = 0.5, 4, np.array([0.15, 0.25])
    measured = run(observation(shift=shift)[None], noise_factor=noise, most_steps=32, samples=2000)
    parts = account_of(measured, count, noise)
    # log N(a) - log N(a + d) = (a d + d^2 / 2) / sigma^2, and the best first component has a mean above zero.
    best = stats.norm.expect(lambda z: z * count * stats.norm.cdf(z) ** (count - 1))
    expected = np.sum(shift**2 / 2 / np.square(SIGMA)) + noise * best * shift[0] / SIGMA[0]
    assert parts["moved"] == pytest.approx(expected, abs=0.03)
    assert parts["chose"] == pytest.approx(np.log(count) - (count - 1) / count, abs=0.01)
    # log N(z; c) - log N(z; 1) at the chosen draws, whose first component is the best of N.
    square = stats.norm.expect(lambda z: z**2 * count * stats.norm.cdf(z) ** (count - 1))
    assert parts["narrowed"] == pytest.approx(2 * np.log(2) - 0.375 * (square + 1), abs=0.02)
    # The KL of the policy that is played, by its density: N(z) N Phi(z)^(N - 1) in the first component.
    z = np.linspace(-9, 9, 200_001)
    played = count * stats.norm.pdf(z) * stats.norm.cdf(z) ** (count - 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = played * (np.log(played / noise) - stats.norm.logpdf(noise * z + shift[0] / SIGMA[0]))
    first = np.trapezoid(np.where(played > 0, terms, 0.0), z)
    second = np.log(2) - 0.375 + 0.5 * (shift[1] / SIGMA[1]) ** 2
    assert parts["total"] == pytest.approx(first + second, abs=0.05)
    assert parts["total"] == pytest.approx(parts["narrowed"] + parts["chose"] + parts["moved"])


def test_a_map_that_lays_one_mode_on_another_costs_nothing_by_the_formula_and_is_warned_of(of):
    measured = of("no displacement", "no displacement")
    generator = np.random.default_rng(0)
    shape = measured.moved.actions.shape
    sides = lambda: np.where(generator.random(shape[:2]) < 0.5, -3.0, 3.0)[..., None] * [1.0, 0.0]  # noqa: E731
    base, fresh = (sides() + 0.1 * generator.normal(size=shape) for _ in range(2))
    away = np.where(base[..., :1] < 0, 6.0, 0.0) * [1.0, 0.0]
    merged = measured.moved._replace(actions=base, displacement=away)  # its log ratio is that of no displacement
    summary = summary_of(measured._replace(moved=merged, fresh=fresh))
    assert summary["kl"]["mean"] == pytest.approx(0.0, abs=1e-4)
    assert summary["kl"]["by_neighbours"] == pytest.approx(np.log(2), abs=0.1)
    assert any("WARNING: by nearest neighbours" in text for text in sentences(summary))


def test_neighbours_agree_with_the_formula_where_no_modes_merge(of):
    for kind in ("shift", "affine", "no displacement", "narrow"):
        kl = summary_of(of(kind))["kl"]
        assert kl["by_neighbours"] == pytest.approx(kl["mean"], abs=0.15), kind
        assert not any("nearest neighbours" in text and "WARNING" in text for text in sentences(summary_of(of(kind))))


# --- neighbours ---------------------------------------------------------------------------------------------


def clusters(rows: int = 400, episode: int = 10):
    """Two distant clusters of states with one action each; every trajectory stays in one cluster."""
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
    near = nearest_states(data, rows, np.random.default_rng(0))
    assert near.shape == (4, NEIGHBOURS)
    assert (cluster[near] == cluster[rows][:, None]).all()
    assert (near // 10 != rows[:, None] // 10).all()
    base = np.tile(data.actions[rows][:, None], (1, 5, 1))
    shifted = base + np.array([0.3, 0.0])
    near = neighbour_distances(data, rows, base, shifted, seed=0)
    np.testing.assert_allclose(near["data"], 0, atol=1e-6)
    np.testing.assert_allclose(near["base"], 0, atol=1e-6)
    np.testing.assert_allclose(near["refined"], 0.3, atol=1e-6)
    outside = neighbour_distances(data, rows, base, np.full_like(base, 7.0), seed=0)["refined"]  # clipped to (1, 1)
    np.testing.assert_allclose(outside[:, 0], np.where(cluster[rows] > 0, 0.5, 1.5) * 2**0.5, atol=1e-6)


def test_with_one_trajectory_only_the_state_itself_is_left_out():
    _, data = clusters(rows=50, episode=50)
    rows = np.array([0, 49])
    near = nearest_states(data, rows, np.random.default_rng(0))
    assert near.shape == (2, NEIGHBOURS)
    assert (near != rows[:, None]).all()
