"""The documentation is executed: Python blocks, `$ fidec` lines, tables that repeat facts of the code, links.

The blocks of a page run in their order, in one empty directory: ```python in one module, and of ```console the
lines that begin with `$ fidec`, which must end with exit code 0. `no-run` after the language leaves a block out.
"""

from __future__ import annotations

import re
import shlex
import sys
import types
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax.experimental.compilation_cache import compilation_cache

import fidec
from fidec import algos, cli, tasks
from fidec.algos.common import base as register
from fidec.algos.common import options as common
from fidec.bench.sweep import combine
from fidec.cli.audit import AuditArgs
from fidec.cli.evaluate import EvalArgs
from fidec.cli.parsing import parse, split_args
from fidec.cli.select import SelectArgs
from fidec.cli.sweep import SweepArgs
from fidec.cli.train import read_args
from fidec.envs.evaluation import Episode, summarise
from fidec.envs.factory import EnvFactory
from fidec.errors import ConfigError
from fidec.store import rundir
from fidec.train import evaluation
from fidec.types import Batch, Spec

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [*sorted(DOCS.rglob("*.md")), ROOT / "README.md"]
FENCE = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```[ ]*$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<!!)\[[^\]\n]+\]\(([^)\s]+)\)")
PRESETS = ("recommended", "paper", "released")
METHODS = register.METHODS.builtin()  # without plug-ins
# Options that the overview explains once, for all methods.
COMMON_OPTIONS = set(common.FlowConfig.__dataclass_fields__)

every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
every_method = pytest.mark.parametrize("name", METHODS)


def text_of(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


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
def compile_once(compile_cache):
    """The pages train the same tiny programs several times, and most of their time is compilation."""
    compilation_cache.reset_cache()
    yield
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


def runs(page: Path) -> Any:
    """The page as a parameter. The guide trains three policies, which takes minutes; tests/train has what the page on
    reproducibility shows."""
    marks = [pytest.mark.slow, pytest.mark.timeout(2400)] if page.name == "your-own-task.md" else []
    marks += [pytest.mark.slow] if page.name == "reproducibility.md" else []
    return pytest.param(page, marks=marks, id=str(page.relative_to(ROOT)))


@pytest.mark.parametrize("page", [runs(page) for page in PAGES if page.name != "extending.md"])
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


def test_the_commands_of_the_guide_are_understood(monkeypatch: pytest.MonkeyPatch):
    """What runs in the slow tier is parsed here."""
    monkeypatch.setattr("fidec.cli.train._train", lambda *_, **__: 0)
    arguments = {"audit": AuditArgs, "eval": EvalArgs, "select": SelectArgs}
    text = text_of("your-own-task.md").replace("\\\n", " ")
    commands = [shlex.split(line)[2:] for line in text.splitlines() if line.startswith("$ fidec ")]
    assert {command for command, *_ in commands} == {"data", "train", "sweep", *arguments}
    for command, *words in commands:
        if command == "sweep":
            args, given = split_args(SweepArgs, words, "fidec")
            for combination in combine(given, args.algos, args.vary):
                read_args(list(combination.words), "fidec")
        elif command == "train":
            assert cli.main([command, *words]) == 0
        elif command in arguments:
            parse(arguments[command], words, "fidec")


# --- the pages of the methods -------------------------------------------------------------------------------


def tables(text: str, first: str) -> list[list[str]]:
    """The rows of all tables whose first column is called so, the headers left out; `a`, `b` makes two rows."""
    found, inside = [], False
    for line in text.splitlines():
        cells = rows(line)
        if not line.startswith("|"):
            inside = False
        elif cells and inside:
            found += [[name.strip(), *cells[0][1:]] for name in cells[0][0].split(",")]
        elif cells:
            inside = cells[0][0] == first
    return found


def listed(text: str, first: str) -> list[str]:
    return sorted(row[0] for row in tables(text, first))


def page_of(name: str) -> str:
    return text_of(f"methods/{name}.md")


@every_method
def test_a_page_has_every_option_and_every_metric_of_its_method_and_no_others(name: str):
    method, options = algos.get(name), listed(page_of(name), "option")
    # A common option may be listed again where the method declares it anew, as one with another default does.
    anew = {
        option
        for cls in method.config.__mro__
        if cls.__module__ != common.__name__
        for option in vars(cls).get("__annotations__", ())
    }
    presets = [preset for preset in ("recommended", *method.presets) if preset not in method.runs]
    own = {option for preset in presets for option in vars(method.configure(preset))} - COMMON_OPTIONS
    assert [option for option in options if option not in anew & COMMON_OPTIONS] == sorted(own)
    assert len(options) == len(set(options))
    assert listed(page_of(name), "logged") == sorted(method.logs)


def test_the_overview_has_the_common_options_and_metrics():
    overview = text_of("methods/index.md")
    assert listed(overview, "option") == sorted(COMMON_OPTIONS)
    assert listed(overview, "logged") == sorted(register.COMMON_LOGS)


def rows_of(spec: Spec, returns: bool) -> Batch:
    shapes = (spec.observation_shape, (spec.action_dim,), (), (), spec.observation_shape, (spec.action_dim,))
    columns = [jax.ShapeDtypeStruct((4, *shape), np.float32) for shape in shapes]
    return Batch(*columns)._replace(returns=jax.ShapeDtypeStruct((4,), np.float32) if returns else None)


@every_method
def test_an_update_logs_what_the_method_says(name: str):
    method, key = algos.get(name), jax.random.key(0)
    spec = Spec((3,), 2)
    small = {"hidden": (8,), "policy_hidden": (8,), "denoiser_blocks": 1, "flow_steps": 2, "diffusion_steps": 2}
    small = {option: value for option, value in small.items() if option in method.config.__dataclass_fields__}
    options = [method.configure(**small)]  # presets change values, and the battery updates each of them
    if name == "fidec":  # logs its time only where it is chosen
        options = [replace(config, t_eps="auto") for config in options]
    if name == "qam":  # each variant has metrics of its own
        options += [method.configure(preset, **small) for preset in method.presets]
    meant = set()
    for config in options:
        algorithm = method.make(config, spec)
        state = jax.eval_shape(algorithm.init, key)
        logged = set(jax.eval_shape(algorithm.update, state, rows_of(spec, method.needs_returns), key)[1])
        modules = {metric.partition("/")[2] for metric in logged if metric.startswith("grad_norm/")}
        losses = {f"{module}_loss" for module in modules}
        common = {"loss", "q_data", "td_target"} | losses | {f"grad_norm/{module}" for module in modules}
        meant |= logged - common
        assert not common & set(method.logs), "a common metric needs no meaning of its own"
        assert "loss" in logged
        assert ("q_data" in logged) == ("td_target" in logged) == ("critic" in modules)
        # Those without a loss are updated in closed form: the multiplier.
        assert losses - logged <= {"multiplier_loss"}
    assert meant == set(method.logs)


@every_method
def test_a_page_has_a_title_equations_and_a_command_that_is_understood(name: str, monkeypatch: pytest.MonkeyPatch):
    page = page_of(name)
    title = page.splitlines()[0]
    assert title.startswith("# ")
    assert re.sub("[^a-z0-9]", "", title.lower()) == name.replace("_", "")
    assert "$$" in page
    commands = [
        shlex.split(line)[2:]
        for language, options, block in FENCE.findall(page)
        if language == "console" and options.split() == ["no-run"]
        for line in block.splitlines()
        if line.startswith("$ fidec train ")
    ]
    understood = []
    monkeypatch.setattr("fidec.cli.train._train", lambda config, *_, **__: understood.append(config) or 0)
    for words in commands:
        assert cli.main(words) == 0, words
    assert name in [config.algo for config in understood]
    assert all(config.task is not None and tasks.family_of(config.task) for config in understood)


def test_the_overview_says_which_methods_take_images():
    """The table may leave a method out: a hook lists the pages of all methods."""
    spec = Spec((64, 64, 3), 2, observation_dtype="uint8")
    for link, *_, takes in tables(text_of("methods/index.md"), "method"):
        (name,) = [name for name in METHODS if link == f"[{name}]({name}.md)"]
        try:
            algos.make(name, spec)
            assert takes == "yes", name
        except ConfigError:
            assert takes == "no", name


@pytest.mark.parametrize("name", ["fidec", "deflow"])
def test_table_of_presets_is_what_the_presets_say(name: str):
    method = algos.get(name)
    configs = [method.configure(preset) for preset in PRESETS]
    for option, *_, recommended, paper, released in tables(page_of(name), "option"):
        assert [recommended, paper, released] == [str(getattr(config, option, "-")) for config in configs], option


def test_table_of_budgets_is_what_the_tasks_say():
    listed = {row[0]: row[1:] for row in tables(section(page_of("fidec"), "Budgets"), "tasks")}
    for family, cells in listed.items():
        found = tasks.family_of(f"{family}-singletask-v0")
        assert found is not None, family
        for column, method in enumerate(("fidec", "deflow")):
            expected = {"recommended": cells[column], "paper": cells[column], "released": cells[2]}
            for preset in PRESETS:
                budget = found.options(method, preset)["budget"].value
                assert str(budget) == expected[preset], (family, preset)
    from fidec.tasks.published import FAMILIES

    assert set(listed) == {name for name, family in FAMILIES.items() if family.benchmark == "ogbench"}


def glossary(prefix: str) -> set[str]:
    names = [row[0] for row in rows(section(text_of("concepts.md"), "Glossary of logged numbers"))]
    assert len(names) == len(set(names))
    return {name.removeprefix(prefix) for name in names if name.startswith(prefix)}


class OneEpisode:
    """Stands for an EnvPool; what is wanted is only how the evaluator sums up."""

    def __init__(self, make_env, num_envs, **_):
        self.observation_shape, self.observation_dtype, self.action_dim = (3,), "float32", 2
        self.action_low, self.action_high, self.unused_parts = [-1.0, -1.0], [1.0, 1.0], ()

    def run(self, act, episodes, seed, **_):
        return [Episode(0, 0, 0, "ok", 1.0, 5, 1.0)]

    def close(self):
        pass


def test_glossary_has_the_evaluation_and_the_times(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(evaluation, "EnvPool", OneEpisode)
    spec = Spec(observation_shape=(3,), action_dim=2)
    nothing: Any = lambda *_: None  # noqa: E731
    algorithm = algos.Algorithm(nothing, nothing, nothing, nothing)
    env = EnvFactory("any", nothing, score=lambda summary: 0.0)
    with evaluation.Evaluator(env, spec, envs=1, episodes=1) as evaluator:
        summary, episodes, _ = evaluator(algorithm, None, 0, 0)
    assert glossary("evaluation/") == set(summary)
    assert set(summary) > set(summarise(episodes))
    source = "".join(path.read_text() for path in (ROOT / "src" / "fidec" / "train").glob("*.py"))
    for kind in ("time/", "online/"):
        assert glossary(kind) == set(re.findall(rf'"{kind}(\w+)"', source))
    assert glossary("exploration/") == {"episodes", "return", "length", "success"}
    layout = section(text_of("command-line.md"), "The run directory")
    assert all(f"`{field}`" in layout for field in ("step", *episodes[0].row()))


def test_run_directory_layout_is_complete():
    listed = {row[0].rstrip("/") for row in rows(section(text_of("command-line.md"), "The run directory"))[1:]}
    assert listed == {*rundir.CONTENTS, rundir.MARKER, rundir.LOCK, rundir.LEASE}


def test_every_command_has_a_section():
    text = text_of("command-line.md")
    headings = set(re.findall(r"\w+", " ".join(re.findall(r"^## (.*)$", text, re.MULTILINE))))
    assert set(cli.COMMANDS) <= headings


def anchors(text: str) -> set[str]:
    """The anchors that GitHub and MkDocs give to a page's headings."""
    plain = FENCE.sub("", text)
    headings = re.findall(r"^#+ (.*)$", plain, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@every_page
def test_links_resolve(page: Path):
    for link in LINK.findall(FENCE.sub("", page.read_text(encoding="utf-8"))):
        if re.match(r"[a-z]+:", link):
            continue  # another site
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), f"{page.name} links to {link}"
        if page.is_relative_to(DOCS):
            assert target.is_relative_to(DOCS), f"{page.name}: {link} leaves docs/, which MkDocs cannot follow"
        if anchor:
            assert anchor in anchors(target.read_text(encoding="utf-8")), f"{page.name} links to {link}"


def test_every_page_is_in_the_contents():
    names = {page.relative_to(DOCS).as_posix() for page in PAGES if page.is_relative_to(DOCS)}
    methods = {name for name in names if name.startswith("methods/")}
    assert {f"methods/{name}.md" for name in ("index", "comparison", *METHODS)} == methods
    listed = names - methods | {"methods/index.md"}
    assert set(re.findall(r"^  - .*: ([\w/-]+\.md)", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)) == listed
    assert set(LINK.findall(text_of("index.md"))) == listed - {"index.md"}


@pytest.mark.parametrize("name", fidec.__all__)
def test_every_public_name_is_documented(name: str):
    assert hasattr(fidec, name)
    assert any(re.search(rf"\bfidec\.{name}\b", page.read_text(encoding="utf-8")) for page in PAGES)
