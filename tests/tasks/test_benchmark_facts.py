"""Every row of the benchmark against tasks.json: the FiDec paper's tables and the sources that they quote.

The sources are FQL's offline-to-online table, the budgets of DeFlow's README and of the released registry, and the
options of earlier work (CORL, SRPO). The package's hyper-parameters were typed independently of this file. The
reported numbers have one origin in both, so for them the tests only find later changes.
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path

from fidec import algos, tasks
from helpers import some

FACTS = json.loads((Path(__file__).parent / "tasks.json").read_text())


def rows():
    """Each row of the benchmark with its facts."""
    for fact in FACTS["tasks"]:
        row = tasks.find(fact["id"], fact["setting"])
        assert row is not None, fact["id"]
        yield f"{row.id} {row.setting}", row, fact


def differences(found: dict, expected: dict) -> dict:
    """The entries that differ, as (found, expected)."""
    return {
        key: (found.get(key), expected.get(key)) for key in {*found, *expected} if found.get(key) != expected.get(key)
    }


def test_the_benchmark_has_these_rows_and_no_others():
    assert [(task.id, task.setting) for task in tasks.TASKS] == [(f["id"], f["setting"]) for f in FACTS["tasks"]]
    assert [task.setting for task in tasks.TASKS] == ["offline"] * 73 + ["online"] * 14


def test_environment_and_protocol_of_every_row():
    found, expected = {}, {}
    names = ("category", "alias_of", "action_dim", "horizon", "reward_shift")
    lengths = ("steps", "online_steps", "eval_interval", "eval_episodes")
    for key, row, fact in rows():
        found[key] = [row.benchmark, row.observation_shape, row.data_transitions, *(getattr(row, n) for n in names)]
        expected[key] = [
            fact["suite"],
            tuple(fact["observation_shape"]),
            fact["transitions"],
            *(fact[n] for n in names),
        ]
        score = "normalised" if row.benchmark == "d4rl" else "success"
        for method in row.methods:
            plan = row.protocol(method)
            found[key, method] = [*(getattr(plan, n) for n in lengths), [*plan.before, *plan.averaged], plan.score]
            usual = [*(fact[n] for n in lengths), fact["averaged"], score]
            if method == "rlpd":  # online from its first step
                usual = [0, 1_000_000, 100_000, 50, [1_000_000], score]
            elif method in ("idql", "srpo"):
                usual = [3_000_000, 0, 250_000, 50, fact["averaged_idql_srpo"], score]
            expected[key, method] = usual
            assert all(step % plan.eval_interval == 0 for step in plan.averaged), "a reported step is not evaluated"
            assert plan.averaged[-1] == plan.steps + plan.online_steps
    assert not differences(found, expected)


def expected_options(fact, method: str) -> dict:
    """The facts of a method in the words of its configuration."""
    facts = fact["hyperparameters"][method]
    prior = facts.get("prior_work_CORL", {})
    match method:
        case "iql":
            found = {"alpha": facts["alpha"] or prior["beta"], "expectile": prior.get("iql_tau", 0.9)}
            return found | ({"hidden": tuple(facts["hidden"])} if facts["alpha"] else {})
        case "rebrac":
            actor, critic = facts["alpha_actor"], facts["alpha_critic"]
            if actor is None:
                actor, critic = prior["actor_bc_coef"], prior["critic_bc_coef"]
            return {"actor_penalty": actor, "critic_penalty": critic}
        case "idql" | "srpo":
            if method == "idql":
                own = {} if facts["N"] is None else {"samples": facts["N"]}
            else:
                beta = facts["beta"] or facts.get("prior_work_SRPO_official_beta")
                own = {} if beta is None else {"beta": beta}
                own |= {"normalize_value_gradient": facts["beta"] is None and beta is not None}
            return {**own, "expectile": facts["expectile"], "hidden": tuple(facts["value_hidden"])}
        case "calql":
            weight, gap = facts["cql_alpha"], facts["target_action_gap_beta"]
            found = {"alpha": weight, "lagrange_gap": gap, "reward_scale": facts["reward_scale"]}
            found |= {"hidden": tuple(facts["hidden"])} if "hidden" in facts else {}
            return {name: value for name, value in found.items() if value is not None}
        case "ifql":
            return {"samples": facts["N"]}
        case "cac":
            # The critics' rate is the default, 3e-4, also where the actor's is another. The clip is 5 everywhere.
            return {"learning_rate": 3e-4, "grad_clip": 5.0} | ({} if facts["eta"] is None else {"eta": facts["eta"]})
        case "rlpd":
            return {
                "q_aggregate": facts["q_agg"],
                "critics": facts["num_qs"],
                "target_entropy_scale": facts["target_entropy_multiplier"],
                "backup_entropy": facts["backup_entropy"],
            }
        case "deflow":
            return {"budget": facts["delta_readme"]}
        case "fidec":
            return {"budget": facts["epsilon"]}
    return {} if facts["alpha"] is None else {"alpha": facts["alpha"]}


def test_every_hyperparameter_of_every_row():
    """The configuration is what the facts say. It differs from the method's defaults only where they do."""
    own_sources = {"CAC's released code", "FQL paper's appendix"}
    found, expected = {}, {}
    for key, row, fact in rows():
        facts = fact["hyperparameters"]
        for method in facts:
            published, configure = row.options(method), algos.get(method).configure
            assert all(each.source for each in published.values()), (key, method)
            options = {"discount": fact["discount"], **expected_options(fact, method)}
            if method in ("fawac", "fbrac", "fql", "deflow", "fidec"):
                options["q_aggregate"] = fact["q_agg"]
            if method == "cac":  # on D4RL the options of its own authors are added to the table's
                added = ("policy_learning_rate", "max_q_backup", "q_norm")
                options |= {n: published[n].value for n in added if n in published}
                assert all(each.source in own_sources for n, each in published.items() if n in added)
            found[key, method] = configure(**{name: each.value for name, each in published.items()})
            expected[key, method] = configure(**options)
        for method, preset, fact_name in (
            ("fidec", "paper", "epsilon"),
            ("fidec", "released", "epsilon_registry"),
            ("deflow", "released", "delta_registry"),
        ):
            found[key, method, preset] = row.options(method, preset)["budget"].value
            expected[key, method, preset] = facts[method][fact_name]
    assert not differences(found, expected)


def test_every_reported_number_of_every_row():
    found = {key: json.loads(json.dumps(dict(row.paper))) for key, row, _ in rows()}
    expected = {key: {m: numbers for m, numbers in fact["reported"].items() if numbers} for key, _, fact in rows()}
    assert not differences(found, expected)


def test_numbers_without_a_spread_are_those_of_earlier_work():
    """All are on D4RL: BC, IQL and ReBRAC, on antmaze also IDQL and SRPO, online Cal-QL instead of BC."""
    for task in tasks.TASKS:
        numbers = {m: r if task.setting == "offline" else r[0] for m, r in task.paper.items()}
        expected = set()
        if task.benchmark == "d4rl":
            expected = {"iql", "rebrac"} | ({"bc"} if task.setting == "offline" else {"calql"})
            expected |= {"idql", "srpo"} if (task.category, task.setting) == ("D4RL antmaze", "offline") else set()
        assert {method for method, number in numbers.items() if number.std is None} == expected, task.id


# --- categories -------------------------------------------------------------------------------------------------


def of_category(name: str, method: str) -> list[float]:
    rows = [task for task in tasks.TASKS if task.category == name and task.setting == "offline"]
    return [task.paper[method].mean for task in rows if method in task.paper]


def test_categories_are_the_papers():
    assert list(tasks.CATEGORIES) == [fact["name"] for fact in FACTS["categories"]]
    for fact in FACTS["categories"]:
        n, numbers = tasks.CATEGORIES[fact["name"]]
        assert n == fact["n"]
        assert {m: list(r) for m, r in numbers.items()} == {m: r for m, r in fact["reported"].items() if r}
    assert sum(n for n, _ in tasks.CATEGORIES.values()) == 73


def test_category_means_are_the_means_of_their_tasks():
    """Up to the rounding of both. Those that differ by more than one half are listed; none is a contradiction."""
    differences = {}
    for name, (n, numbers) in tasks.CATEGORIES.items():
        for method, reported in numbers.items():
            values = of_category(name, method)
            assert len(values) == n
            differences[name, method] = abs(statistics.fmean(values) - reported.mean)
    assert max(differences.values()) <= 0.8 + 1e-9
    assert {key for key, difference in differences.items() if difference > 0.5 + 1e-9} == {
        ("OGBench antmaze-large-singletask", "fidec"),
        ("OGBench humanoidmaze-medium-singletask", "fql"),
        ("OGBench humanoidmaze-large-singletask", "bc"),
        ("OGBench humanoidmaze-large-singletask", "rebrac"),
        ("OGBench humanoidmaze-large-singletask", "cac"),
        ("OGBench cube-double-singletask", "iql"),
        ("OGBench cube-double-singletask", "srpo"),
        ("OGBench puzzle-3x3-singletask", "rebrac"),
        ("OGBench puzzle-4x4-singletask", "srpo"),
        ("OGBench puzzle-4x4-singletask", "fawac"),
        ("D4RL antmaze", "rebrac"),
        ("Visual manipulation", "fbrac"),
    }


def test_deflows_category_spread_is_that_over_tasks():
    """In the paper's table of categories the spread of DeFlow is the population standard deviation over the tasks.

    That holds for all 13, and for no other method: theirs is over seeds. The two cannot be compared.
    """

    def over_tasks(method):
        spreads = {
            name: (statistics.pstdev(of_category(name, method)), some(numbers[method].std))
            for name, (_, numbers) in tasks.CATEGORIES.items()
            if method in numbers and numbers[method].std is not None
        }
        return [abs(found - reported) <= 0.5 + 1e-9 for found, reported in spreads.values()]

    assert over_tasks("deflow") == [True] * 13
    assert sum(over_tasks("fidec")) <= 2
    assert sum(over_tasks("fql")) <= 2
