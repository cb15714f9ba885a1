"""Published hyper-parameters: the options of a method that depend on the task, each with its source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

PAPER = "FiDec paper's table of hyper-parameters"
FQL = "FQL's README"
FQL_PAPER = "FQL paper's appendix"
FQL_ONLINE = "FQL paper's offline-to-online table"
DEFLOW = "DeFlow's README"
FAN = "FAN's released scripts"
REGISTRY = "registry of FiDec's released code"
QAM = "QAM's released experiments"

# The shared options that a method has. A method that is not listed here (a plug-in) is offered all of them.
_DISCOUNT = ("discount",)
_FLOW = ("discount", "q_aggregate")
_SHARED = {
    "bc": (),
    **dict.fromkeys(("iql", "rebrac", "idql", "srpo", "cac", "ifql", "calql", "lps", "qam"), _DISCOUNT),
    **dict.fromkeys(("fan", "fawac", "fbrac", "fql", "rlpd"), _FLOW),
}


@dataclass(frozen=True)
class Published:
    """The published value of an option."""

    value: Any
    source: str


class Row(NamedTuple):
    """A row of the FiDec paper's table; most of it is FQL's. None is a dash: the method was not run there."""

    iql: float | None
    rebrac: tuple[float, float] | None
    idql: int | None
    srpo: float | None
    cac: float | None
    fawac: float | None
    fbrac: float
    ifql: int
    fql: float
    budget: float  # DeFlow's column, which is FiDec's too

    def options(self, method: str) -> dict[str, Any]:
        """The row's options of a method, except the budget, which has more than one source."""
        if method == "rebrac":
            return dict(zip(("actor_penalty", "critic_penalty"), self.rebrac or (), strict=False))
        name = {"idql": "samples", "ifql": "samples", "srpo": "beta", "cac": "eta"}.get(method, "alpha")
        value = getattr(self, method, None)
        return {} if value is None else {name: value}


class Space(NamedTuple):
    """Shapes and lengths of the environment and its data."""

    observation_shape: tuple[int, ...]
    action_dim: int
    horizon: int
    transitions: int | None = 1_000_000  # None: published copies of the data differ


Options = Mapping[str, Mapping[str, Published]]  # method -> option -> value


def options_from(source: str, **methods: Mapping[str, Any]) -> dict[str, dict[str, Published]]:
    """Options by method, all from one source."""
    return {
        method: {name: Published(value, source) for name, value in options.items()}
        for method, options in methods.items()
    }


def fan_options(actor: float, critic: float, discount: float, q_aggregate: str) -> dict[str, dict[str, Published]]:
    """FAN's options: the weights in actor and critic, and its own discount and aggregation."""
    penalties = {"actor_penalty": actor, "critic_penalty": critic}
    return options_from(FAN, fan={**penalties, "discount": discount, "q_aggregate": q_aggregate})


def merged(*parts: Options) -> dict[str, dict[str, Published]]:
    """Options by method; later parts win."""
    methods = dict.fromkeys(method for part in parts for method in part)
    return {m: {name: s for part in parts for name, s in part.get(m, {}).items()} for m in methods}


@dataclass(frozen=True)
class Family:
    """Tasks that share their hyper-parameters: in OGBench the tasks with the same data, in D4RL a single task."""

    name: str
    benchmark: str  # ogbench or d4rl
    category: str
    space: Space
    row: Row
    discount: float = 0.99
    q_aggregate: str = "mean"
    budget_deflow: float | None = None  # where DeFlow's README differs from the paper
    budget_released: float | None = None  # where the registry differs from the paper
    reward_shift: float = 0.0
    default_task: int | None = None  # the task of an OGBench id without a number
    extra: Options = field(default_factory=dict)  # from sources besides the row; of "METHOD" or "METHOD:PRESET"
    online: Options = field(default_factory=dict)  # what changes offline-to-online

    def options(self, method: str, preset: str, setting: str = "offline") -> dict[str, Published]:
        """The options of a method that these tasks change, from the source that the preset stands for."""
        shared = {
            "discount": Published(self.discount, FQL),
            "q_aggregate": Published(self.q_aggregate, FQL),
            "budget": self._budget(method, preset),
        }
        options = {name: shared[name] for name in _SHARED.get(method, tuple(shared))}
        if method == "rlpd":  # the minimum is for Adroit alone
            options["q_aggregate"] = Published("min" if self.category == "D4RL adroit" else "mean", FQL_PAPER)
        options |= {name: Published(value, PAPER) for name, value in self.row.options(method).items()}
        options |= {**self.extra.get(method, {}), **self.extra.get(f"{method}:{preset}", {})}
        return {**options, **(self.online.get(method, {}) if setting == "online" else {})}

    def _budget(self, method: str, preset: str) -> Published:
        if preset == "released":
            released = self.row.budget if self.budget_released is None else self.budget_released
            return Published(released, REGISTRY)
        if method == "deflow":
            return Published(self.row.budget if self.budget_deflow is None else self.budget_deflow, DEFLOW)
        return Published(self.row.budget, PAPER)
