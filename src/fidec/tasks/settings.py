"""Published hyper-parameters: what a task changes in a method's configuration, and who says so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

PAPER = "FiDec paper's table of hyper-parameters"
FQL = "FQL's README"
FQL_PAPER = "FQL paper's appendix"
FQL_ONLINE = "FQL paper's offline-to-online table"
DEFLOW = "DeFlow's README"
REGISTRY = "registry of FiDec's released code"

# Which of the shared settings a method has; one that is not listed here (a plug-in) is offered them all.
_DISCOUNT = ("discount",)
_FLOW = ("discount", "q_aggregate")
_SHARED = {
    "bc": (),
    **dict.fromkeys(("iql", "rebrac", "idql", "srpo", "cac", "ifql", "calql"), _DISCOUNT),
    **dict.fromkeys(("fawac", "fbrac", "fql", "rlpd"), _FLOW),
}


@dataclass(frozen=True)
class Setting:
    """An option's published value."""

    value: Any
    source: str


class Row(NamedTuple):
    """A row of the FiDec paper's table, most of it FQL's. None: a dash, since nobody ran the method there for it."""

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
        """What the row says of a method's own options; the budget has more than one source and is not among them."""
        if method == "rebrac":
            return dict(zip(("actor_penalty", "critic_penalty"), self.rebrac or (), strict=False))
        name = {"idql": "samples", "ifql": "samples", "srpo": "beta", "cac": "eta"}.get(method, "alpha")
        value = getattr(self, method, None)
        return {} if value is None else {name: value}


class Space(NamedTuple):
    """What the environment and its data look like."""

    observation_shape: tuple[int, ...]
    action_dim: int
    horizon: int
    transitions: int | None = 1_000_000  # None: varies between published copies of the data


Options = Mapping[str, Mapping[str, Setting]]  # method -> option -> setting


def options_from(source: str, **methods: Mapping[str, Any]) -> dict[str, dict[str, Setting]]:
    """Options by method, all from one source."""
    return {
        method: {name: Setting(value, source) for name, value in options.items()}
        for method, options in methods.items()
    }


def merged(*parts: Options) -> dict[str, dict[str, Setting]]:
    """Options by method; later parts win."""
    methods = dict.fromkeys(method for part in parts for method in part)
    return {m: {name: s for part in parts for name, s in part.get(m, {}).items()} for m in methods}


@dataclass(frozen=True)
class Family:
    """Tasks that share their hyper-parameters: in OGBench those with the same data, in D4RL each is alone."""

    name: str
    suite: str
    category: str
    space: Space
    row: Row
    discount: float = 0.99
    q_aggregate: str = "mean"
    budget_deflow: float | None = None  # where DeFlow's README differs from the paper
    budget_released: float | None = None  # where the registry differs from the paper
    reward_shift: float = 0.0
    default_task: int | None = None  # the task of an OGBench id without a number
    extra: Options = field(default_factory=dict)  # from sources besides the row
    online: Options = field(default_factory=dict)  # what changes offline-to-online

    def options(self, method: str, preset: str, setting: str = "offline") -> dict[str, Setting]:
        """What these tasks change in a method's configuration, from the source that the preset stands for."""
        shared = {
            "discount": Setting(self.discount, FQL),
            "q_aggregate": Setting(self.q_aggregate, FQL),
            "budget": self._budget(method, preset),
        }
        names = _SHARED.get(method, tuple(shared))
        found = {name: shared[name] for name in names}
        if method == "rlpd":  # the minimum is for Adroit alone
            found["q_aggregate"] = Setting("min" if self.category == "D4RL adroit" else "mean", FQL_PAPER)
        found |= {name: Setting(value, PAPER) for name, value in self.row.options(method).items()}
        found |= self.extra.get(method, {})
        if setting == "online":
            found |= self.online.get(method, {})
        return found

    def _budget(self, method: str, preset: str) -> Setting:
        if preset == "released":
            released = self.row.budget if self.budget_released is None else self.budget_released
            return Setting(released, REGISTRY)
        if method == "deflow":
            return Setting(self.row.budget if self.budget_deflow is None else self.budget_deflow, DEFLOW)
        return Setting(self.row.budget, PAPER)
