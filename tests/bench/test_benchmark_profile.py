"""The classes of operations in a profile, and that the benchmark measures every figure."""

from __future__ import annotations

import json

import jax
import jax.numpy as jnp
import pytest
from benchmarks import profile

from fidec import nn, optim
from helpers import some

PROGRAM = """
%fused.1 (p: f32[4,8]) -> f32[4,8] {
  %p = f32[4,8]{1,0} parameter(0)
  ROOT %tanh.1 = f32[4,8]{1,0} tanh(%p), metadata={op_name="jit(update)/MLP_0/tanh"}
}

%fused.2 (p: f32[4,8], q: f32[8,8]) -> f32[4,8] {
  ROOT %dot.7 = f32[4,8]{1,0} dot(%p.1, %q), metadata={op_name="jit(update)/MLP_0/dot_general"}
}

ENTRY %main (key: u32[2], x: f32[4,8]) -> (f32[4,8], /*index=1*/s32[]) {
  %tanh_fusion = f32[4,8]{1,0} fusion(%x), kind=kLoop, calls=%fused.1
  %ynn_fusion = f32[4,8]{1,0} fusion(%tanh_fusion, %w), kind=kCustom, calls=%fused.2
  %add.3 = f32[4,8]{1,0} add(%x, %x), metadata={op_name="jit(update)/optimiser/add"}
  %add.4 = f32[4,8]{1,0} add(%x, %x), metadata={op_name="jit(update)/polyak/add"}
  %add.5 = f32[4,8]{1,0} add(%x, %x), metadata={op_name="jit(update)/MLP_0/LayerNorm_0/add"}
  %copy.2 = f32[4,8]{1,0} copy(%x)
  %while.1 = (s32[], /*index=1*/u32[2]{0}) while(%tuple), metadata={op_name="jit(update)/jit(_normal)/while"}
  ROOT %tuple.2 = (f32[4,8]{1,0}, s32[]) tuple(%add.3, %i)
}
"""


def test_operations_are_classified_by_what_is_in_them_and_by_their_place_in_the_code():
    found = profile.classes(PROGRAM)
    expected = {
        "tanh_fusion": "activations",
        "ynn_fusion": "products",
        "add.3": "optimiser",
        "add.4": "optimiser",
        "add.5": "layer norm",
        "copy.2": "copies",
        "while.1": "random numbers",
        "tuple.2": "rest",
    }
    assert {name: found[name] for name in expected} == expected


def test_a_compiled_step_has_operations_of_the_classes():
    critic = nn.Critic((8,))

    def step(params, target, key):
        actions = jax.random.normal(key, (64, 3))
        loss = lambda params: critic.apply(params, actions, actions).mean()  # noqa: E731  # type: ignore
        grads = jax.grad(loss)(params)
        return optim.polyak(grads, target, 0.1)

    shapes = jax.eval_shape(critic.init, jax.random.key(0), jnp.zeros((1, 3)), jnp.zeros((1, 3)))
    text = some(jax.jit(step).lower(shapes, shapes, jax.random.key(1)).compile().as_text())
    assert {"products", "random numbers", "optimiser", "layer norm", "activations"} <= set(
        profile.classes(text).values()
    )


def test_the_time_of_an_event_is_without_the_events_in_it():
    events = [(0.0, 10.0, "loop"), (1.0, 4.0, "body"), (2.0, 3.0, "inner"), (5.0, 7.0, "body"), (10.0, 11.0, "after")]
    found = sorted(profile.without_inner(events))
    assert found == [("after", 1.0), ("body", 2.0), ("body", 2.0), ("inner", 1.0), ("loop", 5.0)]


@pytest.mark.slow  # two processes, which compile one update each
def test_the_benchmark_reports_every_figure(capsys):
    size = ["--hidden", "8", "--batch-size", "4", "--updates", "5", "--repeats", "2", "--seconds", "0.01"]
    profile.main(["--algo", "fidec-frozen", *size, "--json"])
    (row,) = json.loads(capsys.readouterr().out)
    assert sum(row["shares"].values()) == pytest.approx(1)
    assert min(row["shares"][name] for name in ("products", "activations", "layer norm", "optimiser")) > 0
    assert row["ms_on_one_core"] > 0
    assert row["gain_of_all_cores"] > 0
    assert row["operations"] > 10
