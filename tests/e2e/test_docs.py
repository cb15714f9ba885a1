"""The documentation is executed: Python blocks, `$ fidec` lines, tables that repeat facts of the code, links.

The blocks of a page run in their order, in one empty directory: ```python in one module, and of ```console the
lines that begin with `$ fidec`, which must end with exit code 0. `no-run` after the language leaves a block out.
"""

from __future__ import annotations

import importlib
import re
import shlex
import sys
import tomllib
import types
from pathlib import Path

import jax
import numpy as np
import pytest
from jax.experimental.compilation_cache import compilation_cache

import fidec
from fidec import algos, cli, rng, tasks
from fidec.algos import base as register
from fidec.envs.evaluate import summarise
from fidec.envs.pool import Episode
from fidec.train import evaluate, rundir
from fidec.types import Batch, Spec

ROOT = Path(__file__).parents[2]
PAGES = [*sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md"]
FENCE = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```[ ]*$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<!!)\[[^\]\n]+\]\(([^)\s]+)\)")
PRESETS = ("recommended", "paper", "released")


def text_of(name: str) -> str:
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def blocks(text: str, *languages: str) -> list[tuple[str, int, str]]:
    """(language, line number, content) of a page's blocks, in their order; those marked no-run are left out."""
    return [
        (match[1], text[: match.start(3)].count("\n"), match[3])
        for match in FENCE.finditer(text)
        if match[1] in languages and "no-run" not in match[2].split()
    ]


def section(text: str, heading: str) -> str:
    """From a heading to the next of any level."""
    match = re.search(rf"^#+ {re.escape(heading)}\n(.*?)(?=^#|\Z)", text, re.MULTILINE | re.DOTALL)
    assert match, f"no section {heading!r}"
    return match[1]


def rows(text: str) -> list[list[str]]:
    """The cells of all table rows, headers included, backticks removed."""
    lines = [line for line in text.splitlines() if line.startswith("|") and not line.startswith("|---")]
    return [[cell.strip().replace("`", "") for cell in line.strip("|").split("|")] for line in lines]


@pytest.fixture(scope="module", autouse=True)
def compile_once(tmp_path_factory: pytest.TempPathFactory):
    """The pages train the same tiny programs again and again, and nearly all of their time is compilation."""
    changed = {
        "jax_compilation_cache_dir": str(tmp_path_factory.mktemp("compiled")),
        "jax_persistent_cache_min_compile_time_secs": 0.0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }
    former = {name: getattr(jax.config, name) for name in changed}
    for name, value in changed.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()
    yield
    for name, value in former.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory, and no data but what a page makes."""
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    monkeypatch.setenv("FIDEC_DATA_DIR", str(tmp_path / "data"))
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))  # not the user's own caches
    return work


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_page_runs(page: Path, empty: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Top to bottom, in one directory: a command may use the file that the block above it wrote."""
    module = types.ModuleType(f"docs_{page.stem.replace('-', '_').lower()}")
    monkeypatch.setitem(sys.modules, module.__name__, module)  # dataclasses look their module up
    for language, line, block in blocks(page.read_text(encoding="utf-8"), "python", "console"):
        if language == "python":
            code = compile("\n" * line + block, str(page), "exec", dont_inherit=True)
            exec(code, module.__dict__)
        else:
            run_commands(block, capsys)


def run_commands(block: str, capsys: pytest.CaptureFixture[str]) -> None:
    for line in block.replace("\\\n", " ").splitlines():
        if not line.startswith("$ fidec "):
            continue
        capsys.readouterr()
        try:
            code = cli.main(shlex.split(line, comments=True)[2:])
        except SystemExit as end:  # --help
            code = end.code or 0
        out, err = capsys.readouterr()
        assert code == 0, f"{line}\n{err}"
        assert out, f"{line} printed nothing"


def option_rows(heading: str) -> dict[str, list[str]]:
    """Option -> its values under the three presets."""
    table = rows(section(text_of("concepts.md"), heading))
    assert tuple(table[0][-3:]) == PRESETS
    return {row[0]: row[-3:] for row in table[1:] if len(row) == len(table[0])}


@pytest.mark.parametrize(("heading", "name"), [("FiDec", "fidec"), ("DeFlow", "deflow")])
def test_table_of_disagreements_is_what_the_presets_say(heading: str, name: str):
    method = algos.get(name)
    configs = [method.configure(preset) for preset in PRESETS]
    table = option_rows(heading)
    for option, cells in table.items():
        assert cells == [str(getattr(config, option)) for config in configs], option
    changed = {option for preset in method.presets.values() for option in preset}
    assert changed <= set(table), "a preset fixes an option that the table lacks"


def test_table_of_budgets_is_what_the_tasks_say():
    table = [row for row in rows(section(text_of("concepts.md"), "FiDec")) if row[0].endswith(("-play", "-navigate"))]
    listed = {name.strip(): row[1:] for row in table for name in row[0].split(",")}
    for family, cells in listed.items():
        found = tasks.settings(f"{family}-singletask-v0")
        assert found is not None, family
        for column, method in enumerate(("fidec", "deflow")):
            expected = {"recommended": cells[column], "paper": cells[column], "released": cells[2]}
            config = algos.get(method).config
            for preset in PRESETS:
                assert str(found.options(method, config, preset)["budget"]) == expected[preset], (family, preset)
    from fidec.tasks.ogbench import FAMILIES

    assert set(listed) == set(FAMILIES)


def glossary(prefix: str) -> set[str]:
    names = [row[0] for row in rows(section(text_of("concepts.md"), "Glossary of logged numbers"))]
    assert len(names) == len(set(names))
    return {name.removeprefix(prefix) for name in names if name.startswith(prefix)}


def test_glossary_has_the_metrics_of_an_update():
    spec = Spec(observation_shape=(3,), action_dim=2)
    batch = Batch(*(np.zeros((4, *shape), np.float32) for shape in ((3,), (2,), (), (), (3,), (2,))))
    key = rng.stream(0, "update")
    found = {}
    for name, preset in (("fidec", "recommended"), ("fidec", "paper"), ("deflow", "recommended")):
        algorithm = algos.make(name, spec, preset=preset, hidden=(4,), flow_steps=1)
        state = jax.eval_shape(algorithm.init, key)
        found[name, preset] = set(jax.eval_shape(algorithm.update, state, batch, key)[1])
    assert glossary("training/") == found["fidec", "recommended"] == found["deflow", "recommended"]
    # The one that the glossary says is there only with dual=log.
    assert glossary("training/") - found["fidec", "paper"] == {"grad_norm/multiplier"}


class OneEpisode:
    """Stands for an EnvPool; what is wanted is only how the evaluator sums up."""

    def __init__(self, make_env, num_envs, **_):
        self.observation_shape, self.action_dim = (3,), 2
        self.action_low, self.action_high = [-1.0, -1.0], [1.0, 1.0]

    def run(self, act, episodes, seed, progress=None):
        return [Episode(0, 0, 0, "ok", 1.0, 5, 1.0)]

    def close(self):
        pass


def test_glossary_has_the_evaluation_and_the_times(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(evaluate, "EnvPool", OneEpisode)
    spec = Spec(observation_shape=(3,), action_dim=2)
    algorithm = algos.Algorithm(*(lambda *_: None,) * 4)
    with evaluate.Evaluator("any", spec, envs=1, episodes=1, seed=0) as evaluator:
        summary, episodes = evaluator(algorithm, None, 0)
    assert glossary("evaluation/") == set(summary)
    assert set(summary) > set(summarise(episodes))
    source = "".join(path.read_text() for path in (ROOT / "src" / "fidec" / "train").glob("*.py"))
    assert glossary("time/") == set(re.findall(r'"time/(\w+)"', source))
    layout = section(text_of("command-line.md"), "The run directory")
    assert all(f"`{field}`" in layout for field in ("step", *episodes[0].row()))


def test_run_directory_layout_is_complete():
    listed = {row[0].rstrip("/") for row in rows(section(text_of("command-line.md"), "The run directory"))[1:]}
    assert listed == {*rundir.CONTENTS, rundir.MARKER, rundir.LOCK}


def test_every_command_has_a_section():
    text = text_of("command-line.md")
    headings = set(re.findall(r"\w+", " ".join(re.findall(r"^## (.*)$", text, re.MULTILINE))))
    assert set(cli.COMMANDS) <= headings


def test_plugin_page_works_as_an_installed_package(empty: Path, monkeypatch: pytest.MonkeyPatch):
    """The page's own file and its own entry point, found as pip would leave them."""
    text = text_of("adding-a-method.md")
    project = tomllib.loads(blocks(text, "toml")[0][2])["project"]
    points = project["entry-points"][algos.ENTRY_POINTS]
    module, _, attribute = points["cloning"].partition(":")
    site = empty.parent / "site"
    info = site / f"{module}-{project['version']}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    lines = "".join(f"{name} = {value}\n" for name, value in points.items())
    (info / "entry_points.txt").write_text(f"[{algos.ENTRY_POINTS}]\n{lines}")
    (site / f"{module}.py").write_text(blocks(text, "python")[0][2])
    monkeypatch.syspath_prepend(site)
    register._plugins.cache_clear()
    importlib.invalidate_caches()
    try:
        assert "cloning" in algos.names()
        assert algos.get("cloning") is getattr(sys.modules[module], attribute)
        assert cli.main(["algos", "cloning"]) == 0
        generator = np.random.default_rng(0)
        np.savez(
            "own.npz",
            observations=generator.normal(size=(40, 3)),
            actions=generator.uniform(-1, 1, size=(40, 2)),
            rewards=np.zeros(40),
            terminals=np.arange(40) % 10 == 9,
        )
        line = "train --algo cloning --data npz:own.npz --steps 4 --batch-size 8 --out run --algo.hidden 8"
        assert cli.main([*line.split(), "--algo.flow-steps", "2"]) == 0
        policy = fidec.load_policy("run")
        assert policy.algo == "cloning"
        actions, before = policy(np.zeros((5, 3)), return_base=True)
        assert actions.shape == (5, 2)
        assert np.array_equal(actions, before)
    finally:
        register._plugins.cache_clear()
        sys.modules.pop(module, None)


def anchors(text: str) -> set[str]:
    """The anchors that GitHub and MkDocs give to a page's headings."""
    plain = FENCE.sub("", text)
    headings = re.findall(r"^#+ (.*)$", plain, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_resolve(page: Path):
    for link in LINK.findall(FENCE.sub("", page.read_text(encoding="utf-8"))):
        if re.match(r"[a-z]+:", link):
            continue  # another site
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), f"{page.name} links to {link}"
        if page.parent.name == "docs":
            assert target.is_relative_to(ROOT / "docs"), (
                f"{page.name}: {link} leaves docs/, which MkDocs cannot follow"
            )
        if anchor:
            assert anchor in anchors(target.read_text(encoding="utf-8")), f"{page.name} links to {link}"


def test_every_page_is_in_the_contents():
    names = {page.name for page in PAGES if page.parent.name == "docs"}
    assert set(re.findall(r": ([\w-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)) == names
    assert set(LINK.findall(text_of("index.md"))) == names - {"index.md"}


@pytest.mark.parametrize("name", fidec.__all__)
def test_every_public_name_is_documented(name: str):
    assert hasattr(fidec, name)
    assert any(re.search(rf"\bfidec\.{name}\b", page.read_text(encoding="utf-8")) for page in PAGES)


@pytest.mark.parametrize("name", ["bc", "iql", "rebrac", "fawac", "fbrac", "ifql", "fql"])
def test_a_methods_section_names_its_options_and_metrics(name):
    page = text_of("methods.md")
    heading = {"rebrac": "ReBRAC"}.get(name, name.upper())
    cells = {word.strip() for row in rows(section(page, heading)) for word in row[0].split(",")} - {
        "option",
        "logged",
    }
    common = {"hidden", "learning_rate", "target_rate", "discount"}
    assert all(f"`{option}`" in page.partition("## BC")[0] for option in common)
    options = set(algos.get(name).config.__dataclass_fields__) - common
    algorithm = algos.make(name, Spec((3,), 2))
    shapes = ((3,), (2,), (), (), (3,), (2,))
    batch = Batch(*(jax.ShapeDtypeStruct((4, *shape), np.float32) for shape in shapes))
    state = jax.eval_shape(algorithm.init, jax.random.key(0))
    logged = set(jax.eval_shape(algorithm.update, state, batch, jax.random.key(0))[1])
    modules = {key.removeprefix("grad_norm/") for key in logged if key.startswith("grad_norm/")}
    general = {"loss", "q_data", "td_target"} | {
        f(m) for m in modules for f in ("{}_loss".format, "grad_norm/{}".format)
    }
    assert cells == options | (logged - general)
