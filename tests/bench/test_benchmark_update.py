"""The FLOPs of an update, which do not depend on the machine's load."""

from __future__ import annotations

from functools import cache

import jax
import pytest
from benchmarks import update

from fidec import algos, rng
from fidec.types import Spec
from helpers import some

SPEC = Spec((28,), 5)


@cache
def gflop(preset: str, **fields) -> float:
    algorithm = algos.make("fidec", SPEC, preset=preset, **fields)
    key = rng.stream(0, "update")
    state = jax.eval_shape(algorithm.init, key)
    lowered = jax.jit(algorithm.update).lower(state, update.random_batch(SPEC, 256), key)
    return some(lowered.cost_analysis())["flops"] / 1e9


def test_an_update_at_the_papers_size_stays_within_its_budget():
    cost = gflop("recommended")
    # The flow solve alone, ten steps for s and s' through a 4 x 512 network, is 8 GFLOP. A smaller number would mean
    # that the cost analysis does not count it.
    assert 12.0 < cost <= 20.0
    half = cost - gflop("recommended", flow_steps=5)
    assert half == pytest.approx(4.13, rel=0.02)  # 5 steps x 512 rows x 2 x 806,000 weights


def test_training_with_a_frozen_flow_solves_none():
    algorithm = algos.make("fidec", SPEC)
    key, batch = rng.stream(0, "update"), update.random_batch(SPEC, 256)
    state = jax.eval_shape(algorithm.init, key)
    batch = batch._replace(proposals=jax.eval_shape(some(algorithm.propose), state, batch.next_observations, key))
    cost = some(jax.jit(algorithm.update).lower(state, batch, key).cost_analysis())["flops"] / 1e9
    assert cost < gflop("recommended") / 2


@pytest.mark.slow
def test_the_benchmark_reports_every_figure(capsys):
    rows = update.main(
        [
            "--presets",
            "recommended",
            "--hidden",
            "8",
            "8",
            "--batch-size",
            "4",
            "--repeats",
            "2",
            "--seconds",
            "0.05",
            "--json",
        ]
    )
    assert '"gflop_per_update"' in capsys.readouterr().out
    (row,) = rows
    assert row["ms_per_update"] > 0
    assert row["compile_seconds"] > 0
    assert row["share_of_matmul_peak"] > 0
    assert row["loop_overhead_quartiles"][0] <= row["loop_overhead"] <= row["loop_overhead_quartiles"][1]
