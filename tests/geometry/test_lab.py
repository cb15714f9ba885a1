"""The laboratory: what it measures against closed forms and quadrature, what it trains against itself run alone."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fidec.algos.constraints import Model, Move
from fidec.geometry import calibration, experiment, lab
from fidec.geometry.exact import gaussian_kl, grid
from fidec.geometry.landscapes import Landscape, get
from fidec.ops import fisher

SIZES = lab.Sizes(
    flow_hidden=(16,), flow_steps=30, map_hidden=(8,), map_steps=6, batch=16, pool=128, measured=256, chunk=6
)
KEY, N = jax.random.key(7), 20_000
BIMODAL = get("bimodal")
MEAN, COVARIANCE = np.array([0.2, -0.3]), np.array([[0.04, 0.012], [0.012, 0.09]])
GAUSSIAN = Landscape(
    name="gaussian",
    title="One Gaussian",
    means=MEAN[None],
    covariances=COVARIANCE[None],
    weights=np.ones(1),
    modes=np.zeros(1, int),
    mode_names=("only",),
    value=lambda a: a[..., 0],
)


@pytest.fixture(scope="module")
def flows(compile_cache) -> lab.Flows:
    """Two flows of the two modes. Nearly all of this file's time is compilation, so programs are kept."""
    return lab.fit(BIMODAL, 2, SIZES)


def shift(a: jax.Array) -> jax.Array:
    return jnp.broadcast_to(jnp.array([0.04, 0.15]), a.shape)


def stretch(a: jax.Array) -> jax.Array:
    return a @ jnp.array([[0.1, 0.05], [-0.04, 0.2]])  # (I + this) has the determinant 1.322


def quadrature(landscape: Landscape, of) -> tuple[float, float]:
    """E[of(a)] under the landscape, and the standard error of N samples of it."""
    points, weights = grid(landscape, 0.01)
    found, weights = np.asarray(of(points), np.float64), np.asarray(weights, np.float64)
    mean = float(weights @ found)
    return mean, math.sqrt(float(weights @ (found - mean) ** 2) / N)


# --- the truth of a given map --------------------------------------------------------------------------------------


def test_the_map_that_moves_nothing_costs_nothing():
    truth = lab.measure_map(BIMODAL, jnp.zeros_like, KEY, N)
    data = BIMODAL.sample(KEY, N)
    np.testing.assert_array_equal(truth.actions, data)
    assert float(truth.kl) == pytest.approx(0.0, abs=1e-6)
    assert float(truth.value) == pytest.approx(float(BIMODAL.value(data).mean()), rel=1e-6)
    assert float(truth.off) == float(BIMODAL.off_support(data).mean())
    assert (float(truth.displacement), float(truth.folded)) == (0.0, 0.0)
    np.testing.assert_allclose(truth.modes, [0.5, 0.5], atol=5 * 0.5 / math.sqrt(N))


@pytest.mark.parametrize(("move", "determinant"), [(shift, 1.0), (stretch, 1.1 * 1.2 + 0.05 * 0.04)])
def test_the_truth_of_a_map_is_that_of_quadrature(move, determinant):
    truth = lab.measure_map(BIMODAL, move, KEY, N)
    log_density, moved = BIMODAL.log_density, lambda a: a + move(a)
    expected = {
        "kl": lambda a: log_density(a) - log_density(moved(a)) - math.log(determinant),
        "value": lambda a: BIMODAL.value(moved(a)),
        "off": lambda a: BIMODAL.off_support(moved(a)),
    }
    for name, of in expected.items():
        mean, error = quadrature(BIMODAL, of)
        assert float(getattr(truth, name)) == pytest.approx(mean, abs=4 * error + 1e-6), name
    square, error = quadrature(BIMODAL, lambda a: jnp.sum(move(a) ** 2, axis=-1))
    assert float(truth.displacement) ** 2 == pytest.approx(square, abs=4 * error + 1e-6)
    assert float(truth.folded) == 0.0
    assert float(truth.kl) > 20 * quadrature(BIMODAL, expected["kl"])[1]  # so that the check above says something


@pytest.mark.parametrize("matrix", [np.eye(2), np.array([[1.3, 0.2], [-0.1, 0.8]])])
def test_the_kl_of_an_affine_map_of_a_gaussian_is_the_closed_form(matrix):
    offset = np.array([0.1, -0.05])
    exact = gaussian_kl(matrix @ MEAN + offset, matrix @ COVARIANCE @ matrix.T, MEAN, COVARIANCE)
    move = lambda a: a @ jnp.asarray(matrix - np.eye(2), jnp.float32).T + offset  # noqa: E731
    truth = lab.measure_map(GAUSSIAN, move, KEY, N)
    log_density = GAUSSIAN.log_density
    error = quadrature(GAUSSIAN, lambda a: log_density(a) - log_density(a + move(a)))[1]
    assert 4 * error < 0.1 * exact
    assert float(truth.kl) == pytest.approx(exact, abs=4 * error)
    assert float(truth.value) == pytest.approx((matrix @ MEAN + offset)[0], abs=4 * math.sqrt(0.08 / N))


def test_a_map_that_folds_is_flagged_and_its_kl_is_a_lower_bound():
    # x -> |x| lays one mode upon the other: the density doubles, which costs log 2, and the formula says nothing.
    fold = lambda a: jnp.stack([jnp.abs(a[..., 0]) - a[..., 0], jnp.zeros_like(a[..., 1])], axis=-1)  # noqa: E731
    truth = lab.measure_map(BIMODAL, fold, KEY, N)
    assert float(truth.folded) == pytest.approx(0.5, abs=5 * 0.5 / math.sqrt(N))
    np.testing.assert_array_equal(truth.modes, [0.0, 1.0])
    assert float(truth.kl) == pytest.approx(0.0, abs=1e-5)
    # All of the plane to one line: no volume is left.
    flat = lab.measure_map(BIMODAL, lambda a: a * jnp.array([0.0, -1.0]), KEY, 256)
    assert float(flat.folded) == 1.0


def test_an_exact_map_from_noise_to_a_gaussian_spends_nothing():
    noise = jax.random.normal(KEY, (N, 2))
    half = np.linalg.cholesky(COVARIANCE)
    policy = lambda z: z @ jnp.asarray(half, jnp.float32).T + MEAN  # noqa: E731
    truth = lab.measure_one_step(GAUSSIAN, policy, noise, policy(noise))
    assert float(truth.kl) == pytest.approx(0.0, abs=1e-5)
    assert (float(truth.displacement), float(truth.folded)) == (0.0, 0.0)
    # Twice as wide, against the closed form, and as far from the flow as it is from half of it.
    wide = lab.measure_one_step(GAUSSIAN, lambda z: policy(2 * z), noise, policy(noise))
    exact = gaussian_kl(MEAN, 4 * COVARIANCE, MEAN, COVARIANCE)
    # The integrand is 3/2 |z|^2 + constant, and |z|^2 has the variance 4.
    assert float(wide.kl) == pytest.approx(exact, abs=4 * 3 / math.sqrt(N))
    square = float(jnp.mean(jnp.sum((policy(noise) - MEAN) ** 2, axis=-1)))
    assert float(wide.displacement) == pytest.approx(math.sqrt(square), rel=1e-5)


# --- fitting and training -------------------------------------------------------------------------------------


def test_flows_have_a_leading_axis_of_seeds_and_a_time_among_the_candidates(flows):
    assert flows.noise.shape == flows.base.shape == (2, SIZES.pool, 2)
    assert flows.losses.shape == (2, len(fisher.DISTANCES))
    candidates = 1.0 - np.asarray(fisher.DISTANCES, np.float32)
    np.testing.assert_allclose(flows.t_eps, candidates[np.argmin(flows.losses, axis=1)], rtol=1e-6)
    assert not np.allclose(flows.base[0], flows.base[1])
    template = jax.eval_shape(lambda: lab.fit_template(BIMODAL, 2, SIZES))
    assert jax.tree.map(lambda a: (a.shape, a.dtype), template) == jax.tree.map(lambda a: (a.shape, a.dtype), flows)


@pytest.mark.slow
def test_seeds_and_budgets_together_are_each_alone(flows):
    entry = lab.Entry((1e-4, 1e-3, 1e-1), experiment.ENTRIES["renoised"].constraint)
    steps = []
    together = lab.train_maps(BIMODAL, flows, entry, replace(SIZES, chunk=3), steps.append)
    assert steps == [3, 3]
    assert together.penalty.shape == together.multiplier.shape == (2, 3)

    first = jax.tree.map(lambda leaf: leaf[:1], flows)
    alone = lab.train_maps(BIMODAL, first, lab.Entry(entry.budgets[1:2], entry.constraint), SIZES)
    expected = jax.tree.map(lambda leaf: leaf[:1, 1:2], together)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5), alone, expected)
    # They are different runs: seeds have their own start, budgets their own multiplier.
    kernel = together.params["params"]["Dense_0"]["kernel"]
    assert not np.allclose(kernel[0], kernel[1], atol=1e-2)
    assert np.all(np.diff(together.multiplier, axis=1) < 0)


def test_the_penalty_of_every_method_and_its_gradient_are_finite(flows):
    base = flows.base[0, :16]
    model = Model(
        anchors=BIMODAL.sample(KEY, 16),
        velocity=lab.velocity_of(SIZES, jax.tree.map(lambda leaf: leaf[0], flows.params)),
        sample=lambda noise: flows.base[0][(jax.scipy.stats.norm.cdf(noise[..., 0]) * SIZES.pool).astype(int)],
        t_eps=flows.t_eps[0],
    )

    def cost(matrix, constraint):
        move = lambda a: a @ matrix + 0.05  # noqa: E731
        costs = constraint.penalty(Move(move, base, move(base)), model, KEY)
        return costs.mean(), costs

    costs_of = jax.value_and_grad(cost, has_aux=True)
    matrix = 0.02 * jax.random.normal(KEY, (2, 2))
    all_of_them = jax.jit(
        lambda m: {name: costs_of(m, entry.constraint) for name, entry in experiment.ENTRIES.items()}
    )
    for name, ((mean, costs), gradient) in all_of_them(matrix).items():
        assert costs.shape == (16,), name
        assert np.isfinite(mean), name
        assert np.isfinite(gradient).all(), name
        assert np.any(gradient != 0.0), name
        if name not in ("path", "path_centred", "denoising"):
            assert np.all(np.asarray(costs) > 0.0), name  # squares; the other two are KLs only on average


def test_one_step_policies_are_measured_for_every_seed_and_weight_and_stored_as_rows(flows):
    weights = (1.0, 10.0, 100.0)
    params = lab.train_one_step(BIMODAL, flows, weights, SIZES)
    truth = lab.measure_one_steps(BIMODAL, params, flows, SIZES)
    assert truth.actions.shape == (2, 3, SIZES.pool, 2)  # no more than the pool has
    extra = np.arange(6.0).reshape(2, 3)
    rows = lab.rows(BIMODAL, "fql", "alpha", weights, truth, penalty=extra)
    assert [(row["seed"], row["budget"]) for row in rows] == [(s, w) for s in (0, 1) for w in weights]
    assert [row["penalty"] for row in rows] == list(range(6))
    head = {"landscape", "method", "budget", "unit", "seed"}
    assert set(rows[0]) == head | {"value", "kl", "off", "modes", "displacement", "folded", "penalty"}
    assert {(row["landscape"], row["method"], row["unit"]) for row in rows} == {("bimodal", "fql", "alpha")}
    assert rows == json.loads(json.dumps(rows))
    for row in rows:
        assert len(row["modes"]) == 2
        assert sum(row["modes"]) == pytest.approx(1.0)
        own = jax.tree.map(lambda leaf: leaf[row["seed"], weights.index(row["budget"])], truth)  # noqa: B023
        assert row["value"] == pytest.approx(float(BIMODAL.value(own.actions).mean()), rel=1e-5)
        assert row["kl"] == float(own.kl)


def test_the_closed_form_goes_as_far_as_its_budget_says(flows):
    budgets = (1e-4, 4e-4, 4e-2)
    once = lab.measure_closed_form(BIMODAL, flows, budgets, 1, SIZES)
    assert once.actions.shape == (2, 3, SIZES.measured, 2)
    assert once.kl.shape == once.value.shape == (2, 3)
    assert once.modes.shape == (2, 3, 2)
    # A quadratic form: four times the budget is twice the way, in the same direction.
    distance = np.asarray(once.displacement)
    np.testing.assert_allclose(distance[:, 1:] / distance[:, :-1], [[2.0, 10.0]] * 2, rtol=1e-4)
    data = float(BIMODAL.value(BIMODAL.sample(jax.random.key(2**31 - 1), SIZES.measured)).mean())
    assert np.all(np.asarray(once.value)[:, :2] > data)


# --- calibration ----------------------------------------------------------------------------------------------


@pytest.fixture
def short(monkeypatch):
    monkeypatch.setattr(calibration, "CONSTRAINTS", {"stein": calibration.CONSTRAINTS["stein"]})
    monkeypatch.setattr(calibration, "BUDGETS", (0.1, 3.0))

    def times(*fixed: float) -> None:
        monkeypatch.setattr(calibration, "TIMES", fixed)

    return times


@pytest.mark.slow
def test_calibration_trains_with_the_chosen_time_and_with_fixed_ones(flows, short):
    short(0.5, 0.9)
    lines = []
    (row,) = calibration.run(["bimodal"], seeds=2, sizes=SIZES, flows_of=lambda name: flows, report=lines.append)
    assert lines == ["bimodal, stein"]
    keys = {"landscape", "constraint", "data", "chosen", "value", "best", "share_of_value", "share_of_gain"}
    assert set(row) == keys
    assert (row["landscape"], row["constraint"]) == ("bimodal", "stein")
    assert row["chosen"] == pytest.approx(np.asarray(flows.t_eps).tolist(), abs=1e-4)
    assert set(row["value"]) == {"auto", "0.5", "0.9"}
    assert all(np.isfinite(value) for value in row["value"].values())
    expected, error = quadrature(BIMODAL, BIMODAL.value)
    assert row["data"] == pytest.approx(expected, abs=4 * error * math.sqrt(N / 8192))
    assert row == json.loads(json.dumps(row))


def test_calibration_compares_values_at_one_nat(flows, short, monkeypatch, tmp_path):
    """With made-up results: the value at one nat is 1 - |t - 0.8|, and runs at t = 0.99 all spend more."""
    short(0.7, 0.9, 0.99)
    monkeypatch.setattr(lab, "train_maps", lambda landscape, own, *_: own.t_eps)

    def measure(landscape: Landscape, times: jax.Array, sizes: lab.Sizes) -> lab.Truth:
        value = jnp.repeat(1.0 - jnp.abs(times[:, None] - 0.8), 2, axis=1)
        kl = jnp.where(times[:, None] > 0.95, jnp.array([[2.0, 3.0]]), jnp.array([[0.5, 4.0]]))
        zero = jnp.zeros_like(value)
        return lab.Truth(jnp.zeros((*value.shape, 4, 2)), value, kl, zero, zero[..., None], zero, zero)

    monkeypatch.setattr(lab, "measure_maps", measure)
    chosen = flows._replace(t_eps=jnp.array([0.75, 0.65]))
    (row,) = calibration.run(["bimodal"], seeds=2, sizes=SIZES, flows_of=lambda name: chosen)
    assert row["value"] == pytest.approx({"auto": 0.9, "0.7": 0.9, "0.9": 0.9, "0.99": None}, abs=1e-6)
    assert row["chosen"] == [0.75, 0.65]
    assert row["share_of_value"] == pytest.approx(1.0)
    picture = calibration.draw([row], tmp_path / "pictures" / "calibration.png")
    assert picture.read_bytes().startswith(b"\x89PNG")

    short(0.99)
    (row,) = calibration.run(["bimodal"], seeds=2, sizes=SIZES, flows_of=lambda name: chosen)
    assert (row["best"], row["share_of_value"], row["share_of_gain"]) == (None, None, None)
    short(0.8)
    (row,) = calibration.run(["bimodal"], seeds=2, sizes=SIZES, flows_of=lambda name: chosen)
    assert (row["best"], row["share_of_value"]) == ("0.8", pytest.approx(0.9))
    assert row["share_of_gain"] == pytest.approx((0.9 - row["data"]) / (1 - row["data"]), rel=1e-5)
