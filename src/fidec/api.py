"""Training and evaluation from Python in one call."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Unpack, cast, overload

from fidec.data import OfflineDataset
from fidec.envs.factory import MakeEnv
from fidec.envs.video import check_video
from fidec.errors import ConfigError
from fidec.register import unknown
from fidec.train.acting import NAMES, ActArguments, ActOptions
from fidec.train.config import RunConfig
from fidec.train.evaluation import PolicyEvaluation
from fidec.train.protocol import resolve_options
from fidec.train.run import Result, train, train_seeds
from fidec.train.session import Callback


@overload
def fit(dataset: OfflineDataset | str, out: str | Path, *, seeds: None = None, **others: Any) -> Result: ...
@overload
def fit(dataset: OfflineDataset | str, out: str | Path, *, seeds: Sequence[int], **others: Any) -> list[Result]: ...
def fit(
    dataset: OfflineDataset | str,
    out: str | Path,
    *,
    algo: str = "fidec",
    preset: str = "recommended",
    steps: int | None = None,
    seed: int = 0,
    seeds: Sequence[int] | None = None,
    task: str | None = None,
    env: str | MakeEnv | None = None,
    options: dict[str, Any] | None = None,
    buffer: OfflineDataset | str | None = None,
    overwrite: bool = False,
    quiet: bool = False,
    callback: Callback | None = None,
    **fields: Any,
) -> Result | list[Result]:
    """Train a method on a data set (or on a source such as "npz:mine.npz") and write a run directory.

    `env` is the environment for evaluations and online steps: a Gymnasium id ("Pendulum-v1", "my_package:MyEnv-v0"),
    or a function that returns a Gymnasium environment, `env=lambda: MyEnv()` for example. It is called in other
    processes; if it takes `render_mode`, it gets "rgb_array" there for videos. A `task` of the benchmark
    has its own environment and published options. With neither nothing is evaluated.

    `options` are the method's (`{"budget": 0.01}`), `fields` any other field of `RunConfig` (`batch_size`,
    `eval_interval`, `online_steps`, ...). `steps` are by default those of the task's protocol, and 100,000 without a
    task. With a `buffer`, a second data set, half of each batch comes from it. `fidec.load_policy(result.policy)`
    loads the policy.

    With `seeds` several runs are trained by one compiled program, in `out`/seed000 and so on. The result is a list.

    `callback(step, metrics)` is called after each row of the logs, with "training/loss" and other means over the last
    `log_interval` steps, or with "evaluation/score" and other results of an evaluation. If it returns True, the run
    saves and stops: `result.stopped` is then True, and `fidec.resume` continues it. An error that it raises ends the
    run; the last checkpoint stays as it was.
    """
    known = {field.name for field in dataclasses.fields(RunConfig)} - {"data"}
    others = {"dataset", "overwrite", "quiet", "callback", "seeds"}  # the other parameters are fields too
    _check_names("fit", fields, known, others)
    setting = "online" if fields.get("online_steps") else "offline"
    config = RunConfig(
        task=task,
        env=env if isinstance(env, str) else None,
        algo=algo,
        preset=preset,
        data=dataset if isinstance(dataset, str) else None,
        steps=cast(int, steps),  # None: as on the command line
        seed=seed,
        out=Path(out),
        options=resolve_options(algo, preset, task, setting, **(options or {})),
        buffer=buffer if isinstance(buffer, str) else None,
        **fields,
    )
    data = (None if isinstance(dataset, str) else dataset, None if isinstance(buffer, str) else buffer)
    make_env = None if isinstance(env, str) else env
    if seeds is None:
        return train(config, *data, env=make_env, overwrite=overwrite, quiet=quiet, callback=callback)
    if callback is not None or seed != 0:
        raise ConfigError(f"{'callback' if callback else 'seed'} is for one run: leave it out with seeds")
    return train_seeds(config, seeds, *data, env=make_env, overwrite=overwrite, quiet=quiet)


def evaluate(
    directory: str | Path,
    *,
    env: str | MakeEnv | None = None,
    task: str | None = None,
    episodes: int = 50,
    base: bool = False,
    video: str | Path | None = None,
    seed: int | None = None,
    envs: int = 0,
    scale_actions: bool = False,
    **act: Unpack[ActArguments],
) -> dict[str, Any]:
    """Evaluate the policy of a run, as `fidec eval` does; the result is what `fidec eval --json` prints.

    By default in the run's environment. One that was given to `fit` as a function has to be given again. The means
    are under "refined", or under "policy" if the method refines no base policy, as bc. With `base` the behaviour flow
    is evaluated on the same episodes. `video` is the path of an mp4 of the first three episodes; if it cannot be
    written, a warning says why. `envs` are processes, and `scale_actions` is as in training. The other arguments are
    how the policy acts: `candidates`, `noise`, the factor of its random draws, `strength`, the factor of the
    displacement of a refined policy, `replan`, the steps that are played of a chunk of actions, and `ensemble`, the
    mean over overlapping chunks.
    """
    others = {"env", "task", "episodes", "base", "video", "seed", "envs", "scale_actions"}
    _check_names("evaluate", dict(act), set(NAMES), others)
    if video is not None:
        check_video(Path(video))
    where: dict[str, Any] = {"task": task, "env": env, "scale_actions": scale_actions}
    evaluation = PolicyEvaluation.of(directory, ActOptions(**act), seed=seed, envs=envs, **where)
    result = evaluation.evaluate(episodes, base=base)
    if video is not None:
        reason = evaluation.record(video, episodes=min(3, episodes))
        result["video"] = str(video) if reason is None else None
        if reason is not None:
            warnings.warn(reason, stacklevel=2)
    return result


def _check_names(function: str, given: dict[str, Any], known: set[str], parameters: set[str]) -> None:
    """Raise unless all names are known; `parameters` are those of the function, of which one may be meant."""
    for name in sorted(given.keys() - known):
        raise unknown(f"argument of {function}", name, known | parameters)
