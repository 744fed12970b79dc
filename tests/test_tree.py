"""Laws of the base class of methods and set functions."""

import copy
import pickle
from dataclasses import FrozenInstanceError
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, Float

from fedjax_fair.training.stacked import stack_trees
from fedjax_fair.utils import checks
from fedjax_fair.utils.tree import (
    Integer,
    Number,
    Tree,
    child_fields,
    setting,
    stacked_leaves,
)


class Scale(Tree):
    """Scales, with fields of every kind."""

    size: int
    factor: Number = 1.0
    table: Float[Array, " size"] | None = None
    window: Integer = 3
    name: str = "plain"


class Chain(Tree):
    """Several parts."""

    first: Scale
    rest: tuple[Scale, ...] = ()
    function: object = None


def stack(trees):
    return stack_trees(trees).stacked


def add(one, other):
    return one + other


CASES = {
    "defaults": Scale(2),
    "numbers": Scale(2, 0.5, window=4),
    "zero": Scale(2, 0.0),
    "table": Scale(3, table=jnp.arange(3.0)),
    "nested": Chain(Scale(2, 0.5), (Scale(3), Scale(4, 2.0))),
    "function": Chain(Scale(2), function=np.sum),
    "partial": Chain(Scale(2), function=jax.tree_util.Partial(add, 1.0)),
}


@pytest.fixture(params=CASES, ids=str)
def tree(request):
    return CASES[request.param]


def test_a_tree_is_rebuilt_from_its_leaves(tree):
    leaves, structure = jax.tree.flatten(tree)
    assert jax.tree.unflatten(structure, leaves) == tree
    assert hash(jax.tree.unflatten(structure, leaves)) == hash(tree)


def test_structure_does_not_depend_on_leaf_types(tree):
    leaves, structure = jax.tree.flatten(tree)
    for other in (0, 0.0, "text", object(), np.ones(2)):
        assert jax.tree.structure(jax.tree.unflatten(structure, [other] * len(leaves))) == structure


def test_copies_are_equal(tree):
    assert copy.deepcopy(tree) == tree
    assert pickle.loads(pickle.dumps(tree)) == tree
    assert tree.replace() == tree


def test_repr_is_the_constructor_call():
    for name in ("defaults", "numbers", "zero", "nested"):
        assert eval(repr(CASES[name])) == CASES[name]
    assert repr(Scale(2)) == "Scale(size=2)"
    assert repr(Scale(2, jnp.float32(0.5))) == "Scale(size=2, factor=0.5)"


def test_a_long_repr_has_a_field_per_line():
    text = repr(Chain(Scale(2, 0.123456, name="a" * 40), (Scale(3, name="b" * 40),)))
    assert text.splitlines()[0] == "Chain("
    assert len(text.splitlines()) == 4


def test_annotations_decide_what_is_a_child():
    assert child_fields(Scale(2)) == ("factor", "window")
    assert child_fields(Scale(2, 0.0)) == ("window",)  # A plain zero is structure.
    assert child_fields(Scale(2, jnp.float32(0))) == ("factor", "window")
    assert child_fields(Scale(2, np.float32(0))) == ("factor", "window")
    assert child_fields(Chain(Scale(2))) == ("first",)
    assert child_fields(CASES["nested"]) == ("first", "rest")
    assert child_fields(CASES["function"]) == ("first",)
    assert child_fields(CASES["partial"]) == ("first", "function")


def test_annotations_may_be_strings_or_types():
    class Written(Tree):
        factor: "Number" = 1.0
        table: "Float[Array, ' n'] | None" = None

    class Evaluated(Tree):
        factor: Number = 1.0
        table: Float[Array, " n"] | None = None

    for kind in (Written, Evaluated):
        assert child_fields(kind(2.0, jnp.ones(3))) == ("factor", "table")


def test_trees_of_different_values_differ():
    assert Scale(2) != Scale(3)
    assert Scale(2, 0.5) != Scale(2, 0.25)
    assert Scale(2, 0.0) != Scale(2, 1.0)
    assert Scale(2, table=jnp.ones(2)) != Scale(2, table=jnp.zeros(2))
    assert Scale(2) != "Scale(size=2)"
    assert jax.tree.structure(Scale(2, 0.5)) == jax.tree.structure(Scale(2, 0.25))
    assert jax.tree.structure(Scale(2)) != jax.tree.structure(Scale(3))


def test_fields_are_frozen():
    with pytest.raises(FrozenInstanceError):
        Scale(2).size = 3


def test_a_new_number_does_not_trace_again():
    traced = []

    @jax.jit
    def factor(scale):
        traced.append(scale)
        return scale.factor * jnp.ones(scale.size)

    assert factor(Scale(2, 0.5)).tolist() == [0.5, 0.5]
    assert factor(Scale(2, 0.25)).tolist() == [0.25, 0.25]
    assert len(traced) == 1
    factor(Scale(3, 0.5))
    assert len(traced) == 2


def test_a_stack_is_a_batch_axis():
    trees = [Chain(Scale(2, factor), (Scale(3, 5.0),)) for factor in (0.0, 0.5, 2)]
    together = stack(trees)
    assert together.first.factor.tolist() == [0.0, 0.5, 2.0]
    assert together.first.factor.dtype == jnp.float32
    assert together.rest[0].factor == 5.0  # The same in all.
    _, leaves, varied = stacked_leaves(trees)
    assert sum(varied) == 1
    axes = jax.tree.unflatten(jax.tree.structure(together), [0 if own else None for own in varied])
    doubled = jax.vmap(lambda chain: 2 * chain.first.factor, (axes,))(together)
    assert doubled.tolist() == [0.0, 1.0, 4.0]
    assert len(leaves) == len(varied)


def test_arrays_are_stacked_too():
    together = stack([Scale(2, table=jnp.ones(2)), Scale(2, table=jnp.zeros(2))])
    assert together.table.tolist() == [[1.0, 1.0], [0.0, 0.0]]


def test_a_stack_of_one_tree_is_the_tree():
    assert stack([CASES["nested"]]) == CASES["nested"]


@pytest.mark.parametrize(
    ("trees", "message"),
    [
        ([Scale(2), Scale(3)], r"Scale\.size:"),
        ([Chain(Scale(2)), Chain(Scale(2, name="x"))], r"Chain\.first\.name:"),
        ([Scale(2), Chain(Scale(2))], "differ in structure"),
        ([Scale(2, table=jnp.ones(2)), Scale(2)], r"Scale\.table"),
        ([Scale(2, table=jnp.ones(2)), Scale(2, table=jnp.ones(3))], r"Scale\.table"),
        ([Chain(Scale(2), (Scale(2),)), Chain(Scale(2))], r"Chain\.rest"),
    ],
)
def test_different_structures_cannot_be_stacked(trees, message):
    with pytest.raises(ValueError, match=message) as caught:
        stack(trees)
    assert "\n" not in str(caught.value)


class Checked(Tree):
    """Checks its field."""

    count: int

    def __post_init__(self):
        if self.count < 0:
            raise ValueError(f"count={self.count}: expected at least 0.")


@pytest.mark.usefixtures("as_users_call")
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Scale(2.0), r"Scale\.size="),
        (lambda: Scale(np.arange(2)), r"Scale\.size"),
        (lambda: Scale(2, name=["a"]), r"Scale\.name="),
        (lambda: Chain(Scale(2), function={}), r"Chain\.function="),
        (lambda: jax.jit(Scale)(2), r"Scale\.size"),
        (lambda: jax.jit(Checked)(2), r"Checked\.count"),
        (lambda: Checked(-1), "count=-1"),
        (lambda: Checked(1).replace(count=-1), "count=-1"),
    ],
)
def test_a_field_that_cannot_be_structure_is_named(make, message):
    with pytest.raises(ValueError, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_a_missing_method_is_named():
    from fedjax_fair.roles import Selector

    class Forgetful(Selector):
        cohort_size: int

    with pytest.raises(ValueError, match="Forgetful"):
        Forgetful(2)


def test_a_field_that_hides_a_method_is_named():
    from fedjax_fair.roles import Selector
    from fedjax_fair.submodular import SetFunction

    with pytest.raises(ValueError, match=r"Sized\.size"):

        class Sized(SetFunction):
            size: int

    with pytest.raises(ValueError, match=r"Stateful\.init"):

        class Stateful(Selector):
            init: int


def test_checks_do_not_run_when_a_tree_is_rebuilt():
    class Positive(Tree):
        factor: Number

        def __post_init__(self):
            assert self.factor > 0

    tree = Positive(1.0)
    assert jax.tree.map(lambda factor: -factor, tree).factor == -1.0
    assert jax.eval_shape(lambda tree: tree, tree).factor.shape == ()


class Declared(Tree):
    """Fields that declare their valid values."""

    kind: Literal["mean", "sum"] = "mean"
    level: Literal[1, 2] = 1
    factor: Number | None = setting(checks.positive, default=None, at_most=4)
    names: tuple[str, ...] = setting(lambda name, value: (name, *value), default=())

    def __post_init__(self):
        assert self.names[0] == "names"  # Conversions come first.


class Redefined(Declared):
    """A subclass with a check of its own, which calls that of its base."""

    def __post_init__(self):
        super().__post_init__()


def test_fields_are_checked_and_converted_once():
    assert Declared().factor is None
    assert Declared(names=("a",)).names == Redefined(names=("a",)).names == ("names", "a")


@pytest.mark.parametrize("kind", [Declared, Redefined])
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kind": "median"}, "kind='median': expected one of 'mean', 'sum'"),
        ({"kind": None}, "kind=None: expected one of 'mean', 'sum'"),
        ({"factor": -1.0}, "factor=-1.0: expected a number > 0 and <= 4"),
    ],
)
def test_the_valid_values_of_a_field_are_declared(kind, settings, message):
    with pytest.raises(ValueError, match=message):
        kind(**settings)
