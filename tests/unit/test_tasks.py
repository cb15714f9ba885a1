"""The published settings against the tables they come from, typed here a second time."""

from __future__ import annotations

import dataclasses

import pytest

from fidec import algos, tasks
from fidec.algos import base
from fidec.tasks.ogbench import FAMILIES
from fidec.train.config import resolve_options

# The FiDec paper's table of hyper-parameters, most of it FQL's; Cal-QL's column is FQL's offline-to-online table, a
# weight or, after ">", a gap. The budget: the paper / DeFlow's README / the released registry, or one for all three.
# A dash: not run there.
TABLE = """
family                       gamma q    IQL ReBRAC     IDQL SRPO CAC   FAWAC FBRAC IFQL FQL  CalQL budget
antmaze-large-navigate       0.99  min  10  0.003,0.01 32   0.3  1     3     3     32   10   -     0.01
antmaze-giant-navigate       0.995 min  10  0.003,0.01 32   0.3  1     3     10    32   10   -     0.01
humanoidmaze-medium-navigate 0.995 mean 10  0.01,0.01  32   0.3  0.03  3     30    32   30   >0.8  0.001
humanoidmaze-large-navigate  0.995 mean 10  0.01,0.01  32   0.3  1     3     30    32   30   -     0.001
antsoccer-arena-navigate     0.995 mean 1   0.01,0.01  32   0.03 1     10    30    64   10   >0.2  0.01
cube-single-play             0.99  mean 1   1,0        32   0.03 0.003 1     100   32   300  -     0.001
cube-double-play             0.99  mean 0.3 0.1,0      32   0.1  0.3   0.3   100   32   300  0.01  0.001
scene-play                   0.99  mean 10  0.1,0.01   32   0.1  0.3   0.3   100   32   300  0.01  0.001
puzzle-3x3-play              0.99  mean 10  0.3,0.01   32   0.1  0.01  0.3   100   32   1000 -     0.0005/0.005/0.005
puzzle-4x4-play              0.99  mean 3   0.3,0.01   32   0.1  0.01  0.3   300   32   1000 0.003 0.0005/0.005/0.005
visual-cube-single-play      0.99  mean 1   1,0        -    -    -     -     100   32   300  -     0.001
visual-cube-double-play      0.99  mean 0.3 0.1,0      -    -    -     -     100   32   100  -     0.001
visual-scene-play            0.99  mean 10  0.1,0.01   -    -    -     -     100   32   100  -     0.001
visual-puzzle-3x3-play       0.99  mean 10  0.3,0.01   -    -    -     -     100   32   300  -     0.0005/0.0005/0.005
visual-puzzle-4x4-play       0.99  mean 3   0.3,0.01   -    -    -     -     300   32   300  -     0.0005/0.0005/0.005
"""
HEAD, *ROWS = (line.split() for line in TABLE.strip().splitlines())
LOCOMOTION = ("antmaze", "humanoidmaze", "antsoccer")


def published(family, cells):
    """The options that each method has from its task: all of them, by (method, preset)."""
    locomotion = family.startswith(LOCOMOTION)
    options = {}

    def add(column, *names, **more):
        """The column's cell under these names, unless the method was not run there, and `more` beside it."""
        given = [] if cells[column] == "-" else cells[column].removeprefix(">").split(",")
        values = dict(zip(names, map(float, given), strict=True)) if given else {}
        options[column.lower(), "recommended"] = {**more, **values}

    discount = {"discount": float(cells["gamma"])}
    flow = {**discount, "q_aggregate": cells["q"]}
    # FQL's authors chose these by the kind of task: manipulation from states has narrower networks.
    four = {"hidden": (512 if locomotion or family.startswith("visual") else 256,) * 4}
    two = {"hidden": (512, 512), "expectile": 0.7} if locomotion else {"hidden": (256, 256), "expectile": 0.9}
    add("IQL", "alpha", expectile=0.9, **discount, **four)
    add("ReBRAC", "actor_penalty", "critic_penalty", **discount)
    add("IDQL", "samples", **discount, **two)
    add("SRPO", "beta", **discount, **two)
    add("CAC", "eta", **discount)
    add("FAWAC", "alpha", **flow)
    add("FBRAC", "alpha", **flow)
    add("IFQL", "samples", **discount)
    add("FQL", "alpha", **flow)
    gap = cells["CalQL"].startswith(">")
    add("CalQL", "lagrange_gap" if gap else "alpha", **discount, **four)
    # The minimum of the target critics is for Adroit alone.
    options["rlpd", "recommended"] = {**discount, "q_aggregate": "mean"}
    options["bc", "recommended"] = {}
    budgets = list(map(float, cells["budget"].split("/")))
    paper, deflow, released = budgets if len(budgets) == 3 else budgets * 3
    for preset in ("recommended", "paper", "released"):
        options["fidec", preset] = {**flow, "budget": released if preset == "released" else paper}
        options["deflow", preset] = {**flow, "budget": released if preset == "released" else deflow}
    return options


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_every_cell_of_the_published_table(row):
    """Whole configurations are compared: what the table does not say stays at the method's default."""
    cells = dict(zip(HEAD, row, strict=True))
    expected = published(cells["family"], cells)
    assert {name for name, _ in expected} == set(base._NAMES)
    for (method, preset), options in expected.items():
        found = resolve_options(method, preset, f"{cells['family']}-singletask-task1-v0")
        assert found == algos.get(method).configure(preset, **options), (method, preset)


def test_the_table_is_complete():
    assert [row[0] for row in ROWS] == list(FAMILIES)


@pytest.mark.parametrize(
    ("task", "algo", "preset", "expected"),
    [
        ("cube-single-play-singletask-task2-v0", "fidec", "recommended", {"budget": 0.001, "discount": 0.99}),
        ("antmaze-giant-navigate-singletask-v0", "fidec", "paper", {"discount": 0.995, "q_aggregate": "min"}),
        ("ogbench:scene-play-singletask-task5-v0", "fql", "recommended", {"alpha": 300.0}),
        ("ogbench:puzzle-4x4-play-singletask-v0", "calql", "recommended", {"alpha": 0.003, "lagrange_gap": None}),
        ("cube-double-play-singletask-v0", "rebrac", "released", {"actor_penalty": 0.1, "critic_penalty": 0.0}),
    ],
)
def test_every_spelling_of_a_task_brings_its_settings(task, algo, preset, expected):
    options = dataclasses.asdict(resolve_options(algo, preset, task))
    assert {name: options[name] for name in expected} == expected


def test_fields_given_by_the_user_win():
    options = resolve_options("fql", "recommended", "scene-play-singletask-v0", alpha=3.0)
    assert (options.alpha, options.discount) == (3.0, 0.99)


def test_nothing_is_invented_where_nothing_was_published():
    assert tasks.settings("pointmaze-medium-navigate-singletask-v0") is None
    assert tasks.settings("cube-single-noisy-singletask-v0") is None
    assert resolve_options("fidec", "paper", "pointmaze-medium-navigate-singletask-v0") == algos.get(
        "fidec"
    ).configure("paper")
