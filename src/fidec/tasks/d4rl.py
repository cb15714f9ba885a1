"""Published hyper-parameters of the D4RL tasks: AntMaze v2 and Adroit v1.

Where the FiDec paper's table of hyper-parameters has a dash, its results are those of earlier work. The options are
then those of the earlier work, if this package's method has them. They are starting points and not reproductions:
the earlier work also changed rewards (ReBRAC 100 r and Cal-QL 10 r - 5 on AntMaze, CAC 4 (r - 0.5) there
and standardised on Adroit), discounts (ReBRAC 0.999 on AntMaze), networks and dropout.
"""

from __future__ import annotations

from typing import Any

from fidec.tasks.published import (
    FAN,
    FQL,
    FQL_ONLINE,
    FQL_PAPER,
    Family,
    Row,
    Space,
    fan_options,
    merged,
    options_from,
)

CORL = "CORL"
SRPO = "SRPO's released code"
IDQL = "IDQL's released code"
CAC = "CAC's released code"
FAN_FIRST = f"{FAN}, first of two values"


def _antmaze(
    name: str,
    horizon: int,
    row: Row,
    *,
    rebrac: tuple[float, float],
    srpo: float,
    cac: dict[str, Any],
) -> Family:
    actor, critic = rebrac
    return Family(
        name,
        "d4rl",
        "D4RL antmaze",
        Space((29,), 8, horizon, None),
        row,
        budget_released=0.001,
        reward_shift=-1.0,
        extra=merged(
            options_from(
                CORL,
                iql={"alpha": 10.0, "expectile": 0.9},
                rebrac={"actor_penalty": actor, "critic_penalty": critic},
                calql={"alpha": 5.0, "lagrange_gap": 0.8, "reward_scale": 10.0},
            ),
            options_from(IDQL, idql={"expectile": 0.9}),
            options_from(SRPO, srpo={"beta": srpo, "expectile": 0.9, "normalize_value_gradient": True}),
            options_from(FQL_PAPER, cac={"grad_clip": 5.0}),
            options_from(CAC, cac=cac),
            {} if "umaze" in name else fan_options(3.0, 0.03, 0.99, "min"),
        ),
    )


_SPACES = {
    "pen": Space((45,), 24, 100, None),
    "door": Space((39,), 28, 200, None),
    "hammer": Space((46,), 26, 200, None),
    "relocate": Space((39,), 30, 200, None),
}
# FAN's weights in actor and critic. For the named one its scripts have a second value (1, 10000, 1 and 30000), and do
# not say which of a hand's data sets it belongs to. They name version v0 of the data.
_FAN = {
    "pen": ((1000.0, 0.0), "critic_penalty"),
    "door": ((3000.0, 10.0), "actor_penalty"),
    "hammer": ((10000.0, 0.3), "critic_penalty"),
    "relocate": ((10000.0, 10.0), "actor_penalty"),
}


def _adroit(name: str, row: Row, *, rebrac: tuple[float, float], online: bool = False) -> Family:
    actor, critic = rebrac
    hand = name.partition("-")[0]
    value = {"expectile": 0.7}
    penalties, unclear = _FAN[hand]
    fan = fan_options(*penalties, 0.99, "min")
    return Family(
        name,
        "d4rl",
        "D4RL adroit",
        _SPACES[hand],
        row,
        q_aggregate="min",
        budget_released=0.001,
        extra=merged(
            options_from(
                CORL,
                iql={"alpha": 3.0, "expectile": 0.8},
                rebrac={"actor_penalty": actor, "critic_penalty": critic},
                calql={"alpha": 1.0, "reward_scale": 1.0},
            ),
            options_from(
                FQL_PAPER, idql=value, srpo=value, cac={"policy_learning_rate": 3e-5, "max_q_backup": False}
            ),
            # CAC's code has options for pen-human and pen-cloned alone. FQL's authors took them for all hands.
            options_from(CAC if name in ("pen-human-v1", "pen-cloned-v1") else FQL_PAPER, cac={"q_norm": True}),
            fan,
            options_from(FAN_FIRST, fan={unclear: fan["fan"][unclear].value}),
        ),
        online=merged(options_from(FQL, fql={"alpha": 1000.0}), options_from(FQL_ONLINE, ifql={"samples": 128}))
        if online
        else {},
    )


def _row(cac: float, fawac: float, fbrac: float, ifql: int, fql: float, budget: float, idql=None, srpo=None) -> Row:
    """IQL and ReBRAC have a dash everywhere in D4RL."""
    return Row(None, None, idql, srpo, cac, fawac, fbrac, ifql, fql, budget)


# In this order: CAC eta, FAWAC alpha, FBRAC alpha, IFQL N, FQL alpha, the budget, IDQL N, SRPO beta.
_ALL = (
    _antmaze(
        "antmaze-umaze-v2",
        700,
        _row(0.01, 3.0, 10.0, 32, 10.0, 0.015),
        rebrac=(0.003, 0.002),
        srpo=0.02,
        cac={"max_q_backup": False, "q_norm": True},
    ),
    _antmaze(
        "antmaze-umaze-diverse-v2",
        700,
        _row(0.01, 3.0, 10.0, 32, 10.0, 0.015),
        rebrac=(0.003, 0.001),
        srpo=0.04,
        cac={"q_norm": True},
    ),
    _antmaze(
        "antmaze-medium-play-v2",
        1000,
        _row(0.01, 3.0, 10.0, 32, 10.0, 0.015),
        rebrac=(0.001, 0.0005),
        srpo=0.08,
        cac={"policy_learning_rate": 1e-3},
    ),
    _antmaze(
        "antmaze-medium-diverse-v2",
        1000,
        _row(0.01, 3.0, 10.0, 32, 10.0, 0.015),
        rebrac=(0.001, 0.0),
        srpo=0.05,
        cac={"q_norm": True},
    ),
    _antmaze(
        "antmaze-large-play-v2",
        1000,
        _row(4.5, 3.0, 1.0, 32, 3.0, 0.015),
        rebrac=(0.002, 0.001),
        srpo=0.06,
        cac={"q_norm": True},
    ),
    _antmaze(
        "antmaze-large-diverse-v2",
        1000,
        _row(3.5, 3.0, 1.0, 32, 3.0, 0.015),
        rebrac=(0.002, 0.002),
        srpo=0.05,
        cac={"q_norm": True},
    ),
    _adroit("pen-human-v1", _row(0.003, 0.03, 30000.0, 32, 10000.0, 0.01, 32, 0.03), rebrac=(0.1, 0.5)),
    _adroit("pen-cloned-v1", _row(0.003, 0.3, 10000.0, 32, 10000.0, 0.01, 32, 0.1), rebrac=(0.05, 0.5), online=True),
    _adroit("pen-expert-v1", _row(0.03, 0.1, 30000.0, 32, 3000.0, 0.01, 32, 0.1), rebrac=(0.01, 0.01)),
    _adroit("door-human-v1", _row(0.03, 1.0, 30000.0, 32, 30000.0, 0.001, 32, 0.01), rebrac=(0.1, 0.1)),
    _adroit(
        "door-cloned-v1", _row(0.03, 1.0, 10000.0, 128, 30000.0, 0.001, 32, 0.03), rebrac=(0.01, 0.1), online=True
    ),
    _adroit("door-expert-v1", _row(0.03, 3.0, 30000.0, 32, 30000.0, 0.001, 32, 0.01), rebrac=(0.05, 0.01)),
    _adroit("hammer-human-v1", _row(0.03, 3.0, 30000.0, 32, 30000.0, 0.001, 128, 0.1), rebrac=(0.01, 0.5)),
    _adroit(
        "hammer-cloned-v1", _row(0.003, 0.03, 10000.0, 32, 10000.0, 0.001, 32, 0.1), rebrac=(0.1, 0.5), online=True
    ),
    _adroit("hammer-expert-v1", _row(0.03, 3.0, 30000.0, 32, 30000.0, 0.001, 32, 0.03), rebrac=(0.01, 0.01)),
    _adroit("relocate-human-v1", _row(0.01, 0.3, 30000.0, 128, 10000.0, 0.001, 32, 0.03), rebrac=(0.1, 0.01)),
    _adroit("relocate-cloned-v1", _row(0.01, 0.1, 3000.0, 32, 30000.0, 0.001, 64, 0.03), rebrac=(0.1, 0.01)),
    _adroit("relocate-expert-v1", _row(0.003, 1.0, 30000.0, 32, 30000.0, 0.001, 32, 0.01), rebrac=(0.05, 0.01)),
)
FAMILIES = {family.name: family for family in _ALL}
