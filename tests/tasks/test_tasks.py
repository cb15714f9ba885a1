"""OGBench's published settings against their table, typed here a second time, and what a run picks from a task.

tests/facts has the whole benchmark.
"""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys

import pytest

from fidec import algos, cli, tasks
from fidec.algos.common import base
from fidec.cli.train import _picked
from fidec.errors import ConfigError
from fidec.tasks import describe
from fidec.tasks.ogbench import FAMILIES
from fidec.train.config import RunConfig, resolve, resolve_options

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
    assert {name for name, _ in expected} == set(base.METHODS.builtin())
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
    assert tasks.family_of("pointmaze-medium-navigate-singletask-v0") is None
    assert tasks.family_of("cube-single-noisy-singletask-v0") is None
    assert resolve_options("fidec", "paper", "pointmaze-medium-navigate-singletask-v0") == algos.get(
        "fidec"
    ).configure("paper")


# --- looking up, and what a run picks ---------------------------------------------------------------------------


def test_find_understands_every_spelling():
    row = tasks.find("antsoccer-arena-navigate-singletask-task4-v0")
    assert row is not None
    assert tasks.find("antsoccer-arena-navigate-singletask-v0") is row
    assert tasks.find("ogbench:antsoccer-arena-navigate-singletask-v0") is row
    online = tasks.find("ogbench:antsoccer-arena-navigate-singletask-task4-v0", "online")
    assert online is not None
    assert (online.setting, online.alias_of) == ("online", row.id)
    assert tasks.find("antsoccer-arena-navigate-singletask-task1-v0", "online") is None
    assert tasks.find("d4rl:pen-human-v1") is tasks.find("pen-human-v1") is not None
    assert tasks.find("pen-human-v1", "online") is None
    # Only the first visual task is in the benchmark, and it is not the family's default.
    assert tasks.find("visual-cube-single-play-singletask-v0") is None
    assert tasks.find("cube-single-play-v0") is None


@pytest.mark.parametrize(
    ("task", "algo", "picked"),
    [
        ("cube-single-play-singletask-task2-v0", "fidec", (1_000_000, 100_000, 50)),
        ("visual-scene-play-singletask-task1-v0", "fql", (500_000, 100_000, 50)),
        ("visual-scene-play-singletask-task3-v0", "fql", (500_000, 100_000, 50)),
        ("door-cloned-v1", "fidec", (500_000, 100_000, 50)),
        ("d4rl:antmaze-large-play-v2", "srpo", (3_000_000, 250_000, 50)),
        ("ogbench:scene-play-singletask-v0", "idql", (3_000_000, 250_000, 50)),
        ("pointmaze-medium-navigate-singletask-v0", "bc", (1_000_000, 100_000, 50)),
        (None, "fidec", (1_000_000, 100_000, 50)),
    ],
)
def test_a_run_picks_the_protocol_of_its_task(task, algo, picked):
    config = resolve(RunConfig(task=task, algo=algo))
    assert (config.steps, config.eval_interval, config.eval_episodes) == picked


def test_the_protocol_in_words_names_the_phases_that_there_are():
    row = tasks.find("scene-play-singletask-v0", "online")
    assert row is not None
    lines = {methods: (steps, score) for methods, steps, _, score in describe.protocol_rows(row)}
    assert lines["rlpd"] == ("1M online", "percent success, at 1M")
    assert lines["others"] == ("1M + 1M online", "percent success, at 1M and at 2M")


def test_what_is_given_wins_over_the_protocol():
    config = resolve(RunConfig(task="door-cloned-v1", steps=7, eval_interval=0))
    assert (config.steps, config.eval_interval, config.eval_episodes) == (7, 0, 50)
    assert resolve(config) == config


@pytest.mark.parametrize(
    ("task", "source"),
    [
        ("cube-single-play-singletask-v0", "ogbench:cube-single-play-singletask-v0"),
        ("ogbench:scene-play-singletask-v0", "ogbench:scene-play-singletask-v0"),
        ("pointmaze-medium-navigate-singletask-v0", "ogbench:pointmaze-medium-navigate-singletask-v0"),
        ("pen-human-v1", "d4rl:pen-human-v1"),
        ("d4rl:antmaze-umaze-v2", "d4rl:antmaze-umaze-v2"),
        ("minari:D4RL/door/human-v2", "minari:D4RL/door/human-v2"),
    ],
)
def test_a_tasks_own_data(task, source):
    assert resolve(RunConfig(task=task)).data == source


def test_the_configuration_of_an_older_run_can_be_read():
    stored = resolve(RunConfig(task="door-cloned-v1")).to_json()
    assert RunConfig.from_json(json.loads(json.dumps(stored))) == resolve(RunConfig(task="door-cloned-v1"))
    older = {name: value for name, value in stored.items() if name not in ("success_timing", "memory_limit")}
    older |= {"steps": 15_000, "eval_interval": 7_500}
    config = RunConfig.from_json(older)
    assert (config.success_timing, config.memory_limit, config.steps) == ("pre", None, 15_000)
    assert RunConfig.from_json({"algo": "fidec"}).steps == 1_000_000


def test_new_settings_are_checked():
    with pytest.raises(ConfigError, match="success_timing must be one of pre, post"):
        RunConfig(success_timing="after")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="memory_limit must not be negative"):
        RunConfig(memory_limit=-1.0)


def test_train_says_what_it_picked_and_from_where():
    puzzle = "puzzle-4x4-play-singletask-task4-v0"
    assert _picked(resolve(RunConfig(task=puzzle))) == [
        f"fidec, preset recommended, on {puzzle}",
        "  steps 1,000,000, evaluation every 100,000 (50 episodes)  OGBench state protocol",
        "  discount 0.99, q_aggregate mean                          FQL's README",
        "  budget 0.0005                                            FiDec paper's table of hyper-parameters",
        "  reported 6 ± 2                                           FiDec paper, percent success",
    ]
    released = "\n".join(_picked(resolve(RunConfig(task=puzzle, preset="released"))))
    assert "budget 0.005 " in released
    assert "registry of FiDec's released code" in released
    options = resolve_options("fql", "recommended", "pen-human-v1", alpha=3.0)
    lines = _picked(resolve(RunConfig(task="pen-human-v1", algo="fql", steps=9, options=options)))
    assert lines[1].startswith("  steps 9  ")
    assert lines[1].endswith("  given; steps 500,000 in D4RL protocol")
    assert any(line.endswith("given; alpha 10000.0 in FiDec paper's table of hyper-parameters") for line in lines)
    assert _picked(resolve(RunConfig(data="npz:x.npz"))) == ["fidec, preset recommended"]


# --- the command line -------------------------------------------------------------------------------------------


def test_help_shows_the_tasks_own_defaults(capsys):
    with pytest.raises(SystemExit):
        cli.main(["train", "--task", "antmaze-umaze-v2", "--algo", "srpo", "--help"])
    words = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "protocol, or 1,000,000. (default: 3000000)" in words
    assert "Weight of the value" in words
    assert "(default: 0.02)" in words  # beta, from SRPO's own code
    assert "--success-timing {pre,post}" in words
    assert "--memory-limit" in words


def test_the_list_has_all_rows_and_imports_neither_jax_nor_mujoco():
    code = """
import sys
from fidec import cli
cli.main(["tasks"])
slow = [name for name in ("jax", "mujoco", "ogbench", "gymnasium") if name in sys.modules]
sys.exit(f"imported {slow}" if slow else 0)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    header, *lines = done.stdout.splitlines()
    assert header.split() == ["id", "setting", "suite", "steps", "score", "fidec", "fql", "data", "category"]
    rows = [line.split()[:8] for line in lines[:87]]
    assert [(row[0], row[1]) for row in rows] == [(task.id, task.setting) for task in tasks.TASKS]
    by_id = {(row[0], row[1]): row for row in rows}
    assert by_id["scene-play-singletask-task2-v0", "offline"][2:7] == ["ogbench", "1M", "success", "72±5", "76±9"]
    assert by_id["pen-cloned-v1", "online"][2:7] == ["d4rl", "1M+1M", "normalised", "83±6->143±7", "53±14->149±6"]
    assert by_id["door-human-v1", "offline"][7] == "download"
    assert by_id["scene-play-singletask-task2-v0", "offline"][7] == "make"
    assert "fidec tasks --all" in lines[-1]


def listed(capsys, *argv: str) -> list:
    assert cli.main(["tasks", *argv, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_list_can_be_filtered(capsys):
    assert len(listed(capsys)) == 87
    assert {row["suite"] for row in listed(capsys, "--suite", "d4rl")} == {"d4rl"}
    assert len(listed(capsys, "--suite", "d4rl")) == 18 + 9
    assert [row["id"] for row in listed(capsys, "--family", "scene")] == [
        *(f"scene-play-singletask-task{i}-v0" for i in range(1, 6)),
        "scene-play-singletask-v0",
    ]
    online = listed(capsys, "--suite", "paper-online")
    assert len(online) == 14
    assert online[0]["paper"]["fidec"] == {"before": {"mean": 82.0, "std": 4.0}, "after": {"mean": 99.0, "std": 2.0}}
    assert cli.main(["tasks", "--suite", "d4r"]) == 2
    assert "Did you mean d4rl?" in capsys.readouterr().err


def test_a_tasks_page_has_settings_with_sources_and_the_paper_s_numbers(capsys):
    page = listed(capsys, "pen-cloned-v1")
    assert page["observation_shape"] == [45]
    assert "not the original simulator" in page["note"]
    offline, online = page["settings"]["offline"], page["settings"]["online"]
    assert offline["fql"]["options"]["paper"]["alpha"]["value"] == 10000.0
    assert online["fql"]["options"]["paper"]["alpha"] == {"value": 1000.0, "source": "FQL's README"}
    assert offline["iql"]["options"]["recommended"]["expectile"] == {"value": 0.8, "source": "CORL"}
    assert offline["idql"]["protocol"]["averaged"] == [3_000_000]
    assert offline["fidec"]["paper"] == {"mean": 94.0, "std": 12.0}
    assert cli.main(["tasks", "pen-cloned-v1"]) == 0
    out = capsys.readouterr().out
    for words in ("registry of FiDec's released code (preset released)", "94 ± 12", "83 ± 6 -> 143 ± 7", "0.01"):
        assert words in out
    assert cli.main(["tasks", "pen-clonde-v1"]) == 2
    assert "did you mean pen-cloned-v1" in capsys.readouterr().err


def test_a_suite_also_lists_its_tasks_that_the_paper_does_not_have(capsys):
    from fidec.bench.suites import SUITES
    from fidec.cli.tasks import main

    assert main(["--suite", "demo-online", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(row["id"], row["setting"], row["paper"]) for row in rows] == [
        (name, "online", {}) for name in SUITES["demo-online"].tasks
    ]
