"""Exports against the policy: every method, each target, in processes without fidec and, but for StableHLO, JAX."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fidec import algos
from fidec.algos.common.base import METHODS
from fidec.errors import ConfigError, RunError
from fidec.export import run as exporting
from fidec.export.model_card import FILES
from fidec.export.run import TARGETS, export_policy
from fidec.export.trace import trace
from fidec.train.acting import PUBLISHED, ActOptions
from fidec.train.policy import Policy
from fidec.types import Spec

FLAT, IMAGES = Spec((4,), 2), Spec((8, 8, 6), 2, "uint8", frame_stack=2)
CHUNKS = Spec(
    *((4,), 6),
    action_low=(0.0, -5.0),
    action_high=(2.0, 100.0),
    observation_mean=(1.0, 2.0, 3.0, 4.0),
    observation_std=(1.0, 0.5, 2.0, 3.0),
    chunk=3,
    replan=2,
)
SMALL = {"hidden": (16,), "flow_steps": 2, "samples": 3, "critics": 2, "policy_hidden": (16,)}
SMALL |= {"denoiser_width": 8, "denoiser_blocks": 1, "diffusion_steps": 3}
# What the user of an export writes; the first words keep fidec and JAX from being imported.
USE = {
    "onnx": """
import onnxruntime
session = onnxruntime.InferenceSession("policy.onnx")
act = lambda *inputs: session.run(["actions"], dict(zip(("observations", "noise"), inputs)))[0]
""",
    "stablehlo": """
import jax
act = jax.jit(jax.export.deserialize(bytearray(open("policy.stablehlo", "rb").read())).call)
""",
    "numpy": """
sys.path.insert(0, "")
from policy import act
""",
}
PROGRAM = """
import sys
import numpy as np
for name in {blocked}: sys.modules[name] = None
{use}
with np.load("inputs.npz") as file:
    inputs = dict(file)
results = {{}}
for size in {sizes}:
    arguments = [inputs[f"{{name}}{{size}}"] for name in ("observations", "noise") if f"{{name}}{{size}}" in inputs]
    results[str(size)] = np.asarray(act(*arguments))
np.savez("outputs.npz", **results)
assert not [name for name in {blocked} if sys.modules.get(name)]
"""


@pytest.fixture(autouse=True)
def _few(monkeypatch):
    """Fewer observations: the comparison itself is the same."""
    monkeypatch.setattr(exporting, "COUNT", 35)
    monkeypatch.setattr(exporting, "SIZES", (7, 7))


@cache
def policy_of(name, spec=FLAT, **options):
    """A policy with random numbers in all arrays, also in those that start at zero."""
    method = algos.get(name)
    known = method.config_for({}).__dataclass_fields__
    config = method.configure(**{key: value for key, value in (SMALL | options).items() if key in known})
    state = jax.jit(method.build(config, spec).init)(jax.random.key(0))
    rng = np.random.default_rng(1)
    shake = lambda x: x + 0.1 * jnp.asarray(rng.standard_normal(x.shape), x.dtype) if x.dtype == "float32" else x  # noqa: E731
    return Policy(name, config, spec, jax.tree.map(shake, state), {"step": 7})


def run_without_fidec(directory: Path, target: str, source: str) -> None:
    blocked = ["fidec"] if target == "stablehlo" else ["fidec", "jax", "jaxlib", "flax"]
    words = [sys.executable, "-c", source.replace("BLOCKED", repr(blocked))]
    done = subprocess.run(words, cwd=directory, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr


@cache  # the targets share it: most of a test's time is the compilation of the policy for each size
def samples_of(policy, act):
    """By batch size: observations, the noise that the policy draws for them, and its actions."""
    program, rng, found = trace(policy, act), np.random.default_rng(3), {}
    for size in (1, 7, 64):
        shape = (size, *policy.spec.observation_shape)
        images = rng.integers(0, 256, shape, dtype=np.uint8)
        observations = images if policy.spec.images else rng.standard_normal(shape).astype(np.float32)
        found[size] = exporting.make_sample(policy, act, program, observations, 5, size)
    return found


def check_batches(policy, directory, target, act=PUBLISHED, tolerance=1e-5):
    """The export gives the policy's actions, for every batch size, with the noise that the policy draws."""
    samples = samples_of(policy, act)
    inputs = {f"observations{size}": each.observations[0] for size, each in samples.items()}
    inputs |= {f"noise{size}": each.noise[0] for size, each in samples.items() if each.noise is not None}
    np.savez(directory / "inputs.npz", **inputs)
    run_without_fidec(directory, target, PROGRAM.format(blocked="BLOCKED", use=USE[target], sizes=list(samples)))
    with np.load(directory / "outputs.npz") as outputs:
        for size, each in samples.items():
            exporting.compare(policy.spec, each, outputs[str(size)][None], tolerance)


QUICK = {("fidec", "onnx"), ("fidec", "numpy"), ("fidec", "stablehlo"), ("ifql", "onnx"), ("bc", "numpy")}
# The closed form solves a linear system for each action.
SOLVES = {("fidec_closed_form", "onnx")}


@pytest.mark.parametrize(
    ("name", "target"),
    [
        pytest.param(name, target, marks=() if (name, target) in QUICK else pytest.mark.slow)
        for name in METHODS.builtin()
        for target in TARGETS
        if (name, target) not in SOLVES
    ],
)
def test_every_method(name, target, tmp_path):
    policy = policy_of(name)
    result = export_policy(policy, target, tmp_path / "out", tolerance=1e-4)
    assert result["verification"]["largest_difference"] < 1e-4
    assert result["verification"]["real"] == 0
    check_batches(policy, tmp_path / "out", target, tolerance=1e-4)


@pytest.mark.parametrize(
    "target", ["numpy", *(pytest.param(t, marks=pytest.mark.slow) for t in ("onnx", "stablehlo"))]
)
@pytest.mark.parametrize("name", ["bc", pytest.param("ifql", marks=pytest.mark.slow)])
def test_images(name, target, tmp_path):
    policy = policy_of(name, IMAGES)
    result = export_policy(policy, target, tmp_path / "out")
    assert result["inputs"][0] | {"units": ""} == {
        "name": "observations",
        "shape": ["batch", 8, 8, 6],
        "dtype": "uint8",
        "frame_stack": 2,
        "units": "",
    }
    check_batches(policy, tmp_path / "out", target)


@pytest.mark.parametrize(
    "target", ["numpy", *(pytest.param(t, marks=pytest.mark.slow) for t in ("onnx", "stablehlo"))]
)
def test_chunks_units_normalisation_candidates_and_factors(target, tmp_path):
    policy, act = policy_of("fidec", CHUNKS), ActOptions(candidates=4, noise=0.5, strength=0.7)
    result = export_policy(policy, target, tmp_path / "out", **act.given())
    (output,) = result["outputs"]
    assert output["shape"] == ["batch", 3, 2]
    assert (output["low"], output["high"]) == ([0.0, -5.0], [2.0, 100.0])
    assert result["inputs"][1]["shape"] == ["batch", 4 * 6]
    assert (result["chunk"], result["replan"], result["candidates"]) == (3, 2, 4)
    check_batches(policy, tmp_path / "out", target, act)


def test_without_noise_there_is_one_input(tmp_path):
    policy = policy_of("fidec")
    result = export_policy(policy, "numpy", tmp_path / "out", noise=0.0)
    assert [entry["name"] for entry in result["inputs"]] == ["observations"]
    check_batches(policy, tmp_path / "out", "numpy", ActOptions(noise=0.0))


def test_a_policy_can_be_compared_at_data_that_is_named(tmp_path):
    columns = {"observations": np.ones((50, 4)), "actions": np.zeros((50, 2)), "terminals": np.arange(50) == 49}
    np.savez(tmp_path / "mine.npz", **columns)
    result = export_policy(policy_of("bc"), "numpy", tmp_path / "out", data=f"npz:{tmp_path / 'mine.npz'}")
    assert result["verification"]["real"] == 35
    assert result["without_data"] is None


def test_draws_that_noise_0_leaves_are_refused(tmp_path):
    policy = policy_of("fidec_closed_form", constraint="renoised")
    with pytest.raises(RunError, match="random numbers"):
        export_policy(policy, "numpy", tmp_path / "out", noise=0.0)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_the_closed_form_of_one_score_needs_no_solve(tmp_path):
    policy = policy_of("fidec_closed_form", constraint="local")
    export_policy(policy, "onnx", tmp_path / "out", tolerance=1e-3)  # it divides by a small damping
    check_batches(policy, tmp_path / "out", "onnx", tolerance=1e-3)


def test_an_operation_without_translation_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"`lu`, which is not translated to ONNX; .*--to stablehlo or --to numpy"):
        export_policy(policy_of("fidec_closed_form"), "onnx", tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_an_export_that_differs_is_refused_and_leaves_nothing(tmp_path, monkeypatch):
    policy, alone = policy_of("bc"), exporting.run_alone
    monkeypatch.setattr(exporting, "run_alone", lambda *words: alone(*words) + np.float32(2e-5))
    with pytest.raises(RunError, match=r"2\.0e-05 of half the action range.*--tolerance"):
        export_policy(policy, "numpy", tmp_path / "new" / "out")
    assert not list(tmp_path.iterdir())
    assert export_policy(policy, "numpy", tmp_path / "out", tolerance=1e-3)["verification"]["tolerance"] == 1e-3


def test_a_choice_between_equal_values_may_differ():
    actions = np.zeros((1, 40, 2), np.float32)
    margin = np.ones((1, 40), np.float32)
    other = actions.copy()
    other[0, 3] = 1.0
    with pytest.raises(RunError, match="1 of 40"):
        exporting.compare(FLAT, exporting.Sample(actions, None, actions, margin), other, 1e-5)
    margin[0, 3] = 1e-7
    taken = exporting.Sample(actions, None, actions, margin)
    assert exporting.compare(FLAT, taken, other, 1e-5) == {"largest_difference": 0.0, "tolerance": 1e-5, "ties": 1}
    margin[:], other[:] = 0.0, 1.0  # a tie everywhere is no tie
    with pytest.raises(RunError, match="40 of them"):
        exporting.compare(FLAT, taken, other, 1e-5)


def test_differences_are_in_units_of_the_action_range():
    spec = Spec((4,), 1, action_low=(1000.0,), action_high=(3000.0,))
    actions = np.full((1, 5, 1), 2000.0, np.float32)
    taken = exporting.Sample(actions, None, actions, None)
    assert exporting.compare(spec, taken, actions + np.float32(0.005), 1e-5)["largest_difference"] < 1e-5
    with pytest.raises(RunError, match="differs"):
        exporting.compare(spec, taken, actions + np.float32(0.02), 1e-5)
    with pytest.raises(RunError, match="not finite"):
        exporting.compare(spec, taken, actions * np.float32(np.nan), 1e-5)


@pytest.mark.parametrize("target", TARGETS)
def test_the_card_has_the_inputs_and_the_metadata_are_in_the_file(target, tmp_path):
    policy = policy_of("cac" if target == "numpy" else "flow_bc")
    names = [f"joint {number}" for number in range(policy.spec.observation_shape[0])]
    statistics = {"data_statistics": {"observations": {"names": names}}}
    policy = Policy(policy.algo, policy.options, policy.spec, policy.state, policy.info | statistics)
    out = tmp_path / "out"
    export_policy(policy, target, out, license="MIT `<b>`\n# no", tolerance=1e-4)
    metadata, readme = json.loads((out / "metadata.json").read_text()), (out / "README.md").read_text()
    assert metadata["license"] == "MIT `<b>`\n# no"
    assert "- Licence: MIT b no\n" in readme
    assert metadata["algo"] == policy.algo
    assert metadata["step"] == 7
    assert metadata["inputs"][0]["names"] == names
    rows = [line.split(" | ")[:3] for line in readme.splitlines() if line.startswith("| `")]
    named = [*metadata["inputs"], *metadata["outputs"]]
    assert rows == [[f"| `{e['name']}`", f"({', '.join(map(str, e['shape']))})", e["dtype"]] for e in named]
    assert f"- Method: {policy.algo}, after 7 training steps\n" in readme
    if target == "onnx":
        import onnxruntime

        properties = onnxruntime.InferenceSession(out / "policy.onnx").get_modelmeta().custom_metadata_map
        assert json.loads(properties["fidec"]) == {k: v for k, v in metadata.items() if k != "files"}
    if target == "numpy":  # draws of two kinds
        assert [column["distribution"] for column in metadata["inputs"][1]["columns"]] == [
            "normal",
            "normal",
            "gumbel",
        ]


def flipped(directory, chance, count):
    """Each file in turn with one bit that is not as exported, `count` times; the name, the place of the bit."""
    for path in sorted(path for path in directory.iterdir() if path.name != "README.md"):
        exported = path.read_bytes()
        for place in chance.integers(0, 8 * len(exported), count).tolist():
            damaged = bytearray(exported)
            damaged[place // 8] ^= 1 << place % 8
            path.write_bytes(damaged)
            yield path.name, place
        path.write_bytes(exported)


@pytest.mark.parametrize("target", TARGETS)
def test_the_cards_command_finds_every_flipped_bit(target, tmp_path):
    out = tmp_path / "out"
    export_policy(policy_of("bc"), target, out)
    card = (out / "README.md").read_text()
    command = ["sh", "-c", card.split("```sh\n")[1].split("```")[0]]
    check = lambda: subprocess.run(command, cwd=out, capture_output=True, text=True)  # noqa: E731
    assert check().returncode == 0, check().stderr
    seen = set()
    for name, place in flipped(out, np.random.default_rng(0), 30):
        done = check()
        assert done.returncode == 1, (name, place)
        assert f"{name}: FAILED" in done.stdout
        seen.add(name)
    assert seen == {*FILES[target], "metadata.json"}
    assert check().returncode == 0


@pytest.mark.filterwarnings("ignore::SyntaxWarning")  # of a policy.py with a flipped bit
def test_no_flipped_bit_changes_the_actions_of_numpy(tmp_path):
    out, observations, noise = tmp_path / "out", *np.random.default_rng(0).standard_normal((2, 20, 4))
    export_policy(policy_of("fidec", replace(CHUNKS, action_dim=4, chunk=2)), "numpy", out)

    def act():
        names: dict[str, Any] = {"__file__": str(out / "policy.py")}
        exec((out / "policy.py").read_bytes(), names)
        return names["act"](observations, noise)

    expected, words = act(), set()
    for name, place in flipped(out, np.random.default_rng(1), 200):
        try:
            actions = act()
        except Exception as error:  # whatever a damaged program raises, it gives no actions
            words |= {str(error)} if name == "policy.safetensors" else set()
        else:
            assert np.array_equal(actions, expected), (name, place)
            assert name != "policy.safetensors", place
    found = r"policy\.safetensors has SHA-256 \w{64}, metadata\.json has \w{64}: copy the whole export again"
    assert all(re.fullmatch(found, each) for each in words), words
    metadata = json.loads((out / "metadata.json").read_text())
    del metadata["files"]
    (out / "metadata.json").write_text(json.dumps(metadata))
    with pytest.raises(ValueError, match=r"^policy\.py has SHA-256 \w{64}, metadata\.json has none:"):
        act()
