"""OGBench environments whose episodes depend on their seeds alone, not on earlier episodes."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np

from fidec.extras import require
from fidec.quiet import quiet

SPLITS = ("train", "val")

# Fields of the compiled model that OGBench's environments change in an episode: locks of drawer and window (damping),
# targets (site and geom positions) and colours. A reset does not restore them.
_MODEL_FIELDS = ("dof_damping", "site_pos", "geom_pos", "geom_rgba", "mat_rgba")
_SAVED_TYPES = (bool, int, float, str, tuple, np.ndarray, np.generic, type(None))


def open_env(env_id: str, **kwargs: Any) -> Any:
    """The environment without wrappers (the caller counts the rows), compiled and reset once."""
    import gymnasium

    require("ogbench", "ogbench", env_id)  # registers the environments
    with quiet():
        env: Any = gymnasium.make(env_id, terminate_at_goal=False, disable_env_checker=True, **kwargs).unwrapped
        # The first reset of a manipulation environment compiles the model and solves its contacts with different
        # gains. All later resets are equal.
        env.reset(seed=0)
    return env


class Snapshot:
    """The parts of an environment that a reset does not restore."""

    def __init__(self, env: Any):
        self._env = env
        self._attributes = {
            name: copy.deepcopy(value)
            for name, value in vars(env).items()
            if isinstance(value, _SAVED_TYPES) and name != "_np_random"
        }
        self._model = {name: getattr(env.model, name).copy() for name in _MODEL_FIELDS}

    def restore(self) -> None:
        for name, value in self._attributes.items():
            setattr(self._env, name, value.copy() if isinstance(value, np.ndarray) else value)
        for name, value in self._model.items():
            getattr(self._env.model, name)[:] = value


def seed_generators(seed: int, split: str, episode: int, attempt: int) -> int:
    """Seed the global NumPy generator, from which OGBench's oracles draw; returns the environment's seed."""
    sequence = np.random.SeedSequence(entropy=seed, spawn_key=(SPLITS.index(split), episode, attempt))
    words = sequence.generate_state(9)
    np.random.seed(words[:8])
    return int(words[8])


class Rows:
    """The rows of one episode, collected in the environment's own precision and stored in OGBench's."""

    def __init__(self, dtypes: dict[str, str]):
        self._dtypes = dtypes
        self._lists: dict[str, list[Any]] = {key: [] for key in dtypes}

    def append(self, **row: Any) -> None:
        for key, value in row.items():
            self._lists[key].append(value)

    def step(self, ob: Any, action: Any, info: dict[str, Any]) -> None:
        """A row of any environment: the state before the action, and the action."""
        before = {"qpos": info["prev_qpos"], "qvel": info["prev_qvel"]}
        self.append(observations=ob, actions=action, terminals=False, **before)

    def arrays(self) -> dict[str, np.ndarray]:
        self._lists["terminals"][-1] = True
        return {key: np.array(self._lists[key], dtype=dtype) for key, dtype in self._dtypes.items()}
