"""The interface of a method, and the register of methods.

A method is three pure functions on one pytree of arrays; `make(config, spec)` closes over the static parts.
So scan, vmap over seeds, donation, exact resume and export need no special cases.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, reduce, wraps
from typing import Any, NamedTuple, Protocol, cast, get_type_hints, runtime_checkable

from fidec.errors import ConfigError
from fidec.parts import arrays_of
from fidec.register import Register, check_choices, unknown
from fidec.types import ArrayLike, Batch, Metrics, PRNGKey, Spec

ENTRY_POINTS = "fidec.algos"
# Metrics of every method; the last two need a critic.
COMMON_LOGS = {
    "loss": "the sum of all losses",
    "NAME_loss": "the loss of each module",
    "grad_norm/NAME": "the norm of the gradient of each module",
    "q_data": "mean of Q at the data's actions",
    "td_target": "mean of the critic's target",
}
PRESETS = ("recommended", "paper", "released")


@runtime_checkable
class Init(Protocol):
    def __call__(self, key: PRNGKey) -> Any:
        """An initial state: a pytree of arrays only."""
        ...


@runtime_checkable
class Update(Protocol):
    def __call__(self, state: Any, batch: Batch, key: PRNGKey) -> tuple[Any, Metrics]:
        """One gradient step; the metrics are scalars and include `loss`."""
        ...


@runtime_checkable
class Act(Protocol):
    def __call__(self, state: Any, observations: ArrayLike, key: PRNGKey) -> Any:
        """Actions in [-1, 1] for a batch of observations (or for a single one).

        `act`, `choose` and `act_with_base` may take two keywords, numbers or traced scalars. `noise=1.0` multiplies
        every random draw, so that 0 gives one action for an observation, whatever the key. `strength=1.0` is for
        methods that move a base action a_0 by a displacement delta: the action is a_0 + strength * delta, clipped, so
        that 0 gives the base action. Candidates are chosen among the moved actions.
        """
        ...


@runtime_checkable
class ActWithBase(Protocol):
    def __call__(self, state: Any, observations: ArrayLike, key: PRNGKey, candidates: int = ...) -> tuple[Any, Any]:
        """(actions, base actions): those of `act`, and those of the behaviour model before refinement.

        A method with `choose` takes `candidates`, and then returns the chosen action and its base action.
        """
        ...


@runtime_checkable
class Choose(Protocol):
    def __call__(self, state: Any, observations: ArrayLike, key: PRNGKey, candidates: int) -> Any:
        """Draw `candidates` actions for each observation and choose one of them by value."""
        ...


@runtime_checkable
class Explore(Protocol):
    def __call__(self, state: Any, observations: ArrayLike, key: PRNGKey) -> Any:
        """Actions in [-1, 1] to collect data with, for a batch of observations (or for a single one)."""
        ...


@runtime_checkable
class Validate(Protocol):
    def __call__(self, state: Any, batch: Batch, key: PRNGKey) -> Metrics:
        """The losses of the policy on held-out transitions."""
        ...


class State(NamedTuple):
    """The state of most methods: modules by name, their targets, their optimiser states, the step. Arrays only."""

    params: dict[str, Any]
    target: Any
    optimiser: Any
    step: Any


class Transport(NamedTuple):
    """The parts of a refined policy for given observations. An audit uses them to measure how far it has moved."""

    velocity: Callable[[Any, Any], Any]
    """v(x, t) of the behaviour flow."""
    base: Callable[[Any], Any]
    """Noise to base actions, as the policy draws them."""
    displacement: Callable[[Any], Any]
    """delta(a), before clipping; row i of the result depends on row i of the actions alone."""
    penalty: Callable[[Any, PRNGKey], Any]
    """The penalty that training constrains, for each base action."""
    budget: float
    unit: str
    """Unit of the budget: `nats` or `of the penalty`."""
    value: Callable[[Any], Any] | None = None
    """The values by which the policy chooses among moved actions; None if it does not."""


@runtime_checkable
class Propose(Protocol):
    def __call__(self, state: Any, observations: ArrayLike, key: PRNGKey) -> Any:
        """What the update needs of a frozen flow at the next states: a tree of arrays with a row for each of them.

        The flow is `state.params["flow"]`. The tree may be empty. A batch with proposals has a frozen flow, so the
        update neither changes nor solves it.
        """
        ...


class Algorithm(NamedTuple):
    """A method with its configuration and data specification closed over.

    `policy(state)` drops everything that `act` does not need (its fields become None), so that
    `act(policy(state), ...)` equals `act(state, ...)`. A portable policy stores the result. `transport(state,
    observations)` is for policies that move a behaviour flow's actions.

    A field is None if a method does not have the function. `explore` collects data online; a method without it
    explores with `act`. `act_with_base` is for methods with a behaviour model, `choose` for methods that can choose
    among several actions by value. All of them use only what `policy` keeps. `propose` is for methods that can be
    trained with a frozen behaviour flow. `validate` is for methods that imitate the data.
    """

    init: Init
    update: Update
    act: Act
    policy: Callable[[Any], Any]
    transport: Callable[[Any, Any], Transport] | None = None
    explore: Explore | None = None
    act_with_base: ActWithBase | None = None
    choose: Choose | None = None
    propose: Propose | None = None
    validate: Validate | None = None


def with_base(
    init: Init,
    update: Update,
    act_with_base: ActWithBase,
    policy: Any,
    transport: Any = None,
    propose: Propose | None = None,
) -> Algorithm:
    """An algorithm whose `act` and `choose` are `act_with_base` without the base actions."""

    @wraps(act_with_base)
    def act(*args, **options):
        return act_with_base(*args, **options)[0]

    return Algorithm(init, update, act, policy, transport, None, act_with_base, act, propose)


@dataclass(frozen=True)
class Method:
    """An entry of the register: how to configure and make an algorithm.

    `presets` maps a preset's name to the fields in which it differs from the defaults of `config`; the
    defaults are the preset `recommended`. `logs` gives the meaning of each metric, besides those that all methods log
    (`COMMON_LOGS`). `online` are the fields of `OnlineConfig` in which the method's published online phase differs
    from the others'. `offline_only` is the reason why a method has no online phase. It ends the error message "NAME
    is not trained online: ...". `runs` are fields of `RunConfig` by preset: how a run of that preset is set up. Such
    a preset has no options by task. `parts` are options that name an entry of another register, a dataclass: its
    fields are options too. `parity` is the preset whose update is that of the code behind the paper's numbers. It is
    empty if that code was not released, or if no preset has the same update. `critics` are the modules of `State`
    whose outputs are values; empty if the method learns none. By default it learns them in the modules `critic` and
    `value` if its options have a `discount`, which every method with values has.
    """

    name: str
    summary: str
    config: type
    make: Callable[[Any, Spec], Algorithm]
    presets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    logs: Mapping[str, str] = field(default_factory=dict)
    needs_rewards: bool = True  # whether it can only be trained on data with rewards
    needs_returns: bool = False  # whether `update` reads `batch.returns`, at the discount of its configuration
    online: Mapping[str, Any] = field(default_factory=dict)
    offline_only: str = ""
    runs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    parts: Mapping[str, Register] = field(default_factory=dict)
    parity: str = ""
    critics: tuple[str, ...] = cast(tuple[str, ...], None)  # see above

    def __post_init__(self):
        if self.critics is None:
            object.__setattr__(self, "critics", ("critic", "value") if "discount" in _fields(self.config) else ())

    @property
    def learns_values(self) -> bool:
        """Whether the method learns the value of actions or states."""
        return bool(self.critics)

    def build(self, options: Any, spec: Spec) -> Algorithm:
        """The algorithm on observations as they are stored: vectors are normalised if the specification has
        statistics, and joined if there are several and no image, before every network."""
        algorithm = self.make(options, spec.joined)
        return _prepared(algorithm, spec) if spec.normalised or spec.joined is not spec else algorithm

    def parts_of(self, options: Mapping[str, Any]) -> dict[str, type]:
        """The entries that these options name, by part."""
        defaults = {name: getattr(self.config, name) for name in self.parts}
        return {name: self.parts[name].get(options.get(name, usual)) for name, usual in defaults.items()}

    def config_for(self, options: Mapping[str, Any]) -> type:
        """The type of the configuration with these options: `config`, with the fields of its parts."""
        return reduce(_with_fields_of, self.parts_of(options).values(), self.config)

    def suited(self, values: Mapping[str, Any], own: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
        """`values` that were chosen for the parts of `own`, as far as they suit the parts of `given`.

        Fields that these do not have are left out, and a `budget` whose unit is another.
        """
        given = {**own, **given}
        left_out = _fields(self.config_for(own)) - _fields(self.config_for(given))
        units = [[getattr(part, "unit", None) for part in self.parts_of(each).values()] for each in (own, given)]
        left_out |= {"budget"} if units[0] != units[1] else set()
        return {name: value for name, value in values.items() if name not in left_out}

    def configure(self, preset: str = "recommended", **options: Any) -> Any:
        """The configuration of a preset, with `options` changed. Options of the preset suit the parts of these."""
        if preset != "recommended" and preset not in self.presets:
            raise unknown(f"preset of {self.name}", preset, ("recommended", *self.presets))
        fields = self.presets.get(preset, {})
        options = {**self.suited(fields, fields, options), **options}
        config = self.config_for(options)
        for name in sorted(options.keys() - _fields(config)):
            raise self.unknown_option(name, options)
        made = config(**options)
        check_choices(made)  # those of a plug-in
        return made

    def unknown_option(self, name: str, options: Mapping[str, Any]) -> ConfigError:
        """The error for an option that the method does not have with these options. It says which methods have it."""
        known, others = _fields(self.config_for(options)), []
        for part, register in self.parts.items():
            others += [f"{part} {entry}" for entry, kind in register.entries() if name in _fields(kind)]
        others = others or [entry for entry, method in METHODS.entries() if name in _fields(method.config_for({}))]
        advice = f"It is an option of {', '.join(others)}. Known: {', '.join(sorted(known))}" if others else ""
        return unknown(f"option of {self.name}", name, known, advice)


def prepare(spec: Spec, observations: Any) -> Any:
    """Observations as networks take them: normalised, and one vector if there are several and no image."""
    import jax.numpy as jnp  # here, because the register of methods is read without JAX

    observations = spec.normalise(observations)
    return observations if spec.joined is spec else jnp.concatenate(arrays_of(observations), axis=-1)


def _prepared(algorithm: Algorithm, spec: Spec) -> Algorithm:
    """The algorithm on prepared observations. Batches, environments and users have theirs in the data's units."""

    def on_batches(update):  # or validate
        def call(state, batch, key):
            observations, following = prepare(spec, batch.observations), prepare(spec, batch.next_observations)
            return update(state, batch._replace(observations=observations, next_observations=following), key)

        return update and call

    def on_prepared(function):
        if function is None:
            return None

        @wraps(function)
        def call(state, observations, *args, **options):
            return function(state, prepare(spec, observations), *args, **options)

        return call

    acting = ("act", "transport", "explore", "act_with_base", "choose", "propose")
    functions = {name: on_prepared(getattr(algorithm, name)) for name in acting}
    functions |= {"update": on_batches(algorithm.update), "validate": on_batches(algorithm.validate)}
    return algorithm._replace(**functions)


def _fields(config: type) -> set[str]:
    return {f.name for f in dataclasses.fields(config)}


@cache
def _with_fields_of(config: type, part: type) -> type:
    """The configuration with those fields of `part` that it does not have."""
    known, types = _fields(config), get_type_hints(part)
    own = [(f.name, types[f.name], field(default=f.default)) for f in dataclasses.fields(part) if f.name not in known]
    return dataclasses.make_dataclass(config.__name__, own, bases=(config,), frozen=True) if own else config


METHODS = Register("method", "fidec.algos", "METHOD", Method, ENTRY_POINTS)


def names() -> list[str]:
    """All methods: those of this package and those that other packages add."""
    return METHODS.names()


def get(name: str) -> Method:
    """The method of that name. Another package adds one through the entry-point group `fidec.algos`."""
    return METHODS.get(name)


def make(name: str, spec: Spec, *, preset: str = "recommended", **fields: Any) -> Algorithm:
    """A method ready to use: `make("fidec", spec, budget=0.01)`."""
    method = get(name)
    return method.build(method.configure(preset, **fields), spec)
