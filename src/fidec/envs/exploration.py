"""Environments for online exploration: they can be resumed exactly, and a failure loses no other step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import gymnasium
import numpy as np

from fidec.envs.processes import EVENTS, EnvProcesses, receive
from fidec.errors import ConfigError, EnvError


def exploration_seed(seed: int, index: int) -> int:
    """The reset seed of exploration episode `index`: the first word of NumPy's `SeedSequence([seed, index, 1])`.

    Evaluation takes `SeedSequence([seed, index])`, so its episodes are never those of exploration.
    """
    return int(np.random.SeedSequence([seed, index, 1]).generate_state(1)[0])


class Transition(NamedTuple):
    """One step of one lane. Both observations are of the same episode."""

    lane: int
    episode: int
    step: int  # within the episode, the first is 0
    observation: np.ndarray
    action: np.ndarray  # float32, as given
    reward: float
    terminated: bool
    truncated: bool
    next_observation: np.ndarray
    success: float | None  # info["success"] or info["is_success"], None without either


class Failure(EnvError):
    """The environment of `episode` crashed, hung or returned an invalid value (`kind`) after `step` steps.

    A reset that fails is a failure of the new episode after 0 steps.
    """

    def __init__(self, lane: int, episode: int, seed: int, step: int, kind: str, detail: str):
        self.lane, self.episode, self.seed, self.step = lane, episode, seed, step
        self.kind, self.detail = kind, detail
        steps = f"{step} step{'' if step == 1 else 's'}"
        super().__init__(
            f"the environment of episode {episode} (seed {seed}, lane {lane}) {EVENTS[kind]} after {steps}: {detail}"
        )


class Lanes(EnvProcesses):
    """`num_envs` environments that step together. Each lane runs its own episodes.

    Episode k is reset with `exploration_seed(seed, k)`, which determines all random numbers of its environment. A
    lane whose episode ends takes the next free index at once, in the order of the lanes.

    `receive` returns one transition of each lane. `next_observation` of an episode's last step is the last
    observation of that episode. Gymnasium's vector environments differ: with "next-step" autoreset the step after an
    end ignores its action and only resets; with "same-step" autoreset the observation returned with an end belongs
    to the next episode. Here a reset is never part of a transition.

    If an environment fails, `receive` waits for all others and raises a `Failure`. `recover` then replaces that
    lane's process, moves the lane to the next free episode, and returns the round's transitions of the other lanes
    (and of the lane itself, if only the reset after its last step failed). One call of `recover` handles one Failure.
    If another lane failed too, or the reset of the new episode fails, `recover` raises the next Failure.
    """

    def __init__(self, make_env: Callable[[], gymnasium.Env], num_envs: int, **options: Any):
        super().__init__(make_env, num_envs, **options)
        self._clear(seed=0, next_episode=0, failures=0)

    @property
    def observations(self) -> np.ndarray:
        """The current observation of each lane (num_envs, *shape), a copy."""
        return np.stack(self._observations)

    @property
    def episodes(self) -> np.ndarray:
        """The index of each lane's episode, a copy."""
        return self._episodes.copy()

    @property
    def steps(self) -> np.ndarray:
        """The number of steps in each lane's episode, a copy."""
        return self._steps.copy()

    @property
    def failures(self) -> int:
        """The number of failures that `recover` handled."""
        return self._failures

    @property
    def position(self) -> dict[str, Any]:
        """The position of the lanes for `restore`, after the transitions that were returned.

        A round that is running, or that failed and was not recovered, is not part of it.
        """
        if self._position is None:
            raise EnvError("these Lanes have no position yet; call begin or restore first")
        return self._position

    def begin(self, seed: int, next_episode: int = 0) -> None:
        """Reset every lane, to the episodes from `next_episode` on."""
        self._clear(seed, next_episode, failures=0)
        self._reset_to_next(range(self.num_envs))
        self._finish_round()

    def send(self, actions: np.ndarray) -> None:
        """Start a step of all lanes and return at once, so that the network can be updated meanwhile.

        Actions (num_envs, d) in [-1, 1] are clipped and scaled to the environment's Box, as in evaluation.
        """
        self._check_open()
        unfinished = self._transitions or self._failed or any(process.busy for process in self._processes.values())
        if self._position is None or unfinished:
            raise EnvError("send comes after begin, restore, receive or recover has succeeded")
        self._sent = self._check_actions(actions, range(self.num_envs), self._episodes, self._steps).copy()
        for lane, action in enumerate(self._sent):
            self._processes[lane].send("step", action)

    def receive(self) -> list[Transition]:
        """Wait for the step of all lanes, reset those whose episode ended, and return the transitions by lane."""
        if self._sent is None:
            raise EnvError("receive comes after send")
        actions, self._sent = self._sent, None
        ended = []
        for lane, kind, value in self._answers(range(self.num_envs)):
            if kind != "ok":
                self._fail(lane, kind, value)
                continue
            before, (observation, reward, terminated, truncated, success) = self._observations[lane], value
            episode, step = int(self._episodes[lane]), int(self._steps[lane])
            end = (terminated, truncated)
            self._transitions.append(
                Transition(lane, episode, step, before, actions[lane], reward, *end, observation, success)
            )
            self._observations[lane] = observation
            self._steps[lane] += 1
            if any(end):
                ended.append(lane)
        self._reset_to_next(ended)
        return self._finish_round()

    def step(self, actions: np.ndarray) -> list[Transition]:
        """`send`, then `receive`."""
        self.send(actions)
        return self.receive()

    def recover(self) -> list[Transition]:
        """Continue after the `Failure` that was just raised, and return the transitions of its round."""
        self._check_open()
        if not self._failed:
            raise EnvError("recover comes after a Failure")
        self._failures += 1
        self._reset_to_next([self._failed.pop(0).lane])
        return self._finish_round()

    def restore(
        self,
        seed: int,
        position: Mapping[str, Any],
        actions_of: Callable[[int], np.ndarray],
        observations_of: Callable[[int], np.ndarray],
    ) -> list[int]:
        """Return to `position`: reset every lane with its episode's seed and repeat the recorded actions.

        For an episode, `actions_of` gives the actions (steps, d) and `observations_of` the next observations
        (steps, *shape), of stacked images the newest frames. If every step gives the recorded observation bit for
        bit, the lane continues as if it had not been interrupted. Otherwise, or if the episode ends or fails on the
        way, the simulator is not deterministic: the lane starts the next free episode, and its number is returned.
        """
        entries = position["lanes"]
        if len(entries) != self.num_envs:
            raise ConfigError(f"the position has {len(entries)} lanes, but there are {self.num_envs} environments")
        self._clear(seed, position["next_episode"], position["failures"])
        self._position = dict(position)
        self._episodes[:] = [entry["episode"] for entry in entries]
        self._steps[:] = [entry["step"] for entry in entries]
        lost = self._repeat(
            [actions_of(entry["episode"]) for entry in entries],
            [observations_of(entry["episode"]) for entry in entries],
        )
        self._reset_to_next(lost)
        self._finish_round()
        return lost

    def _repeat(self, actions: list[np.ndarray], observations: list[np.ndarray]) -> list[int]:
        """Repeat all lanes' episodes up to their steps; returns the lanes that did not repeat."""
        for episode, steps, *recorded in zip(self._episodes, self._steps, actions, observations, strict=True):
            if [len(column) for column in recorded] != [steps, steps]:
                raise EnvError(
                    f"episode {episode} has had {steps} steps, but {len(recorded[0])} actions and "
                    f"{len(recorded[1])} observations are recorded"
                )
        lost = []
        for lane, kind, value in self._reset(range(self.num_envs)):
            if kind == "ok":
                self._observations[lane] = value
            else:
                lost.append(lane)
        for step in range(self._steps.max()):
            going = [lane for lane in range(self.num_envs) if step < self._steps[lane] and lane not in lost]
            for lane in going:
                self._processes[lane].send("step", np.asarray(actions[lane][step], np.float32))
            for lane, kind, value in self._answers(going):
                if kind == "ok" and not any(value[2:4]) and _ends_with(value[0], observations[lane][step]):
                    self._observations[lane] = value[0]
                else:
                    lost.append(lane)
        return sorted(lost)

    def _clear(self, seed: int, next_episode: int, failures: int) -> None:
        self._check_open()
        if seed < 0 or next_episode < 0:
            raise ConfigError(f"seed = {seed} and next_episode = {next_episode} must not be negative")
        self._seed, self._next, self._failures = seed, next_episode, failures
        self._observations = [np.zeros(self.observation_shape, self.observation_dtype)] * self.num_envs
        self._episodes, self._steps = np.zeros((2, self.num_envs), np.int64)
        self._sent: np.ndarray | None = None
        self._transitions: list[Transition] = []  # of a round that was not returned yet
        self._failed: list[Failure] = []
        self._position: dict[str, Any] | None = None

    def _finish_round(self) -> list[Transition]:
        if self._failed:
            raise self._failed[0]
        lanes = zip(self._episodes.tolist(), self._steps.tolist(), strict=True)
        self._position = {
            "next_episode": self._next,
            "lanes": [{"episode": episode, "step": step} for episode, step in lanes],
            "failures": self._failures,
        }
        transitions, self._transitions = self._transitions, []
        return transitions

    def _reset_to_next(self, lanes: Iterable[int]) -> None:
        for lane in lanes:
            self._episodes[lane], self._steps[lane] = self._next, 0
            self._next += 1
        for lane, kind, value in self._reset(lanes):
            if kind == "ok":
                self._observations[lane] = value
            else:
                self._fail(lane, kind, value)

    def _reset(self, lanes: Iterable[int]) -> list[tuple[int, str, Any]]:
        self._revive(lanes)
        for lane in lanes:
            self._processes[lane].send("reset", exploration_seed(self._seed, int(self._episodes[lane])))
        return self._answers(lanes)

    def _answers(self, lanes: Iterable[int]) -> list[tuple[int, str, Any]]:
        """(lane, kind, value) of each lane. A process that failed is ended."""
        replies = receive([self._processes[lane] for lane in lanes], self._step_timeout)
        for lane, (kind, _) in zip(lanes, replies, strict=True):
            if kind != "ok":
                self._end(lane)
        return [(lane, *reply) for lane, reply in zip(lanes, replies, strict=True)]

    def _fail(self, lane: int, kind: str, detail: str) -> None:
        episode, step = int(self._episodes[lane]), int(self._steps[lane])
        self._failed.append(Failure(lane, episode, exploration_seed(self._seed, episode), step, kind, detail))


def _ends_with(observation: np.ndarray, recorded: np.ndarray) -> bool:
    """Whether the last channels of an observation are those recorded, bit for bit (-0.0 is not 0.0)."""
    recorded = np.asarray(recorded, observation.dtype)
    return observation[..., -recorded.shape[-1] :].tobytes() == recorded.tobytes()
