"""FiDec, DeFlow and the closed form: the multiplier, the constraints, the calibrated time, the transport."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fidec import algos, nn
from fidec.algos import constraints
from fidec.algos.common.multiplier import STEP_SIZE
from fidec.algos.constraints import CONSTRAINTS, KL
from fidec.algos.fidec import make
from fidec.errors import ConfigError
from fidec.ops import fisher
from fidec.register import Register
from fidec.types import Batch, Spec
from helpers import some
from helpers.algorithms import assert_close, equal, fast_jit, make_batch, scaled, with_params

ROWS = 6
SPEC = Spec((4,), 3)
CRITIC: Any = nn.Critic((16,))
RESIDUAL: Any = nn.ResidualMap((16,), 3)
SMALL = {"hidden": (16,), "flow_steps": 2}
CASES: dict[str, tuple[str, Any]] = {name: ("fidec", {"constraint": name}) for name in CONSTRAINTS.builtin()}
CASES["auto"] = ("fidec", {"constraint": "denoising", "t_eps": "auto"})
CASES["closed_form"] = ("fidec_closed_form", {"refine_steps": 2})
CASES["paper"] = ("fidec", {"preset": "paper"})
CASES["controlled"] = (
    "fidec",
    {
        "constraint": "isotropic",
        "multiplier": "controlled",
        "warmup": 4,
        "zero_init": True,
        "q_scale": "spread",
        "train_flow": False,
    },
)
CASES["clipped"] = ("fidec", {"preset": "released", "grad_clip": 0.01, "train_flow": False})


@pytest.fixture(autouse=True)
def calibrate_at_every_second_update(monkeypatch):
    monkeypatch.setattr(constraints, "CALIBRATE_EVERY", 2)


@cache
def algorithm(case):
    name, options = CASES[case]
    return algos.make(name, SPEC, **SMALL, **options)


@cache
def update(case):
    return fast_jit(algorithm(case).update)


@cache
def fresh(case):
    return fast_jit(algorithm(case).init)(jax.random.key(0))


def batch(seed=0, **columns):
    return make_batch(ROWS, actions=3, seed=seed, masks=np.ones(ROWS), **columns)


def test_fidec_with_the_isotropic_constraint_is_deflow():
    """An update is the same program, operation by operation."""

    def program(name, **options):
        made = algos.make(name, SPEC, hidden=(16,), flow_steps=2, **options)
        state = jax.eval_shape(made.init, jax.random.key(0))
        return str(jax.make_jaxpr(made.update)(state, batch(), jax.random.key(0)))

    assert program("fidec", constraint="isotropic") == program("deflow")


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, marks=() if case == "renoised" else pytest.mark.slow)
        for case in (*CONSTRAINTS.builtin(), "auto", "closed_form")
    ],
)
def test_an_update_is_finite_and_the_transport_has_the_penalty_and_its_budget(case):
    after, metrics = update(case)(fresh(case), batch(), jax.random.key(1))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((after, metrics)))

    @fast_jit
    def measure(state, observations, noise):
        transport = some(algorithm(case).transport)(state, observations)
        base = transport.base(noise)
        return base, transport.displacement(base), transport.penalty(base, jax.random.key(3))

    state = algorithm(case).policy(after)
    base, displacement, penalty = measure(
        state, batch().observations, jax.random.normal(jax.random.key(2), (ROWS, 3))
    )
    assert base.shape == displacement.shape == (ROWS, 3)
    assert penalty.shape == (ROWS,)
    assert np.isfinite(penalty).all()
    transport = some(algorithm(case).transport)(state, batch().observations)
    constraint = CASES[case][1].get("constraint", "renoised")
    nats = constraint in ("precision", "information") or issubclass(CONSTRAINTS.get(constraint), KL)
    assert (transport.unit, transport.budget) == (("nats", 0.5) if nats else ("of the penalty", 0.001))


def test_a_misspelled_constraint_is_named():
    with pytest.raises(ConfigError, match="no constraint 'renoise'; did you mean renoised"):
        algos.make("fidec", SPEC, constraint="renoise")


@pytest.mark.parametrize("case", ["renoised", "paper"])
def test_the_multiplier_rises_with_a_violation_and_falls_without(case):
    state, config = fresh(case), algos.get("fidec").configure(CASES[case][1].get("preset", "recommended"))
    for factor, sign in ((10.0, 1), (0.0, -1)):
        moved = with_params(state, residual=scaled(state.params["residual"], factor))
        after, metrics = update(case)(moved, batch(), jax.random.key(1))
        violation = float(metrics["penalty"]) - config.trust_region()[0]
        assert np.sign(violation) == sign
        step = float(after.params["multiplier"] - state.params["multiplier"])
        expected = sign * config.learning_rate if config.multiplier == "log" else violation * STEP_SIZE
        assert step == pytest.approx(expected, rel=2e-2)
        assert float(metrics["multiplier"]) == pytest.approx(config.multiplier_init, rel=1e-5)


def test_a_controlled_multiplier_follows_the_ratio_of_penalty_and_budget():
    """At the first of four updates a quarter of the budget is open. A map that starts at zero spends none."""
    state = fresh("controlled")
    base, actions = (
        some(algorithm("controlled").act_with_base)(state, batch().observations, jax.random.key(5))[i] for i in (1, 0)
    )
    assert np.array_equal(base, actions)
    after, metrics = update("controlled")(state, batch(), jax.random.key(1))
    assert float(metrics["penalty"]) == 0.0
    assert float(after.params["multiplier"]) == pytest.approx(10.0 * np.exp(-0.01))
    assert float(metrics["multiplier"]) == pytest.approx(10.0 / np.e)
    # A constant displacement of 0.02 spends 0.0004, which is 1.6 of the open budget.
    last = state.params["residual"]["params"]["MLP_0"]
    shifted = {**last, "Dense_1": {**last["Dense_1"], "bias": jnp.full_like(last["Dense_1"]["bias"], 0.02)}}
    moved = with_params(state, residual={"params": {"MLP_0": shifted}})
    after, metrics = update("controlled")(moved, batch(), jax.random.key(1))
    assert float(metrics["penalty"]) == pytest.approx(0.0004, rel=1e-4)
    assert float(metrics["multiplier"]) == pytest.approx(10.0 * 1.6, rel=1e-4)
    assert float(after.params["multiplier"]) == pytest.approx(10.0 * 1.6**0.01, rel=1e-5)
    # 0.03 spends 0.0009, which is 3.6: the proportional part is limited to a factor of e.
    shifted = {**last, "Dense_1": {**last["Dense_1"], "bias": jnp.full_like(last["Dense_1"]["bias"], 0.03)}}
    _, metrics = update("controlled")(
        with_params(state, residual={"params": {"MLP_0": shifted}}), batch(), jax.random.key(1)
    )
    assert float(metrics["penalty"]) == pytest.approx(0.0009, rel=1e-4)
    assert float(metrics["multiplier"]) == pytest.approx(10.0 * np.e, rel=1e-4)


def test_a_projected_multiplier_reaches_zero():
    small = jnp.asarray(5e-4, jnp.float32)
    idle = with_params(fresh("paper"), residual=scaled(fresh("paper").params["residual"], 0.0), multiplier=small)
    assert float(update("paper")(idle, batch(), jax.random.key(1))[0].params["multiplier"]) == 0.0


@pytest.mark.parametrize("stored", [False, True])
def test_a_residual_loss_of_ones_own_replaces_the_built_in_one(stored):
    """It gets the networks, the base actions and the budget, and the multiplier follows the penalty that it logs."""

    def towards(nets, base, known, budget, key, own, params):
        displacement = nets.residual.apply(own, base.observations, base.actions)
        loss = jnp.mean((displacement - 0.1) ** 2)
        return loss, {"penalty": jnp.asarray(3.0 * budget), "states": base.observations, "base": base.actions}

    state, data = fresh("isotropic"), batch()
    if stored:
        data = data._replace(proposals={"actions": 0.5 * data.next_actions[:, None]})
    config = algos.get("fidec").configure(constraint="isotropic", **SMALL)
    after, metrics = fast_jit(make(config, SPEC, residual_loss=towards).update)(state, data, jax.random.key(1))
    base = metrics["base"]
    if stored:
        assert equal((metrics["states"], base), (data.next_observations, 0.5 * data.next_actions))
    else:
        assert equal(metrics["states"], data.observations)
    measured = lambda own: jnp.mean((RESIDUAL.apply(own, metrics["states"], base) - 0.1) ** 2)  # noqa: E731
    loss, gradient = jax.value_and_grad(measured)(state.params["residual"])
    assert float(metrics["residual_loss"]) == pytest.approx(float(loss), rel=1e-5)
    assert float(metrics["grad_norm/residual"]) == pytest.approx(float(optax.tree.norm(gradient)), rel=1e-4)
    assert "q_policy" not in metrics
    assert after.params["multiplier"] > state.params["multiplier"]
    assert not equal(after.params["critic"], state.params["critic"])


@pytest.mark.slow
def test_the_budget_in_nats_drives_the_multiplier():
    """The penalty of a large displacement exceeds the budget of 0.5 nats, that of none does not."""
    moves = []
    for factor in (100.0, 0.0):
        state = with_params(fresh("stein"), residual=scaled(fresh("stein").params["residual"], factor))
        after, _ = update("stein")(state, batch(), jax.random.key(1))
        moves.append(float(after.params["multiplier"] - state.params["multiplier"]))
    assert moves[0] > 0 > moves[1]


@pytest.mark.slow
def test_a_negative_estimate_of_a_kl_counts_as_a_violation(monkeypatch):
    """A KL is not negative. If a lower estimate were rewarded, training would seek its bias."""

    class Biased(KL):
        def penalty(self, move, model, key):
            return move.displacement[:, 0] - 3.0

    builtin = Register.get
    monkeypatch.setattr(Register, "get", lambda self, name: Biased if name == "biased" else builtin(self, name))
    config = algos.get("fidec").configure(constraint="biased", hidden=(4,), flow_steps=1)
    made = make(config, SPEC)
    state = fast_jit(made.init)(jax.random.key(0))
    state = with_params(
        state, residual=scaled(state.params["residual"], 0.0), critic=scaled(state.params["critic"], 0.0)
    )
    after, metrics = fast_jit(made.update)(state, batch(), jax.random.key(1))
    assert float(metrics["penalty"]) == 3.0
    assert after.params["multiplier"] > state.params["multiplier"]
    # The gradient of the last layer's biases: the first one rises, towards zero nats.
    moments = optax.tree.get(after.optimiser["residual"], "mu")["params"]["MLP_0"]["Dense_1"]["bias"]
    np.testing.assert_allclose(moments, [-0.1 * config.multiplier_init, 0.0, 0.0], rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "multiplier"), [("path", 0.1), ("denoising", 10.0)])
def test_a_kl_of_narrow_behaviour_in_many_dimensions_stays_near_its_budget(name, multiplier):
    """Behaviour that is much narrower than 1 - t_eps, in more dimensions than have an exact determinant."""
    rows, d = 4096, 12
    rng = np.random.default_rng(0)
    observations, following = rng.normal(size=(2, rows, 6))
    centres = np.tanh(observations @ rng.normal(0, 1 / 3, size=(6, d)))
    actions = np.clip(centres + 0.02 * rng.normal(size=(rows, d)), -1, 1)
    columns = (observations, actions, actions[:, 0], np.ones(rows), following, actions)
    columns = [jnp.asarray(column, jnp.float32) for column in columns]
    made = algos.make(
        "fidec", Spec((6,), d), constraint=name, hidden=(64, 64), learning_rate=1e-3, multiplier_init=multiplier
    )

    def step(state, key):
        chosen = jax.random.randint(key, (128,), 0, rows)
        return made.update(state, Batch(*(column[chosen] for column in columns)), jax.random.fold_in(key, 1))

    @jax.jit
    def run(key):
        return jax.lax.scan(step, made.init(key), jax.random.split(key, 1000))

    state, metrics = run(jax.random.key(0))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((state, metrics)))
    assert 0 <= metrics["penalty"][-500:].mean() < 2.0
    assert metrics["displacement"][-500:].mean() < 1.0


def test_in_the_papers_order_modules_see_those_before_them_updated():
    usual, _ = update("paper")(fresh("paper"), batch(), jax.random.key(1))
    other, _ = update("paper")(fresh("paper"), batch(rewards=np.full(ROWS, -9.0)), jax.random.key(1))
    differ = {name for name in usual.params if not equal(usual.params[name], other.params[name])}
    assert differ == {"critic", "residual"}  # the critic by its target, the residual by the critic


@pytest.mark.slow
def test_a_frozen_flow_does_not_count_in_the_norm_that_clips_the_others():
    state = fresh("clipped")
    after, metrics = update("clipped")(state, batch(), jax.random.key(1))
    norms = {name: float(metrics[f"grad_norm/{name}"]) for name in ("critic", "residual", "multiplier")}
    together = np.sqrt(sum(norm**2 for norm in norms.values()))
    assert together > 0.01
    for name, norm in norms.items():
        moments = jax.tree.leaves(after.optimiser[name][0].mu)  # a tenth of the first gradient
        moment = np.sqrt(sum(float(jnp.sum(leaf**2)) for leaf in moments))
        assert moment == pytest.approx(0.1 * norm * 0.01 / together, rel=1e-3)
    assert equal(after.optimiser["flow"], state.optimiser["flow"])


def test_the_time_is_calibrated_when_due_and_is_used():
    state, times = fresh("auto"), []
    for i in range(4):
        state, metrics = update("auto")(state, batch(), jax.random.key(i))
        times.append(float(metrics["t_eps"]))
        assert float(state.params["t_eps"]) == times[-1]
    assert times[0] == times[1] == pytest.approx(0.8)  # steps 0 and 1: not yet
    assert min(abs(1 - np.asarray(fisher.DISTANCES, np.float32) - times[2])) < 1e-6
    assert times[3] == times[2]
    late = [with_params(fresh("auto"), t_eps=jnp.float32(t)) for t in (0.6, 0.9)]
    costs = [update("auto")(state, batch(), jax.random.key(1))[1]["penalty"] for state in late]
    assert costs[0] != costs[1]


def test_acting_moves_the_flows_action_and_takes_the_best_of_several():
    made, state, key = algorithm("renoised"), fresh("renoised"), jax.random.key(4)
    observations = batch().observations
    act: Any = fast_jit(some(made.act_with_base), static_argnames="candidates")
    actions, base = act(state, observations, key)
    transport = some(made.transport)(state, observations)
    np.testing.assert_allclose(transport.base(jax.random.normal(key, (1, ROWS, 3))[0]), base, atol=1e-5)
    np.testing.assert_allclose(np.clip(base + transport.displacement(base), -1, 1), actions, atol=1e-5)
    idle = with_params(state, residual=scaled(state.params["residual"], 0.0))
    assert equal(act(idle, observations, key), (base, base))
    # The same noise as one batch: the chosen action has the highest Q of those drawn, with its own base action.
    chosen, chosen_base = act(state, observations, key, candidates=5)
    repeated = np.broadcast_to(observations, (5, *observations.shape))
    every, every_base = act(state, repeated, key)
    q = CRITIC.apply(state.params["critic"], repeated, every).mean(axis=0)
    best, rows = np.argmax(q, axis=0), np.arange(ROWS)
    assert len(set(best.tolist())) > 1
    np.testing.assert_allclose(chosen, np.asarray(every)[best, rows], atol=1e-6)
    np.testing.assert_allclose(chosen_base, np.asarray(every_base)[best, rows], atol=1e-6)


@pytest.mark.parametrize("case", ["renoised", pytest.param("closed_form", marks=pytest.mark.slow)])
def test_the_strength_scales_the_displacement_before_clipping(case):
    """One program for all strengths: 0 gives the base actions, 1 those of the default call."""
    made, state, key = algorithm(case), fresh(case), jax.random.key(4)
    if case == "renoised":  # large enough that some actions are clipped
        state = with_params(state, residual=scaled(state.params["residual"], 3.0))
    observations = batch().observations
    act: Any = fast_jit(some(made.act_with_base), static_argnames="candidates")
    refined, base = act(state, observations, key)
    assert not equal(refined, base)
    found = {0: act(state, observations, key, strength=np.float32(0))}
    programs = act._cache_size()
    found |= {strength: act(state, observations, key, strength=np.float32(strength)) for strength in (0.5, 1, 2)}
    assert act._cache_size() == programs
    assert all(equal(moved[1], base) for moved in found.values())
    assert equal(found[0][0], base)
    assert equal(found[1][0], refined)
    inside = np.abs(refined) < 1
    half = base + 0.5 * (np.asarray(refined) - base)
    np.testing.assert_allclose(np.asarray(found[0.5][0])[inside], half[inside], atol=1e-6)
    if case == "renoised":  # half of an unclipped displacement, not of the clipped one
        assert (np.abs(np.asarray(found[0.5][0]) - half)[~inside] > 1e-3).any()
        assert np.abs(found[2][0]).max() == 1.0


def test_candidates_are_chosen_among_the_moved_actions():
    made, state, key = algorithm("renoised"), fresh("renoised"), jax.random.key(4)
    observations = batch().observations
    act: Any = fast_jit(some(made.act_with_base), static_argnames="candidates")
    repeated = np.broadcast_to(observations, (5, *observations.shape))
    for strength in (np.float32(0), np.float32(0.5)):
        every = np.asarray(act(state, repeated, key, strength=strength)[0])
        q = CRITIC.apply(state.params["critic"], repeated, every).mean(axis=0)
        chosen = act(state, observations, key, candidates=5, strength=strength)[0]
        np.testing.assert_allclose(chosen, every[np.argmax(q, axis=0), np.arange(ROWS)], atol=1e-6)


def test_in_one_dimension_the_penalty_is_the_squared_displacement():
    """Every quadratic constraint that is scaled by its trace is then the isotropic one."""
    made = algos.make("fidec", Spec((4,), 1), **SMALL)
    state = fast_jit(made.init)(jax.random.key(0))
    logged = fast_jit(lambda *given: [made.update(*given)[1][name] for name in ("penalty", "displacement")])
    penalty, displacement = logged(state, make_batch(1, actions=1), jax.random.key(0))
    np.testing.assert_allclose(penalty, displacement**2, rtol=1e-4)


@pytest.mark.parametrize("constraint", ["isotropic", "local", "renoised"])
def test_the_closed_form_spends_its_budget_and_climbs(constraint):
    observations, noise = batch().observations, jax.random.normal(jax.random.key(5), (ROWS, 3))
    state = fresh("closed_form")
    found = {}
    for budget, steps in ((1e-4, 1), (1e-6, 1), (1e-4, 3))[: 3 if constraint == "isotropic" else 2]:
        options = {"constraint": constraint, "budget": budget, "refine_steps": steps, "damping": 0.1}
        made = algos.make("fidec_closed_form", SPEC, **SMALL, **options)

        @fast_jit
        def measure(state, made=made):
            transport = some(made.transport)(state, observations)
            base = transport.base(noise)
            return base, transport.displacement(base), transport.penalty(base, jax.random.key(6))

        found[budget, steps] = measure(state)
    base, displacement, _ = found[1e-4, 1]
    assert np.linalg.norm(displacement, axis=-1).min() > 1e-4
    np.testing.assert_allclose(found[1e-6, 1][1], displacement / 10, rtol=1e-3, atol=1e-6)  # the root of the budget
    if constraint == "isotropic":  # n steps in nearly one direction add up to the length
        for steps in (1, 3):
            np.testing.assert_allclose(found[1e-4, steps][2], 1e-4, rtol=0.02)
        q = lambda a: CRITIC.apply(state.params["critic"], observations, a).mean(axis=0)  # noqa: E731
        assert np.all(q(base + found[1e-6, 1][1]) > q(base))


@pytest.mark.slow
def test_a_frozen_flow_in_the_papers_order():
    state, _ = update("paper")(fresh("paper"), batch(), jax.random.key(1))
    made = algos.make("fidec", SPEC, preset="paper", **{**SMALL, "train_flow": False})
    after, metrics = fast_jit(made.update)(state, batch(1), jax.random.key(8))
    usual, logged = update("paper")(state, batch(1), jax.random.key(8))
    assert {name for name in state.params if equal(after.params[name], state.params[name])} == {"flow"}
    assert equal(after.optimiser["flow"], state.optimiser["flow"])
    assert_close(after.params["critic"], usual.params["critic"], rtol=1e-5, atol=1e-7)
    assert set(metrics) == set(logged)


@pytest.mark.parametrize(
    ("method", "options", "match"),
    [
        ("fidec_closed_form", {"constraint": "stein"}, "quadratic constraint"),
        ("fidec_closed_form", {"t_eps": "auto"}, "t_eps"),
        ("fidec_closed_form", {"damping": 0.0}, "damping"),
        ("fidec_closed_form", {"refine_steps": 0}, "refine_steps"),
        ("fidec", {"t_eps": "often"}, "t_eps"),
        ("fidec", {"t_eps": 1.0}, "t_eps"),
        ("fidec", {"t_width": -0.1}, "t_width"),
        ("fidec", {"damping": -1.0}, "damping"),
        ("fidec", {"samples": 0}, "samples"),
        ("fidec", {"scale": "trace"}, "no scale 'trace'"),
        ("fidec", {"constraint": "stein", "budget": 0.0}, "budget must be positive, not 0.0"),
        ("fidec", {"warmup": -1}, "warmup"),
        ("fidec", {"constraint": "local", "samples": 2}, "no option of fidec 'samples'"),
        ("fidec", {"order": "alternating", "clip_scope": "global", "grad_clip": 5.0}, "clip_scope"),
        ("deflow", {"multiplier": "linear"}, "no multiplier 'linear'"),
    ],
)
def test_an_option_without_sense_is_named(method, options, match):
    with pytest.raises(ConfigError, match=match):
        algos.get(method).configure(**options)
