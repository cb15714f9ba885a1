"""Published hyper-parameters of the OGBench tasks, by family.

The discount and the aggregation of the target critics are those of FQL's published commands, which DeFlow and
FiDec reuse. The budget has three sources that do not always agree: the FiDec paper's table, DeFlow's README, and
the registry beside FiDec's released code.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fidec.tasks.published import (
    FAN,
    FQL,
    FQL_ONLINE,
    FQL_PAPER,
    QAM,
    Family,
    Options,
    Row,
    Space,
    fan_options,
    merged,
    options_from,
)

# FQL's authors chose widths and expectiles by the kind of task. Options that are not given here keep their default.
_WIDE = {"expectile": 0.7, "hidden": (512, 512)}
_NARROW = {"hidden": (256, 256, 256, 256)}
_HIGH = {"expectile": 0.9}
_LOCOMOTION = options_from(FQL_PAPER, idql=_WIDE, srpo=_WIDE)
_MANIPULATION = options_from(FQL_PAPER, iql=_NARROW, calql=_NARROW, idql=_HIGH, srpo=_HIGH)
_CHUNKS = f"{QAM}, with chunks of five actions"
_SPARSE = f"{_CHUNKS} and sparse rewards"


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


def _family(
    name: str,
    default_task: int,
    space: Space,
    row: Row,
    *,
    qam: Options | None = None,
    calql: Mapping[str, Any] | None = None,
    online_fql: float | None = None,
    fan: tuple[float, float] | None = None,
    online_fan: Mapping[str, Any] | None = None,
    **more: Any,
) -> Family:
    env = name.rpartition("-")[0]
    visual = name.startswith("visual-")
    kind = _LOCOMOTION if name.endswith("-navigate") else {} if visual else _MANIPULATION
    return Family(
        name,
        "ogbench",
        "Visual manipulation" if visual else f"OGBench {env}-singletask",
        space,
        row,
        default_task=default_task,
        extra=merged(
            kind,
            options_from(FQL_ONLINE, calql=calql or {}),
            {} if fan is None else fan_options(*fan, 0.995, "min" if visual else "mean"),
            qam or {},
        ),
        online=merged(
            options_from(FQL, fql={"alpha": online_fql}) if online_fql is not None else {},
            options_from(FAN, fan=online_fan or {}),
        ),
        **more,
    )


def _pixels(horizon: int) -> Space:
    return Space((64, 64, 3), 5, horizon)


# In the order of `Row`: IQL alpha, ReBRAC (actor, critic), IDQL N, SRPO beta, CAC eta, FAWAC alpha, FBRAC alpha,
# IFQL N, FQL alpha, and the budget.
_ALL = (
    _family(
        "antmaze-large-navigate",
        1,
        Space((29,), 8, 1000),
        Row(10.0, (0.003, 0.01), 32, 0.3, 1.0, 3.0, 3.0, 32, 10.0, 0.01),
        qam=_qam(10.0, (1.0, 0.1), (3.0, 30.0)),
        q_aggregate="min",
    ),
    _family(
        "antmaze-giant-navigate",
        1,
        Space((29,), 8, 1000),
        Row(10.0, (0.003, 0.01), 32, 0.3, 1.0, 3.0, 10.0, 32, 10.0, 0.01),
        qam=_qam(3.0, (10.0, 0.1), (3.0, 30.0)),
        discount=0.995,
        q_aggregate="min",
    ),
    _family(
        "humanoidmaze-medium-navigate",
        1,
        Space((69,), 21, 2000, 2_000_000),
        Row(10.0, (0.01, 0.01), 32, 0.3, 0.03, 3.0, 30.0, 32, 30.0, 0.001),
        qam=_qam(3.0, (3.0, 0.1), (1.0, 30.0), pessimism=0.0),
        discount=0.995,
        calql={"lagrange_gap": 0.8},
        online_fql=100.0,
    ),
    _family(
        "humanoidmaze-large-navigate",
        1,
        Space((69,), 21, 2000, 2_000_000),
        Row(10.0, (0.01, 0.01), 32, 0.3, 1.0, 3.0, 30.0, 32, 30.0, 0.001),
        qam=_qam(3.0, (3.0, 0.1), (0.3, 30.0), pessimism=0.0),
        discount=0.995,
    ),
    _family(
        "antsoccer-arena-navigate",
        4,
        Space((42,), 8, 1000),
        Row(1.0, (0.01, 0.01), 32, 0.03, 1.0, 10.0, 30.0, 64, 10.0, 0.01),
        discount=0.995,
        calql={"lagrange_gap": 0.2},
        online_fql=30.0,
        fan=(10.0, 0.1),
        online_fan={"critic_penalty": 0.0},
    ),
    _family(
        "cube-single-play",
        2,
        Space((28,), 5, 200),
        Row(1.0, (1.0, 0.0), 32, 0.03, 0.003, 1.0, 100.0, 32, 300.0, 0.001),
    ),
    _family(
        "cube-double-play",
        2,
        Space((37,), 5, 500),
        Row(0.3, (0.1, 0.0), 32, 0.1, 0.3, 0.3, 100.0, 32, 300.0, 0.001),
        qam=_qam(1.0, None, None, _CHUNKS),
        calql={"alpha": 0.01},
        fan=(100.0, 0.0),
    ),
    _family(
        "scene-play",
        2,
        Space((40,), 5, 750),
        Row(10.0, (0.1, 0.01), 32, 0.1, 0.3, 0.3, 100.0, 32, 300.0, 0.001),
        qam=_qam(1.0, None, (1.0, 300.0), _SPARSE),
        calql={"alpha": 0.01},
        fan=(100.0, 3.0),
    ),
    _family(
        "puzzle-3x3-play",
        4,
        Space((55,), 5, 500),
        Row(10.0, (0.3, 0.01), 32, 0.1, 0.01, 0.3, 100.0, 32, 1000.0, 0.0005),
        qam=_qam(3.0, (1.0, 0.1), None, _SPARSE),
        budget_deflow=0.005,
        budget_released=0.005,
        fan=(100.0, 3.0),
    ),
    _family(
        "puzzle-4x4-play",
        4,
        Space((83,), 5, 500),
        Row(3.0, (0.3, 0.01), 32, 0.1, 0.01, 0.3, 300.0, 32, 1000.0, 0.0005),
        qam=_qam(30.0, (0.1, 0.9), (3.0, 3.0), f"{_SPARSE}, 100 million transitions"),
        budget_deflow=0.005,
        budget_released=0.005,
        calql={"alpha": 0.003},
        fan=(100.0, 3.0),
    ),
    _family(
        "visual-cube-single-play",
        2,
        _pixels(200),
        Row(1.0, (1.0, 0.0), None, None, None, None, 100.0, 32, 300.0, 0.001),
    ),
    _family(
        "visual-cube-double-play",
        2,
        _pixels(500),
        Row(0.3, (0.1, 0.0), None, None, None, None, 100.0, 32, 100.0, 0.001),
        fan=(100.0, 0.1),
    ),
    _family(
        "visual-scene-play",
        2,
        _pixels(750),
        Row(10.0, (0.1, 0.01), None, None, None, None, 100.0, 32, 100.0, 0.001),
    ),
    _family(
        "visual-puzzle-3x3-play",
        4,
        _pixels(500),
        Row(10.0, (0.3, 0.01), None, None, None, None, 100.0, 32, 300.0, 0.0005),
        budget_released=0.005,
    ),
    _family(
        "visual-puzzle-4x4-play",
        4,
        _pixels(500),
        Row(3.0, (0.3, 0.01), None, None, None, None, 300.0, 32, 300.0, 0.0005),
        budget_released=0.005,
        fan=(100.0, 0.1),
    ),
)
FAMILIES = {family.name: family for family in _ALL}
