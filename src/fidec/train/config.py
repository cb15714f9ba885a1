"""The configuration of a run: a frozen dataclass. It is the command line's options and the run's config.json."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import tyro

from fidec import algos
from fidec.data.dataset import OfflineDataset
from fidec.data.source import load_dataset
from fidec.data.transforms import Transforms
from fidec.data.windows import Window
from fidec.errors import ConfigError
from fidec.register import check_choices
from fidec.store.remote import as_url
from fidec.train.acting import ActOptions

_BY_PROTOCOL = cast(int, None)  # None until `resolve` takes the value of the task's protocol
PROTOCOL_FIELDS = ("steps", "eval_interval", "eval_episodes")
# Of runs whose preset does not say otherwise (`Method.runs`).
USUAL = {"flow_updates": 0, "value_start": "zero", "reward_scale": 1.0, "reward_rule": "given"}
USUAL |= {"candidates": 1, "noise": 1.0}
PATHS = ("data_dir", "out", "init_from", "flow")


@dataclass(frozen=True)
class OnlineConfig:
    """Training in an environment after the offline phase. The defaults are the paper's protocol, which is FQL's."""

    sampling: Literal["uniform", "balanced"] | None = None
    """How batches are drawn: uniform over offline and online transitions together, or balanced, with a fixed share of
    each. By default balanced for RLPD and Cal-QL, and uniform for all other methods."""
    fraction: float = 0.5
    """Balanced sampling only: the share of online transitions in a batch."""
    capacity: int | None = None
    """Transitions that the buffer holds. When it is full, new ones replace the oldest. With uniform sampling it also
    holds the offline transitions. By default 2,000,000, or one more than the offline data if that is larger."""
    updates: int = 1
    """Gradient updates for each environment step."""
    collect: Literal["step", "episode"] | None = None
    """Alternate between one environment step and its updates, or between a whole episode and its updates. By default
    episode for Cal-QL, which needs returns, and step for all other methods."""
    envs: int = 1
    """Environments that are stepped together. Each adds a transition. With more than 1 the policy is updated only
    after all of them have stepped, which is not the paper's protocol."""
    overlap: bool = False
    """Update while the environment steps. The newest transition is used from the next update on, which is not the
    paper's protocol."""
    random_steps: int = 0
    """Number of first environment steps with uniformly random actions."""
    reward_shift: float | None = None
    """Added to the environment's rewards before they are stored. By default the same as was added to the data's
    rewards: -1 for D4RL's antmaze files (d4rl:ID), else 0."""
    reward_done: float | None = None
    """With --reward-rule: the environment's reward, after the shift, at which the task counts as done. By default the
    highest one of the data, if the rule changes its rewards."""
    freeze_flow: bool | None = None
    """Stop training the behaviour flow when the online phase begins. Only for methods that have one. By default on
    if the flow was trained first (--flow, --flow-updates), else off."""
    max_failures: int = 0
    """Number of episodes that may fail because of an environment error. After one more the run is saved and stops."""

    def __post_init__(self):
        check_choices(self, "online.")
        for name in ("updates", "envs"):
            _at_least(1, name, getattr(self, name))
        for name in ("random_steps", "max_failures"):
            _at_least(0, name, getattr(self, name))
        if self.capacity is not None:
            _at_least(2 * self.envs, "capacity", self.capacity)  # two transitions of each environment
        if not 0 < self.fraction < 1:
            raise ConfigError(f"online.fraction must lie strictly between 0 and 1, not {self.fraction}")
        if self.collect == "episode" and (self.envs > 1 or self.overlap):
            raise ConfigError(
                "online.collect episode needs one environment and no overlap: the updates follow the episode"
            )
        if self.overlap and self.envs > 1:
            raise ConfigError("online.overlap needs one environment: several environments step together already")


@dataclass(frozen=True)
class RunConfig:
    """A training run."""

    task: str | None = None
    """Task id, such as cube-single-play-singletask-task2-v0: an environment, its data and its published options."""
    env: str | None = None
    """Gymnasium id of your own environment, such as Pendulum-v1, or my_package:MyEnv-v0, which imports my_package.
    Without a --task or an --env nothing is evaluated."""
    algo: str = "fidec"
    """Method. `fidec algos` lists all methods."""
    preset: str = "recommended"
    """recommended, paper (exactly as published) or released (as in the authors' code); FiDec also has nats (one
    budget in nats for all tasks, the flow first). `fidec algos NAME` lists those of a method."""
    data: str | None = None
    """Data source: ogbench:ID, d4rl:ID, npz:PATH, hdf5:PATH, minari:ID, table:PATH, robomimic:PATH or lerobot:DIR. By
    default the task's own data."""
    buffer: str | None = None
    """Second data source. By default half of each batch is drawn from it, as in RLPD and Cal-QL."""
    buffer_fraction: float = 0.5
    """Share of the second data source in each batch, rounded to whole transitions."""
    action_low: tuple[float, ...] | None = None
    """Lowest actions of your own data, one number or one for each dimension, if they are not in [-1, 1] and the data
    does not store its bounds."""
    action_high: tuple[float, ...] | None = None
    """Highest actions, likewise."""
    action_quantile: float | None = None
    """Measure each action dimension by the data's own range: this quantile stands for -1, its opposite for 1, such as
    0.01 and 0.99. Actions beyond are clipped to them, and so the policy never leaves this range. By default the
    action bounds."""
    check_data: bool = True
    """Check your own data before training: print warnings and stop at errors. `fidec data check` shows everything."""
    data_dir: Path | None = None
    """Directory of the OGBench and D4RL data files. By default the cache directory, which `fidec doctor` shows."""
    init_from: Path | None = None
    """Start from the newest checkpoint of this run: its networks, targets and optimisers, and its observation
    statistics, at step 0. The method, the sizes of its networks and the shapes of the data must be equal."""
    memory_limit: float | None = None
    """GB. Data larger than this is not copied to the device as a whole. Its batches are read from main memory, or,
    for large arrays in npz files, from the disk. By default half of the device's free memory."""
    devices: int | None = None
    """Split each batch over this many devices of the machine, a divisor of --batch-size. The result is that of one
    device up to rounding. By default one: networks of the usual sizes are too small to gain from more. Several
    --seeds are spread over all devices, each run on one. An online phase uses one."""
    split_critics: bool = False
    """With --devices: each device has a part of the critics of the ensemble, and their optimiser, instead of all.
    --algo.critics must be a multiple of the devices. For large ensembles."""
    steps: Annotated[int, tyro.conf.arg(aliases=["--offline-steps"])] = _BY_PROTOCOL
    """Gradient steps on the data. By default as in the task's protocol; without a --task 100,000."""
    online_steps: int = 0
    """Environment steps after the offline phase, each with --online.updates gradient steps. The other defaults are
    then those of the paper's offline-to-online protocol, with its options if the task is in its table."""
    seed: int = 0
    """Random seed. Every random number is a function of the seed, a named stream and the step."""
    flow: Path | None = None
    """Run or policy whose behaviour flow is used as it is (fidec, fidec_closed_form, deflow, fql, fan, ifql, qam).
    Its actions at all next states are drawn once, if the method learns from them, and the rest is trained without
    solving it. Updates of an online phase solve it."""
    flow_updates: int | None = None
    """Train the behaviour flow first, alone, for at most this many updates, in OUT/flow; then as with --flow. By
    default as in the preset, else 0."""
    validation: float | None = None
    """Share of the episodes that is held out. Methods that imitate the data log their loss on it. By default 0.05
    for the flow of --flow-updates if there are at least 20 episodes, else 0."""
    patience: int = 10
    """With held-out episodes: stop after this many log intervals without a lower loss on them. 0 never stops."""
    chunk: int = 1
    """Steps whose actions the policy chooses together. Values are bootstrapped after the chunk, or after --n-step."""
    n_step: int | None = None
    """Steps until values are bootstrapped: rewards are summed with the discount. By default the length of a chunk;
    not less."""
    replan: int | None = None
    """With --chunk: steps of a chunk that are played before the next one is chosen. By default all of them."""
    ensemble: float | None = None
    """With --replan below --chunk: an action is the mean of all chunks that have its step, with the weights exp(-m i)
    for this m, i = 0 for the oldest chunk (temporal ensembling; ACT has m = 0.01). By default the newest chunk is
    played."""
    value_start: Literal["zero", "data"] | None = None
    """Where the critic's values start: at about zero, as published, or at the data's mean return, which becomes the
    bias of its output layer. By default as in the preset, else zero."""
    reward_scale: float | Literal["data"] | None = None
    """Factor of the rewards in training. data: one over the standard deviation of the data's returns, so that values
    vary by about 1. Evaluations report returns in the environment's own units. By default as in the preset, else
    1."""
    reward_rule: Literal["given", "sparse", "auto"] | None = None
    """Rewards in training: as in the data (given), or -1 in each step and 0 at the highest reward (sparse). auto is
    sparse for tasks that count what is left: a few rewards, the highest where the task is done and only there. By
    default as in the preset, else given."""
    batch_size: int = 256
    """Transitions in a batch, drawn uniformly with replacement."""
    frame_stack: int = 3
    """Images only: number of successive frames in an observation. 1 if the data's images are stacked already.
    Vectors have --history."""
    delay: int = 0
    """Steps between an observation and the beginning of its action, in training and in evaluations: the observation
    is that much older, and contains the actions that were chosen since then."""
    history: int = 1
    """Vectors only: number of successive observations in an observation, the oldest first. Images have
    --frame-stack."""
    normalize_observations: bool | None = None
    """Subtract the mean of each observation column of the data and divide by its standard deviation, in training and
    in the policy. By default on for your own data and off for a --task, as in its protocol. Images are never
    normalised like this."""
    augment: float = 0.5
    """Images only: probability that the images of a batch are shifted randomly, each by up to 3 pixels."""
    out: Path | None = None
    """Run directory; by default runs/TASK/ALGO-PRESET/seedNNN. A URL (s3://bucket/runs/x, gs://, hf://) is a place
    that is mirrored after every checkpoint; the run is trained in the cache directory, which is printed."""
    log_interval: int = 1_000
    """Steps between rows of train.jsonl. Each row is a mean over these steps."""
    eval_interval: int = _BY_PROTOCOL
    """Steps between evaluations. The last step is also evaluated. 0 turns evaluation off. By default as in the
    task's protocol; without a --task 10,000."""
    eval_episodes: int = _BY_PROTOCOL
    """Episodes in an evaluation. By default as in the task's protocol; without a --task 50."""
    eval_seeds: Literal["same", "fresh"] = "same"
    """Initial states of evaluations: the same at every evaluation of the run, so that differences are paired, or
    fresh ones at each, as if the environment were reset without a seed."""
    eval_envs: int = 0
    """Environment processes for evaluation. 0 means one more than there are cores, at most 8."""
    eval_background: bool | None = None
    """Train on while a copy of the policy is evaluated, at most one at a time. The results are the same. By default
    on if two cores can be used. Off with a callback, which may stop the run after an evaluation."""
    eval_timeout: float = 60.0
    """Seconds after which an environment that does not answer counts as hung. To start it has twice as long, and at
    least two minutes."""
    success_timing: Literal["pre", "post"] = "pre"
    """OGBench only: success is tested on the state before the action (pre), as in the data, or after it (post), as in
    OGBench < 1.2."""
    scale_actions: bool = False
    """Stretch the action bounds of the data to those of the environment, if they differ, as if its actions were given
    in other units. By default an environment with other bounds is refused."""
    candidates: int | None = None
    """Actions that the policy draws for each observation. With more than 1 the critic chooses among them. By default
    as in the preset, else 1."""
    noise: float | None = None
    """Factor of the policy's random draws when it acts: 1 as published, 0 without noise. By default as in the preset,
    else 1. Data is collected online with 1."""
    track: Literal["wandb", "trackio", "mlflow"] | None = None
    """Also send the numbers of the logs to this tracker, as a run of its project fidec. The tracker's own environment
    variables say where it keeps them. If it fails, the run goes on without it. TensorBoard's files are always in
    tb/."""
    checkpoint_interval: int = 10_000
    """Steps between checkpoints."""
    keep_checkpoints: int = 2
    """Number of checkpoints that are kept."""
    online: OnlineConfig = dataclasses.field(default_factory=OnlineConfig)
    """The online phase."""
    options: Any = None
    """Options of the method."""

    @property
    def total(self) -> int:
        """The number of all steps, offline and online."""
        return self.steps + self.online_steps

    @property
    def window(self) -> Window:
        """The steps of a transition."""
        learns_values = algos.get(self.algo).learns_values
        if self.n_step is not None and not learns_values:
            raise ConfigError(f"--n-step is for methods that learn a value: {self.algo} learns none")
        return Window(self.chunk, self.n_step or self.chunk, self.options.discount if learns_values else 1.0)

    @property
    def act(self) -> ActOptions:
        """How the policy acts by default, in evaluations and later."""
        return ActOptions(candidates=self.candidates, noise=self.noise)

    @property
    def has_flow(self) -> bool:
        """Whether the behaviour flow is trained before the rest."""
        return self.flow is not None or bool(self.flow_updates)

    @property
    def online_options(self) -> Any:
        """The method's options in the online phase."""
        return dataclasses.replace(self.options, train_flow=False) if self.online.freeze_flow else self.options

    @property
    def held_out(self) -> float:
        """The share of the episodes that this run does not train on. With --flow-updates it is the flow's alone."""
        return 0.0 if self.flow_updates else self.validation or 0.0

    @property
    def transforms(self) -> Transforms:
        """What the run does to whole data sets, before it draws rows from them."""
        return Transforms(self.reward_rule or "given", self.action_quantile, self.delay, self.held_out)

    @property
    def env_name(self) -> str | None:
        """The task or the environment, if the run has one."""
        return self.task or self.env

    @property
    def setting(self) -> str:
        """offline, or online for offline-to-online: the table of the paper that the run belongs to."""
        return "online" if self.online_steps else "offline"

    @property
    def env_options(self) -> dict[str, Any]:
        """Options of the environments."""
        return {"success_timing": self.success_timing, "scale_actions": self.scale_actions}

    def __post_init__(self):
        check_choices(self)
        if self.task is not None and self.env is not None:
            raise ConfigError(
                f"both --task {self.task} and --env {self.env} are given. A task has its own environment: omit one"
            )
        _at_least(0, "online_steps", self.online_steps)
        _at_least(0 if self.online_steps else 1, "steps", self.steps)
        positive = (
            "chunk",
            "batch_size",
            "frame_stack",
            "history",
            "eval_episodes",
            "candidates",
            "keep_checkpoints",
        )
        for name in (*positive, "log_interval", "checkpoint_interval"):
            _at_least(1, name, getattr(self, name))
        for name in ("seed", "delay", "eval_interval", "eval_envs", "flow_updates", "patience"):
            _at_least(0, name, getattr(self, name))
        _ = self.act  # checks its options
        if self.reward_scale not in (None, "data") and not 0 < self.reward_scale < float("inf"):
            raise ConfigError(f"reward_scale must be a positive number or data, not {self.reward_scale}")
        if self.memory_limit is not None and not self.memory_limit >= 0:
            raise ConfigError(f"memory_limit must not be negative, not {self.memory_limit}")
        if self.seed >= 2**32:
            raise ConfigError(f"seed must be below 2^32, not {self.seed}")
        if not self.eval_timeout > 0:
            raise ConfigError(f"eval_timeout must be positive, not {self.eval_timeout}")
        if not 0 <= self.augment <= 1:
            raise ConfigError(f"augment is a probability, in [0, 1], not {self.augment}")
        _ = self.transforms  # raises
        if not 0 < self.buffer_fraction < 1:
            raise ConfigError(f"buffer_fraction must lie strictly between 0 and 1, not {self.buffer_fraction}")

        for name in ("n_step", "replan", "devices"):
            if getattr(self, name) is not None:
                _at_least(1, name, getattr(self, name))
        if self.replan is not None and self.replan > self.chunk:
            raise ConfigError(
                f"--replan {self.replan} is more than --chunk {self.chunk}: there are no further actions to play"
            )
        if self.ensemble is not None and not (self.replan or self.chunk) < self.chunk:
            raise ConfigError("--ensemble needs chunks that overlap: give --chunk and a smaller --replan")
        if self.n_step is not None and self.n_step < self.chunk:
            raise ConfigError(
                f"--n-step {self.n_step} is less than --chunk {self.chunk}: the value of a chunk is known at its end"
            )
        if self.validation is not None and not 0 <= self.validation <= 0.5:
            raise ConfigError(f"validation is a share of the episodes, in [0, 0.5], not {self.validation}")
        if self.flow is not None and self.flow_updates:
            raise ConfigError("both --flow and --flow-updates are given: take a trained flow, or train one")
        reach = (self.n_step or self.chunk) + self.chunk
        if reach > 2 and 0 < self.online_steps < reach:
            raise ConfigError(
                f"--online-steps {self.online_steps} is less than {reach}: the first row of the buffer takes that "
                "many steps, because its next chunk has to be known"
            )

    def load(self, source: str) -> OfflineDataset:
        """The data of a source, with the directory and the action bounds of this run."""
        bounds = {
            name: value[0] if value is not None and len(value) == 1 else value
            for name, value in (("action_low", self.action_low), ("action_high", self.action_high))
        }
        return load_dataset(source, cache_dir=self.data_dir, **bounds)

    def to_json(self) -> dict[str, Any]:
        """Values for a JSON file, from which `stored.config_of` makes an equal configuration."""
        values = dataclasses.asdict(self)
        for name in PATHS:
            values[name] = None if values[name] is None else as_url(values[name]) or str(values[name])
        return values

    def fixed(self) -> dict[str, Any]:
        """The values that no resumed run may change, as JSON has them: all but its length, place and environments."""
        free = (
            "steps",
            "online_steps",
            "online",
            "env",
            "out",
            "data_dir",
            "init_from",
            "flow",
            "check_data",
            "memory_limit",
            "devices",
            "split_critics",
            "eval_envs",
            "eval_background",
            "track",
        )
        values = json.loads(json.dumps({name: v for name, v in self.to_json().items() if name not in free}))
        return values | {f"algo.{name}": value for name, value in values.pop("options").items()}


def _at_least(least: int, name: str, value: int | None) -> None:
    if value is None and name in (*PROTOCOL_FIELDS, *USUAL):
        return
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise ConfigError(f"{name} must be a whole number, not {value!r}")
    if value < least:
        raise ConfigError(f"{name} must be at least {least}, not {value}")
