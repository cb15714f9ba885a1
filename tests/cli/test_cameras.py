"""Observations of several parts through a whole run: train, evaluate, resume, act, export, serve; and a history."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import jax
import numpy as np
import pytest

import fidec
from fidec import algos, rng
from fidec.audit.run import audit
from fidec.envs.evaluation import EnvPool, episode_seed
from fidec.envs.factory import factory_of
from fidec.envs.video import record
from fidec.errors import CheckpointError, ConfigError, EnvError
from fidec.export import run as exporting
from fidec.export.run import export_policy
from fidec.serve.batching import ServedPolicy
from fidec.store import files
from fidec.train.evaluation import Evaluator, check_spaces
from fidec.train.policy import Frames, Policy
from fidec.types import Part, Spec
from helpers import some
from helpers.algorithms import equal, fast_jit, make_batch
from helpers.runs import random_columns
from helpers.serving import make_policy, pack, talk
from helpers.two_cameras import FRONT, WRIST, TwoCameras, episodes

CAMERAS = Spec(
    *((), 2),
    frame_stack=2,
    history=3,
    parts=(
        Part("front", (8, 10, 6), "uint8"),
        Part("state", (9,), mean=(0.5,) * 9, std=(2.0,) * 9),
        Part("wrist", (6, 6, 6), "uint8"),
    ),
)
VECTORS = Spec((), 2, parts=(Part("arm", (3,)), Part("goal", (1,), mean=(0.0,), std=(1.0,))))
SMALL: dict[str, Any] = {"batch_size": 8, "steps": 4, "log_interval": 2, "checkpoint_interval": 2, "quiet": True}
SMALL |= {"options": {"hidden": (8,)}, "frame_stack": 2, "history": 3, "check_data": False}


def split(batch):
    """The four observation columns as the parts of `VECTORS`."""
    return batch._replace(
        observations={"goal": batch.observations[:, 3:], "arm": batch.observations[:, :3]},
        next_observations={"goal": batch.next_observations[:, 3:], "arm": batch.next_observations[:, :3]},
    )


@pytest.mark.parametrize("name", ["bc", *(pytest.param(name, marks=pytest.mark.slow) for name in ("fql", "idql"))])
def test_several_vectors_are_one_vector_bit_for_bit(name):
    method = algos.get(name)
    small = {"hidden": (8,), "flow_steps": 2, "denoiser_width": 8, "denoiser_blocks": 1, "diffusion_steps": 2}
    options = method.configure(**{k: v for k, v in small.items() if k in method.config.__dataclass_fields__})
    parts, joined = method.build(options, VECTORS), method.build(options, Spec((4,), 2))
    batch, key = make_batch(), rng.stream(0, "update")
    states = [fast_jit(each.init)(rng.stream(0, "init")) for each in (parts, joined)]
    assert equal(*states)
    updated = [
        fast_jit(each.update)(state, own, key)
        for each, state, own in zip((parts, joined), states, (split(batch), batch), strict=True)
    ]
    assert equal(*updated)
    acted = [
        fast_jit(each.act)(state, own.observations, key)
        for each, (state, _), own in zip((parts, joined), updated, (split(batch), batch), strict=True)
    ]
    assert equal(*acted)


def takes_images(name: str) -> bool:
    try:
        algos.get(name).build(algos.get(name).configure(), Spec((8, 8, 3), 2, "uint8"))
    except ConfigError:
        return False
    return True


QUICK = ("bc", "cac", "calql", "idql", "rlpd", "srpo")  # five of them refuse at once


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in algos.names()]
)
def test_methods_that_take_images_take_cameras_and_the_others_refuse_in_words(name):
    method = algos.get(name)
    options = method.configure()
    if not takes_images(name):
        with pytest.raises(ConfigError, match=r"takes flat observations, .* the part 'front' is an image"):
            method.build(options, CAMERAS)
        return
    algorithm = method.build(options, CAMERAS)
    observations = CAMERAS.observations(lambda part: jax.ShapeDtypeStruct((5, *part.shape), part.dtype))
    key = rng.stream(0, "act")
    state = jax.eval_shape(algorithm.init, key)
    assert jax.eval_shape(algorithm.act, state, observations, key).shape == (5, 2)
    one = make_batch(5)._replace(observations=observations, next_observations=observations)
    assert jax.eval_shape(algorithm.update, state, one, key)[1]["loss"].shape == ()
    if algorithm.propose is not None:
        jax.eval_shape(algorithm.propose, state, observations, key)


@pytest.fixture(scope="module")
def policy() -> Policy:
    return make_policy(CAMERAS, algo="bc", statistics=False)


def observation(seed: int = 0) -> dict[str, np.ndarray]:
    return TwoCameras().reset(seed=seed)[0]


def test_a_policy_takes_a_dictionary_and_stacks_it(policy):
    frames, env = policy.frames(), TwoCameras()
    first = frames(env.reset(seed=0)[0])
    assert {name: each.shape for name, each in first.items()} == {part.name: part.shape for part in CAMERAS.parts}
    np.testing.assert_array_equal(first["state"], np.tile(observation()["state"], 3))
    second_state = env.step(np.ones(2))[0]["state"]
    second = frames(env.observation())
    np.testing.assert_array_equal(second["state"], [*first["state"][:6], *second_state])
    policy.warm_up()
    policy.warm_up(2)
    single = [policy(each, noise=1) for each in (first, second)]
    batch = {name: np.stack([first[name], second[name]]) for name in first}
    np.testing.assert_allclose(policy(batch | {"more": np.zeros(2)}), single, atol=1e-6)
    assert policy.player()(first).shape == (2,)
    assert "front (8, 10, 6) uint8, state (9,) float32" in repr(policy)


def test_a_policy_says_which_part_is_wrong(policy):
    whole = policy.frames()(observation())
    for wrong, words in (
        (
            {name: each for name, each in whole.items() if name != "wrist"},
            "no part 'wrist'; expected front, state, wr",
        ),
        (np.zeros(9), "a ndarray; expected a dictionary with the parts front, state, wrist"),
        (whole | {"front": observation()["front"]}, r"'front' have shape \(8, 10, 3\).*policy.frames\(\)"),
        (whole | {"state": np.full(9, np.nan)}, "of the part 'state' at index 0 is nan"),
        (whole | {"wrist": whole["wrist"][None]}, r"'wrist' have shape \(1, 6, 6, 6\); the policy takes \(\.\.\., "),
    ):
        with pytest.raises(ConfigError, match=words):
            policy(wrong)
    with pytest.raises(ConfigError, match="no part 'state'"):
        policy.frames()({"front": np.zeros(FRONT)})
    assert Frames(2)(np.ones(1)).tolist() == [1, 1]


def test_a_saved_policy_keeps_its_parts_and_old_ones_load(policy, tmp_path):
    policy.save(tmp_path / "new")
    assert fidec.load_policy(tmp_path / "new").spec == CAMERAS
    old = make_policy(Spec((3,), 2), algo="bc", statistics=False)
    old.save(tmp_path / "old")
    card = json.loads((tmp_path / "old" / "policy.json").read_text())
    del card["spec"]["parts"], card["spec"]["history"]
    files.write_json(tmp_path / "old" / "policy.json", card)
    files.write_manifest(tmp_path / "old")
    assert fidec.load_policy(tmp_path / "old").spec == old.spec
    card = json.loads((tmp_path / "new" / "policy.json").read_text())
    card["spec"]["parts"][0]["name"] = "front']; import os; x['"
    files.write_json(tmp_path / "new" / "policy.json", card)
    files.write_manifest(tmp_path / "new")
    with pytest.raises(CheckpointError, match="names of parts have to be letters"):
        fidec.load_policy(tmp_path / "new")


@pytest.mark.parametrize(
    "target", ["numpy", *(pytest.param(t, marks=pytest.mark.slow) for t in ("onnx", "stablehlo"))]
)
def test_an_export_has_an_input_for_each_part(policy, target, tmp_path, monkeypatch):
    monkeypatch.setattr(exporting, "COUNT", 14)
    monkeypatch.setattr(exporting, "SIZES", (7, 7))
    result = export_policy(policy, target, tmp_path / "out")
    assert result["verification"]["largest_difference"] < 1e-5
    shapes = {each["name"]: each["shape"] for each in result["inputs"]}
    assert shapes == {f"observations/{part.name}": ["batch", *part.shape] for part in CAMERAS.parts}
    assert [each.get("history", each["frame_stack"]) for each in result["inputs"]] == [2, 3, 2]
    readme = (tmp_path / "out" / "README.md").read_text()
    assert "| `observations/front` | (batch, " in readme
    assert "; 3 successive vectors, the oldest first" in readme


def test_the_server_takes_parts(policy):
    env = TwoCameras()
    shown = [env.reset(seed=0)[0]] + [env.step(np.ones(2))[0] for _ in range(2)]
    frames = policy.frames()
    stacked = [frames(each) for each in shown]
    policy.reset(0)
    expected = [policy(each) for each in stacked]
    lanes = ServedPolicy(policy, largest=1)

    def message(parts: dict[str, np.ndarray], **more: Any) -> bytes:
        return pack({f"observation/{name}": each for name, each in parts.items()} | more)

    async def test(client):
        one, two = await client.connect(), await client.connect()
        facts = one.metadata["observation"]["parts"]
        assert facts["state"] == {"shape": [9], "dtype": "float32", "fields": ["observation/state"]} | {
            "frame_stack": 1,
            "history": 3,
        }
        whole = [(await one.raw(message(each)))["actions"] for each in stacked]
        single = [(await two.raw(message(each)))["actions"] for each in shown]  # with a part that it does not use
        np.testing.assert_allclose(np.concatenate(whole), expected, atol=1e-6)
        assert equal(whole, single)
        nested = {"observation": {name: each.tolist() for name, each in stacked[0].items()}, "seed": 0, "step": 0}
        status, answer = await client.post(nested)
        np.testing.assert_allclose(answer["actions"], whole[0], atol=1e-6)
        assert status == 200
        for parts, words in (
            (
                {"front": stacked[0]["front"]},
                "there is no part 'state' of the observation: expected `observation/state`",
            ),
            (stacked[0] | {"state": shown[0]["state"]}, "is a single one and `observation/front` is stacked"),
            (stacked[0] | {"wrist": np.zeros((2, 2, 3), np.uint8)}, "`observation/wrist` has the shape (2, 2, 3)"),
            (stacked[0] | {"front": stacked[0]["front"].astype(float)}, "`observation/front` is float64"),
        ):
            assert words in await one.raw(message(parts))

    talk(lanes, test)


class Without(gymnasium.ObservationWrapper):
    """The environment without its wrist camera."""

    def __init__(self):
        super().__init__(TwoCameras())
        spaces = dict(some(self.env.observation_space).spaces)  # type: ignore[union-attr]
        del spaces["wrist"]
        self.observation_space = gymnasium.spaces.Dict(spaces)

    def observation(self, observation):
        return {name: each for name, each in observation.items() if name != "wrist"}


def test_environments_have_the_parts_of_the_data(capsys):
    factory = some(factory_of(env=TwoCameras))
    with Evaluator(factory, CAMERAS, envs=1, episodes=1) as evaluator:
        pool = evaluator.start()
        assert pool.observation_shape == {"front": (8, 10, 6), "state": (9,), "wrist": (6, 6, 6)}
        seen: list[Any] = []
        pool.run(lambda o, i, s: seen.append(o) or np.ones((1, 2)), 1, seed=0)
        frames, env = Frames({"front": 2, "state": 3, "wrist": 2}), TwoCameras()
        expected = [frames(env.reset(seed=episode_seed(0, 0))[0])]
        expected += [frames(env.step(np.ones(2, np.float32))[0]) for _ in seen[1:]]
        for actual, each in zip(seen, expected, strict=True):
            assert equal(jax.tree.map(lambda leaf: leaf[0], actual), each)
    assert "does not use these parts of the observations of" in capsys.readouterr().err
    with pytest.raises(
        EnvError, match="has no part 'wrist' in its observations: it has front, state, the data has fr"
    ):
        Evaluator(some(factory_of(env=Without)), CAMERAS, envs=1, episodes=1).start()
    single = Spec((3,), 2)
    with pytest.raises(EnvError, match=r"with the parts .*, but the data has a single array.*FlattenObservation"):
        Evaluator(factory, single, envs=1, episodes=1).start()
    other = replace(CAMERAS, parts=(*CAMERAS.parts[:2], Part("wrist", (4, 4, 6), "uint8")))
    words = r"shape \(6, 6, 6\) in the part 'wrist', but the data has \(4, 4, 6\) \(2 frames stacked\)"
    with EnvPool(factory.function(CAMERAS), 1) as pool, pytest.raises(EnvError, match=words):
        check_spaces("Two", pool, other)


def test_online_training_refuses_parts_before_it_starts(tmp_path):
    dataset = fidec.dataset_from_arrays(**episodes(3))
    with pytest.raises(
        ConfigError, match=r"online training takes observations of a single array.*front, state, wrist"
    ):
        fidec.fit(dataset, tmp_path / "run", algo="fql", env=TwoCameras, online_steps=10, **SMALL)
    assert not (tmp_path / "run").exists()


def bits(run: Path) -> bytes:
    return (run / "policy" / "model.safetensors").read_bytes()


def test_a_history_stacks_vectors_in_training_and_in_the_policy(tmp_path):
    dataset = fidec.dataset_from_arrays(**random_columns())
    fidec.fit(dataset, tmp_path / "three", **SMALL | {"algo": "bc", "steps": 2})
    policy = fidec.load_policy(tmp_path / "three")
    mean, std = dataset.observation_statistics
    assert (policy.spec.observation_mean, policy.spec.observation_std) == (3 * mean, 3 * std)
    frames = policy.frames()
    assert policy(frames(dataset.observations[0])).shape == (2,)
    with pytest.raises(ConfigError, match=r"the policy takes .*3 successive ones, which `policy.frames\(\)` stacks"):
        policy(dataset.observations[0])
    with pytest.raises(ConfigError, match="history must be at least 1"):
        fidec.fit(dataset, tmp_path / "zero", **{**SMALL, "history": 0})


@pytest.mark.slow
def test_a_video_shows_the_episodes_of_a_policy_of_parts(policy, tmp_path):
    seen: list[Any] = []

    def act(observations, episodes, steps):
        seen.append(observations)
        return policy(observations)

    make_env = some(factory_of(env=TwoCameras)).function(CAMERAS, render_mode="rgb_array")
    (played,) = record(make_env, act, tmp_path / "film.mp4", seed=0, episodes=range(1))
    assert played.length == len(seen)
    assert seen[0]["state"].shape == (1, 9)


@pytest.mark.slow
def test_the_device_the_host_and_a_resumed_run_give_the_same_bits(tmp_path):
    dataset = fidec.dataset_from_arrays(**episodes(10))
    how: dict[str, Any] = SMALL | {"algo": "bc"}
    fidec.fit(dataset, tmp_path / "device", **how)
    fidec.fit(dataset, tmp_path / "host", **how, memory_limit=0.0)
    assert bits(tmp_path / "device") == bits(tmp_path / "host")

    fidec.fit(dataset, tmp_path / "resumed", **{**how, "steps": 2})
    fidec.resume(tmp_path / "resumed", dataset, steps=4)
    assert bits(tmp_path / "resumed") == bits(tmp_path / "device")


@pytest.mark.slow
@pytest.mark.parametrize("algo", ["bc", "fidec"])
def test_two_cameras_from_training_to_an_export(algo, tmp_path, monkeypatch):
    dataset = fidec.dataset_from_arrays(**episodes(10))
    how = SMALL | {"algo": algo, "env": TwoCameras, "eval_interval": 4, "eval_episodes": 2, "eval_envs": 1}
    result = fidec.fit(dataset, tmp_path / "device", **how)
    assert result.evaluation is not None
    assert result.evaluation["evaluation/n"] == 2
    policy = fidec.load_policy(tmp_path / "device")
    assert {part.name: part.shape for part in policy.spec.parts}["wrist"] == (*WRIST[:2], 6)
    assert policy(policy.frames()(observation())).shape == (2,)
    monkeypatch.setattr(exporting, "COUNT", 50)
    monkeypatch.setattr(exporting, "SIZES", (50, 50))
    np.savez(
        tmp_path / "mine.npz",
        **{f"observations/{name}": array for name, array in dataset.observations.items()},
        **{f"next_observations/{name}": array for name, array in dataset.next_observations.items()},
        actions=dataset.actions,
        truncations=dataset.terminals,
    )
    exported = export_policy(tmp_path / "device", "onnx", tmp_path / "onnx", data=f"npz:{tmp_path}/mine.npz")
    assert exported["verification"]["real"] == 50
    if policy.algorithm.transport is not None:
        assert audit(policy, dataset, states=4, samples=4)["states"] == 4
