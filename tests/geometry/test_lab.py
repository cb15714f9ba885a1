"""The laboratory: measurements against closed forms and quadrature, training of many runs against single runs."""

from __future__ import annotations

import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fidec.algos.constraints import Model, Move
from fidec.algos.constraints.renoised import Renoised
from fidec.geometry import calibration, lab
from fidec.geometry.experiment import Result
from fidec.geometry.landscapes import Landscape, get, grid
from fidec.geometry.methods import CONSTRAINTS
from fidec.ops import fisher
from fidec.store.schema import check
from helpers.gaussians import gaussian_kl

SIZES = lab.Sizes(flow_hidden=(16,), flow_steps=30, map_hidden=(8,), map_steps=6, batch=16, pool=128, measured=256)
KEY, N = jax.random.key(7), 10_000
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
def flows() -> lab.Flows:
    return lab.fit(BIMODAL, 2, SIZES)


@pytest.fixture(scope="module")
def affine():
    """affine(landscape)(matrix, offset): the measurement of a -> matrix a + offset, compiled once a landscape."""

    def compiled(landscape: Landscape):
        def measure(matrix, offset) -> lab.Truth:
            return lab.measure_map(landscape, lambda a: a @ (matrix - jnp.eye(2)).T + offset, KEY, N)

        return jax.jit(measure)

    return {landscape.name: compiled(landscape) for landscape in (BIMODAL, GAUSSIAN)}


# --- measuring a given map -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("matrix", "offset"),
    [
        (np.eye(2), np.zeros(2)),
        (np.eye(2), np.array([0.04, 0.15])),
        (np.array([[1.1, -0.04], [0.05, 1.2]]), np.zeros(2)),
    ],
    ids=["identity", "shift", "stretch"],
)
def test_the_measurement_of_a_map_is_that_of_quadrature(affine, matrix, offset):
    truth = affine["bimodal"](matrix, offset)
    points, weights = grid(BIMODAL, 0.02)
    weights = np.asarray(weights, np.float64)
    moved = points @ jnp.asarray(matrix, jnp.float32).T + jnp.asarray(offset, jnp.float32)
    change = BIMODAL.log_density(points) - BIMODAL.log_density(moved) - math.log(np.linalg.det(matrix))
    expected = {
        "kl": change,
        "value": BIMODAL.value(moved),
        "off": BIMODAL.off_support(moved),
        "displacement": jnp.sum((moved - points) ** 2, axis=-1),
    }
    for name, values in expected.items():
        values = np.asarray(values, np.float64)
        mean = float(weights @ values)
        error = math.sqrt(float(weights @ (values - mean) ** 2) / N)
        measured = float(getattr(truth, name)) ** (2 if name == "displacement" else 1)
        assert measured == pytest.approx(mean, abs=4 * error + 1e-5), name
    assert float(truth.folded) == 0.0
    np.testing.assert_allclose(truth.modes, [0.5, 0.5], atol=0.03)


@pytest.mark.parametrize("matrix", [np.eye(2), np.array([[1.3, 0.2], [-0.1, 0.8]])], ids=["shift", "affine"])
def test_the_kl_of_an_affine_map_of_a_gaussian_is_the_closed_form(affine, matrix):
    offset = np.array([0.1, -0.05])
    exact = gaussian_kl(matrix @ MEAN + offset, matrix @ COVARIANCE @ matrix.T, MEAN, COVARIANCE)
    truth = affine["gaussian"](matrix, offset)
    assert float(truth.kl) == pytest.approx(exact, rel=0.1)
    assert float(truth.value) == pytest.approx((matrix @ MEAN + offset)[0], abs=4 * math.sqrt(0.08 / N))


def test_a_map_that_folds_is_flagged_and_its_kl_is_a_lower_bound():
    # x -> |x| puts one mode onto the other: the density doubles, so the KL is log 2, and the formula gives 0.
    def fold(a):
        return jnp.stack([jnp.abs(a[..., 0]) - a[..., 0], jnp.zeros_like(a[..., 1])], axis=-1)

    truth = jax.jit(lambda: lab.measure_map(BIMODAL, fold, KEY, N))()
    assert float(truth.folded) == pytest.approx(0.5, abs=5 * 0.5 / math.sqrt(N))
    np.testing.assert_array_equal(truth.modes, [0.0, 1.0])
    assert float(truth.kl) == pytest.approx(0.0, abs=1e-5)


def test_an_exact_map_from_noise_to_a_gaussian_costs_nothing():
    noise = jax.random.normal(KEY, (N, 2))
    half = jnp.asarray(np.linalg.cholesky(COVARIANCE), jnp.float32)

    @jax.jit
    def measure(width):
        policy = lambda z: width * z @ half.T + MEAN  # noqa: E731
        return lab.measure_one_step(GAUSSIAN, policy, noise, noise @ half.T + MEAN)

    truth, wide = measure(1.0), measure(2.0)
    assert float(truth.kl) == pytest.approx(0.0, abs=1e-5)
    assert float(truth.folded) == 0.0
    assert float(truth.displacement) == pytest.approx(0.0, abs=1e-6)
    # Twice as wide: the integrand of the KL is 3/2 |z|^2 + constant, and |z|^2 has the variance 4.
    exact = gaussian_kl(MEAN, 4 * COVARIANCE, MEAN, COVARIANCE)
    assert float(wide.kl) == pytest.approx(exact, abs=4 * 3 / math.sqrt(N))


# --- fitting and training -------------------------------------------------------------------------------------


def test_flows_have_an_axis_of_seeds_and_a_time_among_the_candidates(flows):
    assert flows.noise.shape == flows.base.shape == (2, SIZES.pool, 2)
    assert flows.losses.shape == (2, len(fisher.DISTANCES))
    candidates = 1.0 - np.asarray(fisher.DISTANCES, np.float32)
    np.testing.assert_allclose(flows.t_eps, candidates[np.argmin(flows.losses, axis=1)], rtol=1e-6)
    assert not np.allclose(flows.base[0], flows.base[1])
    template = jax.eval_shape(lambda: lab.fit_template(BIMODAL, 2, SIZES))
    assert jax.tree.map(lambda a: (a.shape, a.dtype), template) == jax.tree.map(lambda a: (a.shape, a.dtype), flows)


# The mean penalty of each constraint for the map and the keys of the test below.
RECORDED = {
    "isotropic": 0.00252714,
    "local": 0.00257553,
    "velocity": 0.00241841,
    "averaged": 0.00244906,
    "information": 0.150385,
    "renoised": 0.00233936,
    "precision": 0.0386625,
    "stein": 0.0614859,
    "path": 0.0259581,
    "path_centred": 0.160421,
    "denoising": 0.016365,
}


def test_the_penalty_of_every_constraint_has_its_recorded_value_and_a_finite_gradient():
    pool = BIMODAL.sample(jax.random.key(1), 64)
    model = Model(
        BIMODAL.velocity,
        lambda noise: pool[(jax.scipy.stats.norm.cdf(noise[..., 0]) * len(pool)).astype(int)],
        anchors=pool[16:32],
        t_eps=0.95,
    )

    def cost(matrix, constraint):
        field = lambda a: a @ matrix + 0.05  # noqa: E731
        costs = constraint.penalty(Move(field, pool[:16], field(pool[:16])), model, KEY)
        return costs.mean(), costs

    costs_of = jax.value_and_grad(cost, has_aux=True)
    every = jax.jit(lambda m: {name: costs_of(m, constraint) for name, constraint in CONSTRAINTS.items()})
    results = every(0.02 * jax.random.normal(KEY, (2, 2)))
    for name, ((mean, costs), gradient) in results.items():
        assert costs.shape == (16,), name
        assert np.isfinite(gradient).all(), name
        assert np.any(gradient != 0.0), name
        assert float(mean) == pytest.approx(RECORDED[name], rel=1e-3), name


@pytest.mark.slow
def test_seeds_and_budgets_together_equal_each_alone(flows):
    constraint, budgets = CONSTRAINTS["renoised"], (1e-4, 1e-3, 1e-1)
    together = lab.train_maps(BIMODAL, flows, constraint, budgets, SIZES)
    assert together.penalty.shape == together.multiplier.shape == (2, 3)
    first = jax.tree.map(lambda leaf: leaf[:1], flows)
    alone = lab.train_maps(BIMODAL, first, constraint, budgets[1:2], SIZES)
    expected = jax.tree.map(lambda leaf: leaf[:1, 1:2], together)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5), alone, expected)
    # They are different runs: each seed has its own start, each budget its own multiplier.
    kernel = together.params["params"]["Dense_0"]["kernel"]
    assert not np.allclose(kernel[0], kernel[1], atol=1e-2)
    assert np.all(np.diff(together.multiplier, axis=1) < 0)


def test_one_step_policies_are_measured_for_every_seed_and_weight_and_stored_as_rows(flows):
    weights = (1.0, 100.0)
    params = lab.train_one_step(BIMODAL, flows, weights, SIZES)
    truth = lab.measure_one_steps(BIMODAL, params, flows, SIZES)
    assert truth.actions.shape == (2, 2, SIZES.pool, 2)  # no more than the pool has
    rows = lab.rows(BIMODAL, "fql", "alpha", weights, truth, penalty=np.arange(4.0).reshape(2, 2))
    assert [(row["seed"], row["budget"]) for row in rows] == [(s, w) for s in (0, 1) for w in weights]
    assert [row["penalty"] for row in rows] == list(range(4))
    assert {(row["landscape"], row["method"], row["unit"]) for row in rows} == {("bimodal", "fql", "alpha")}
    assert rows == json.loads(json.dumps(rows))
    check(
        {"rows": rows, "drawn": rows[0], "samples": [[0.0, 0.0]]}, Result
    )  # what a stored result is checked against
    for row, value, kl in zip(rows, np.ravel(truth.value), np.ravel(truth.kl), strict=True):
        assert (row["value"], row["kl"]) == (float(value), float(kl))
        assert sum(row["modes"]) == pytest.approx(1.0)


@pytest.mark.slow
def test_the_closed_form_goes_as_far_as_its_budget_allows(flows):
    budgets = (1e-4, 4e-4, 4e-2)
    truth = lab.measure_closed_form(BIMODAL, flows, Renoised(t_eps="auto", samples=16), budgets, 1, SIZES)
    assert truth.actions.shape == (2, 3, SIZES.measured, 2)
    # A quadratic form: four times the budget is twice the distance, in the same direction.
    distance = np.asarray(truth.displacement)
    np.testing.assert_allclose(distance[:, 1:] / distance[:, :-1], [[2.0, 10.0]] * 2, rtol=1e-4)
    data = float(BIMODAL.value(BIMODAL.sample(jax.random.key(lab.MEASURE_KEY), SIZES.measured)).mean())
    assert np.all(np.asarray(truth.value)[:, :2] > data)


@pytest.mark.slow
def test_calibration_trains_with_the_chosen_time_and_with_fixed_ones(monkeypatch):
    for name, value in {"NAMES": ("stein",), "BUDGETS": (0.1, 3.0), "TIMES": (0.5, 0.9)}.items():
        monkeypatch.setattr(calibration, name, value)
    lines = []
    (row,) = calibration.run(["bimodal"], seeds=2, sizes=SIZES, report=lines.append)
    assert lines == ["bimodal, stein"]
    assert (row["landscape"], row["constraint"]) == ("bimodal", "stein")
    assert set(row["value"]) == {"auto", "0.5", "0.9"}
    assert all(np.isfinite(value) for value in row["value"].values())
    assert row == json.loads(json.dumps(row))
