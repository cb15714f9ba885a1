"""Named sets of runs: tasks, methods as they are to be set, and the size at which they run.

The benchmark's suites take steps, evaluations and options from `fidec.tasks`. A `Scale` makes them smaller, always in
the same way. The demos have tasks and sizes of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from fidec import tasks
from fidec.bench.scale import SMALL, Scale
from fidec.errors import ConfigError
from fidec.tasks import Task
from fidec.tasks.ablation import REPORTED, T_EPS


@dataclass(frozen=True)
class Variant:
    """A method as a suite runs it: a column of its table."""

    method: str
    preset: str = "recommended"
    options: Mapping[str, Any] = field(default_factory=dict)  # over the published ones and the scale's
    suffix: str = ""  # tells variants of one preset apart
    paper: str = ""  # column of the paper's ablation; without one the paper's main table counts

    @property
    def name(self) -> str:
        """Its directory: fidec-paper, fidec-paper-t0.80."""
        return "-".join(part for part in (self.method, self.preset, self.suffix) if part)

    @property
    def label(self) -> str:
        """Its column: fql, fidec:paper, fidec:paper t0.80."""
        preset = "" if self.preset == "recommended" else f":{self.preset}"
        return f"{self.method}{preset} {self.suffix}".rstrip()

    def matches(self, word: str) -> bool:
        """Whether `NAME` or `NAME:PRESET` means this variant."""
        return word in (self.method, f"{self.method}:{self.preset}")

    def reported(self, task: str, setting: str = "offline") -> Any:
        """What the paper reports for it on a task, in percent: a `Reported`, online two of them; None if nothing."""
        if self.paper:
            return REPORTED.get(task, {}).get(self.paper)
        row = tasks.find(task, setting)
        return row.paper.get(self.method) if row else None


@dataclass(frozen=True)
class Suite:
    """Methods compared on the same tasks and data, at the same size."""

    name: str
    summary: str
    tasks: tuple[str, ...]
    variants: tuple[Variant, ...]
    setting: str = "offline"
    open: bool = True  # whether other methods and presets may be asked for
    scale: Scale | None = None  # a size of its own
    unpublished: Mapping[str, Mapping[str, Mapping[str, Any]]] = field(default_factory=dict)
    """Options by task and method, where nobody published any."""

    def changes(self, task: str, variant: Variant) -> dict[str, Any]:
        """What it changes itself in a method's configuration on a task."""
        return {**self.unpublished.get(task, {}).get(variant.method, {}), **variant.options}

    def choose_tasks(self, patterns: tuple[str, ...]) -> tuple[str, ...]:
        """The tasks that fit a pattern, in the suite's order; all without one."""
        for pattern in patterns:
            if not any(fnmatchcase(task, pattern) for task in self.tasks):
                raise ConfigError(
                    f"suite {self.name!r} has no task {pattern!r}. A pattern is matched with whole ids, such as "
                    f"{self.tasks[0]}: *cube* means all that have cube in them"
                )
        return tuple(t for t in self.tasks if not patterns or any(fnmatchcase(t, p) for p in patterns))

    def choose_variants(self, words: tuple[str, ...]) -> tuple[Variant, ...]:
        """The variants that are asked for by NAME or NAME:PRESET; all without a word."""
        if not words:
            return self.variants
        if self.open:
            return tuple(Variant(method, preset) for method, preset in map(_split, words))
        unknown = [word for word in words if not any(variant.matches(word) for variant in self.variants)]
        if unknown:
            known = ", ".join(dict.fromkeys(variant.method for variant in self.variants))
            raise ConfigError(f"suite {self.name!r} has no method {', '.join(unknown)}; it has {known}")
        return tuple(variant for variant in self.variants if any(variant.matches(word) for word in words))


def _split(word: str) -> tuple[str, str]:
    """NAME or NAME:PRESET."""
    method, _, preset = word.partition(":")
    return method, preset or "recommended"


# --- the suites -------------------------------------------------------------------------------------------------

# The rivals as recommended; FiDec to the letter of the paper, and as recommended here.
METHODS = ("bc", "iql", "rebrac", "idql", "srpo", "cac", "fawac", "fbrac", "ifql", "fql", "deflow")
OFFLINE = (*(Variant(method) for method in METHODS), Variant("fidec", "paper"), Variant("fidec"))
ONLINE = (
    *(Variant(method) for method in ("iql", "rebrac", "calql", "rlpd", "ifql", "fql", "deflow")),
    Variant("fidec", "paper"),
    Variant("fidec"),
)


def _rows(setting: str = "offline") -> tuple[Task, ...]:
    return tuple(row for row in tasks.TASKS if row.setting == setting)


def _ids(prefixes: tuple[str, ...] = ("",), *, suite: str = "", visual: bool | None = None) -> tuple[str, ...]:
    return tuple(
        row.id
        for row in _rows()
        if row.benchmark.startswith(suite)
        and row.id.startswith(prefixes)
        and (visual is None or row.id.startswith("visual-") == visual)
    )


def _defaults(ids: tuple[str, ...]) -> tuple[str, ...]:
    """Of each family the task that its name without a number means."""
    found = (tasks.find(f"{name.split('-singletask')[0]}-singletask-v0") for name in ids)
    return tuple(dict.fromkeys(row.id for row in found if row is not None))


_STATE = _ids(suite="ogbench", visual=False)
_DEFLOW = Variant("deflow", paper="deflow")
_FISHER = tuple(Variant("fidec", "paper", {"t_eps": t}, f"t{t:.2f}", f"{t:.2f}") for t in T_EPS)

# Chosen by measurement for ten minutes on two cores; README says what they give.
DEMO_SCALE = Scale(
    name="demo",
    summary="100,000 rows, 3 layers of 128, 15,000 steps, 50 episodes an evaluation",
    rows=100_000,
    steps=15_000,
    eval_interval=7_500,
    eval_episodes=50,
    averaged=1,
    options={"hidden": (128, 128, 128), "discount": 0.97, "learning_rate": 1e-3},
)
DEMO = Suite(
    name="demo",
    summary="the twelve offline methods on the demo's task, data, network and steps",
    tasks=("cube-single-play-singletask-task2-v0",),
    # The published settings of the task, but for these; docs/methods/comparison.md says what other values gave.
    variants=(
        Variant("bc"),
        Variant("iql"),
        Variant("rebrac"),
        Variant("idql", options={"denoiser_width": 128}),
        Variant("srpo", options={"denoiser_width": 128, "policy_hidden": (128, 128, 128), "beta": 0.1}),
        Variant("cac", options={"ema_start": 0, "ema_interval": 1, "schedule_steps": 15_000}),  # as in SMALL
        Variant("fawac"),
        Variant("fbrac"),
        Variant("ifql"),
        Variant("fql"),
        Variant("deflow"),
        Variant("fidec"),
    ),
    open=False,
    scale=DEMO_SCALE,
)

_CUBE, _MAZE = "cube-single-play-singletask-task2-v0", "pointmaze-medium-navigate-singletask-task3-v0"
DEMO_ONLINE = Suite(
    name="demo-online",
    summary="offline to online on two tasks, small: FQL, RLPD, Cal-QL and FiDec",
    tasks=(_CUBE, _MAZE),
    variants=(Variant("fql"), Variant("rlpd"), Variant("calql"), Variant("fidec", "paper"), Variant("fidec")),
    setting="online",
    open=False,
    scale=Scale(
        name="demo-online",
        summary="100,000 rows, 3 layers of 128, batches of 128",
        rows=100_000,
        steps=10_000,
        online_steps=10_000,
        eval_interval=2_500,
        eval_episodes=20,
        averaged=1,
        batch_size=128,
        options=SMALL.options,
        manipulation=SMALL.manipulation,
        methods={"calql": SMALL.methods["calql"]},
    ),
    # Neither task is in the paper's online table. On the cube the family's offline settings hold; Cal-QL has none
    # and takes cube-double's. For the maze nobody published any. A shorter discount and faster targets than usual let
    # the critic see the goal within 10,000 updates: with 0.99, 0.005 and an alpha of 10 FQL never reached it there.
    unpublished={
        _CUBE: {"calql": {"alpha": 0.01}},
        _MAZE: {
            method: {"discount": 0.98, "target_rate": 0.02, **options}
            for method, options in {
                "fql": {"alpha": 3.0},
                "rlpd": {},
                "calql": {"alpha": 5.0, "lagrange_gap": 0.8},  # as on D4RL's antmaze
                "fidec": {"budget": 0.01},  # as on OGBench's antmaze
            }.items()
        },
    },
)

SUITES = {
    suite.name: suite
    for suite in (
        Suite("ogbench-state", "OGBench's state tasks", _STATE, OFFLINE),
        Suite("ogbench-default", "the default task of each state family", _defaults(_STATE), OFFLINE),
        Suite("ogbench-visual", "OGBench's pixel tasks", _ids(suite="ogbench", visual=True), OFFLINE),
        Suite("d4rl-antmaze", "D4RL's antmaze tasks", _ids(("antmaze-",), suite="d4rl"), OFFLINE),
        Suite(
            "d4rl-adroit", "D4RL's hand tasks", _ids(("pen-", "door-", "hammer-", "relocate-"), suite="d4rl"), OFFLINE
        ),
        Suite("paper", "all offline tasks of the paper", _ids(), OFFLINE),
        Suite(
            "paper-online",
            "the paper's offline-to-online tasks",
            tuple(row.id for row in _rows("online")),
            ONLINE,
            setting="online",
        ),
        Suite(
            "ablation-t-eps",
            "the paper's ablation of t_eps, beside DeFlow",
            tuple(REPORTED),
            (_DEFLOW, *_FISHER),
            open=False,
        ),
        Suite(
            "ablation-metric",
            "the paper's ablation of the metric: isotropic (DeFlow) against Fisher at t_eps 0.8",
            tuple(REPORTED),
            (_DEFLOW, _FISHER[T_EPS.index(0.80)]),
            open=False,
        ),
        DEMO,
        DEMO_ONLINE,
    )
}
