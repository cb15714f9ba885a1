"""Published hyper-parameters: the options of a method that depend on the task, each with its source.

published.csv has a row for each family of tasks. Its columns `iql` to `budget` are the FiDec paper's table, most of
which is FQL's; `fan` and `corl_rebrac` are weights in actor and critic. The discount and the aggregation of the
target critics are those of FQL's published commands, which DeFlow and FiDec reuse. The budget has three sources that
do not always agree: the FiDec paper's table, DeFlow's README, and the registry beside FiDec's released code.

Where the paper's table has a dash, its results are those of earlier work. The options are then those of the earlier
work, if this package's method has them. They are starting points and not reproductions: for D4RL the earlier work
also changed rewards (on AntMaze ReBRAC 100 r, Cal-QL 10 r - 5 and CAC 4 (r - 0.5); on Adroit CAC standardised them),
discounts (ReBRAC 0.999 on AntMaze), networks and dropout.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any, NamedTuple

PAPER = "FiDec paper's table of hyper-parameters"
FQL = "FQL's README"
FQL_PAPER = "FQL paper's appendix"
FQL_ONLINE = "FQL paper's offline-to-online table"
DEFLOW = "DeFlow's README"
FAN = "FAN's released scripts"
REGISTRY = "registry of FiDec's released code"
QAM = "QAM's released experiments"
CORL = "CORL"
SRPO = "SRPO's released code"
IDQL = "IDQL's released code"
CAC = "CAC's released code"

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


Options = Mapping[str, Mapping[str, Published]]  # method -> option -> value


def options_from(source: str, **methods: Mapping[str, Any]) -> dict[str, dict[str, Published]]:
    """Options by method, all from one source."""
    return {
        method: {name: Published(value, source) for name, value in options.items()}
        for method, options in methods.items()
    }


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
    observation_shape: tuple[int, ...]
    action_dim: int
    horizon: int
    transitions: int | None  # of the data; None: published copies differ
    row: Row
    discount: float
    q_aggregate: str
    budget_deflow: float | None  # where DeFlow's README differs from the paper
    budget_released: float | None  # where the registry differs from the paper
    reward_shift: float
    default_task: int | None  # the task of an OGBench id without a number
    extra: Options  # from sources besides the row; of "METHOD" or "METHOD:PRESET"
    online: Options  # what changes offline-to-online

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


# --- OGBench -----------------------------------------------------------------------------------------------------

# FQL's authors chose widths and expectiles by the kind of task. Options that are not given here keep their default.
_WIDE = {"expectile": 0.7, "hidden": (512, 512)}
_NARROW = {"hidden": (256, 256, 256, 256)}
_HIGH = {"expectile": 0.9}
_LOCOMOTION = options_from(FQL_PAPER, idql=_WIDE, srpo=_WIDE)
_MANIPULATION = options_from(FQL_PAPER, iql=_NARROW, calql=_NARROW, idql=_HIGH, srpo=_HIGH)
_CALQL = {
    "humanoidmaze-medium-navigate": {"lagrange_gap": 0.8},
    "antsoccer-arena-navigate": {"lagrange_gap": 0.2},
    "cube-double-play": {"alpha": 0.01},
    "scene-play": {"alpha": 0.01},
    "puzzle-4x4-play": {"alpha": 0.003},
}


def _qam(
    plain: float,
    edit: tuple[float, float] | None,
    one_step: tuple[float, float] | None,
    source: str = QAM,
    pessimism: float = 0.5,
) -> Options:
    """QAM's inverse temperatures, with the scale of the edit and the weight of the distillation.

    None: the published runs of the variant are those of plain QAM.
    """

    def variant(name: str, weight: str, values: tuple[float, float] | None) -> dict[str, Any]:
        if values is None:
            return {"variant": "plain"}
        return {"variant": name, "inverse_temperature": values[0], weight: values[1]}

    parts = {
        "qam": {"inverse_temperature": plain, "pessimism": pessimism},
        "qam:edit": variant("edit", "edit_scale", edit),
        "qam:one_step": variant("one_step", "alpha", one_step),
    }
    return options_from(source, **parts)


_CHUNKS = f"{QAM}, with chunks of five actions"
_SPARSE = f"{_CHUNKS} and sparse rewards"
_QAM = {
    "antmaze-large-navigate": _qam(10.0, (1.0, 0.1), (3.0, 30.0)),
    "antmaze-giant-navigate": _qam(3.0, (10.0, 0.1), (3.0, 30.0)),
    "humanoidmaze-medium-navigate": _qam(3.0, (3.0, 0.1), (1.0, 30.0), pessimism=0.0),
    "humanoidmaze-large-navigate": _qam(3.0, (3.0, 0.1), (0.3, 30.0), pessimism=0.0),
    "cube-double-play": _qam(1.0, None, None, _CHUNKS),
    "scene-play": _qam(1.0, None, (1.0, 300.0), _SPARSE),
    "puzzle-3x3-play": _qam(3.0, (1.0, 0.1), None, _SPARSE),
    "puzzle-4x4-play": _qam(30.0, (0.1, 0.9), (3.0, 3.0), f"{_SPARSE}, 100 million transitions"),
}


def _ogbench_options(name: str) -> Options:
    """Options of a family besides those of published.csv."""
    kind = _LOCOMOTION if name.endswith("-navigate") else _MANIPULATION
    return merged(
        {} if name.startswith("visual-") else kind,
        options_from(FQL_ONLINE, calql=_CALQL.get(name, {})),
        _QAM.get(name, {}),
    )


# --- D4RL: AntMaze v2 and Adroit v1 ------------------------------------------------------------------------------

# SRPO's beta and CAC's options.
_ANTMAZE = {
    "antmaze-umaze-v2": (0.02, {"max_q_backup": False, "q_norm": True}),
    "antmaze-umaze-diverse-v2": (0.04, {"q_norm": True}),
    "antmaze-medium-play-v2": (0.08, {"policy_learning_rate": 1e-3}),
    "antmaze-medium-diverse-v2": (0.05, {"q_norm": True}),
    "antmaze-large-play-v2": (0.06, {"q_norm": True}),
    "antmaze-large-diverse-v2": (0.05, {"q_norm": True}),
}
# For this weight of a hand FAN's scripts have a second value (pen 1, door 10000, hammer 1, relocate 30000), and do
# not say which of the hand's data sets it belongs to. They name version v0 of the data.
_UNCLEAR = {
    "pen": "critic_penalty",
    "door": "actor_penalty",
    "hammer": "critic_penalty",
    "relocate": "actor_penalty",
}


def _antmaze_options(name: str) -> Options:
    srpo, cac = _ANTMAZE[name]
    return merged(
        options_from(
            CORL,
            iql={"alpha": 10.0, "expectile": 0.9},
            calql={"alpha": 5.0, "lagrange_gap": 0.8, "reward_scale": 10.0},
        ),
        options_from(IDQL, idql={"expectile": 0.9}),
        options_from(SRPO, srpo={"beta": srpo, "expectile": 0.9, "normalize_value_gradient": True}),
        options_from(FQL_PAPER, cac={"grad_clip": 5.0}),
        options_from(CAC, cac=cac),
    )


def _adroit_options(name: str) -> Options:
    value = {"expectile": 0.7}
    return merged(
        options_from(CORL, iql={"alpha": 3.0, "expectile": 0.8}, calql={"alpha": 1.0, "reward_scale": 1.0}),
        options_from(FQL_PAPER, idql=value, srpo=value, cac={"policy_learning_rate": 3e-5, "max_q_backup": False}),
        # CAC's code has options for pen-human and pen-cloned alone. FQL's authors took them for all hands.
        options_from(CAC if name in ("pen-human-v1", "pen-cloned-v1") else FQL_PAPER, cac={"q_norm": True}),
    )


# --- the table ---------------------------------------------------------------------------------------------------

_ONLINE: dict[str, Options] = {
    "humanoidmaze-medium-navigate": options_from(FQL, fql={"alpha": 100.0}),
    "antsoccer-arena-navigate": options_from(FQL, fql={"alpha": 30.0})
    | options_from(FAN, fan={"critic_penalty": 0.0}),
    **dict.fromkeys(
        ("pen-cloned-v1", "door-cloned-v1", "hammer-cloned-v1"),
        options_from(FQL, fql={"alpha": 1000.0}) | options_from(FQL_ONLINE, ifql={"samples": 128}),
    ),
}


def _cell(text: str) -> Any:
    """A number, None for a dash, or two numbers: the weights in actor and critic."""
    if " " in text:
        return tuple(map(float, text.split()))
    return None if not text else int(text) if text.isdecimal() else float(text)


def _weights(source: str, method: str, text: str, **others: Any) -> Options:
    """The weights in actor and critic, and `others`; nothing for a dash."""
    names = ("actor_penalty", "critic_penalty")
    return options_from(source, **{method: {**dict(zip(names, _cell(text), strict=True)), **others}}) if text else {}


def _fan(name: str, text: str, ogbench: bool) -> Options:
    """FAN's weights, with its own discount and aggregation."""
    aggregate = "mean" if ogbench and not name.startswith("visual-") else "min"
    options = _weights(FAN, "fan", text, discount=0.995 if ogbench else 0.99, q_aggregate=aggregate)
    unclear = _UNCLEAR.get(name.partition("-")[0])
    first = {unclear: options["fan"][unclear].value} if unclear else {}
    return merged(options, options_from(f"{FAN}, first of two values", fan=first))


def _family(row: dict[str, str]) -> Family:
    """A family from its row of published.csv."""
    name, ogbench = row["family"], bool(row["default_task"])
    if name.startswith("visual-"):
        category, options = "Visual manipulation", _ogbench_options(name)
    elif ogbench:
        category, options = f"OGBench {name.rpartition('-')[0]}-singletask", _ogbench_options(name)
    elif name in _ANTMAZE:
        category, options = "D4RL antmaze", _antmaze_options(name)
    else:
        category, options = "D4RL adroit", _adroit_options(name)
    return Family(
        name=name,
        benchmark="ogbench" if ogbench else "d4rl",
        category=category,
        observation_shape=tuple(map(int, row["observations"].split())),
        action_dim=int(row["actions"]),
        horizon=int(row["horizon"]),
        transitions=_cell(row["transitions"]),
        row=Row(*(_cell(row[column]) for column in Row._fields)),
        discount=float(row["discount"]),
        q_aggregate=row["q_aggregate"],
        budget_deflow=_cell(row["deflow_budget"]),
        budget_released=_cell(row["released_budget"]),
        reward_shift=-1.0 if name in _ANTMAZE else 0.0,
        default_task=_cell(row["default_task"]),
        extra=merged(options, _weights(CORL, "rebrac", row["corl_rebrac"]), _fan(name, row["fan"], ogbench)),
        online=_ONLINE.get(name, {}),
    )


_TABLE = resources.files("fidec.tasks").joinpath("published.csv").read_text(encoding="utf-8")
FAMILIES = {row["family"]: _family(row) for row in csv.DictReader(_TABLE.splitlines())}
