"""Values of games, against the definition over permutations and the axioms."""

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedjax_fair.analysis.shapley import coalition_members, leave_one_out, shapley_matrix


def by_permutations(utilities, players):
    """The mean gain of each player over all orders in which players join."""
    orders = list(permutations(range(players)))
    values = np.zeros(players)
    for order in orders:
        coalition = 0
        for player in order:
            joined = coalition | 1 << player
            values[player] += utilities[joined] - utilities[coalition]
            coalition = joined
    return values / len(orders)


def test_a_game_of_three_players():
    # Of nobody, 1, 2, 12, 3, 13, 23 and 123.
    utilities = np.array([0.1, 0.5, 0.6, 0.8, 0.1, 0.5, 0.65, 0.85])
    np.testing.assert_allclose(shapley_matrix(3) @ utilities, [0.3, 0.425, 0.025])
    np.testing.assert_allclose(leave_one_out(utilities), [0.2, 0.35, 0.05])


@pytest.mark.parametrize("players", [1, 2, 5])
def test_values_are_mean_gains_over_permutations(players):
    utilities = np.random.default_rng(players).normal(size=2**players)
    expected = by_permutations(utilities, players)
    np.testing.assert_allclose(shapley_matrix(players) @ utilities, expected, atol=1e-12)


GAMES = st.integers(1, 7).flatmap(
    lambda players: st.lists(st.floats(-1e3, 1e3), min_size=2**players, max_size=2**players).map(
        np.array
    )
)


def players_of(utilities):
    return (utilities.size - 1).bit_length()


@given(GAMES, st.floats(-10, 10))
def test_values_share_the_gain_of_all_and_are_linear(utilities, factor):
    players = players_of(utilities)
    values = shapley_matrix(players) @ utilities
    np.testing.assert_allclose(values.sum(), utilities[-1] - utilities[0], atol=1e-8)
    other = np.cos(np.arange(utilities.size))
    np.testing.assert_allclose(
        shapley_matrix(players) @ (factor * utilities + other),
        factor * values + shapley_matrix(players) @ other,
        atol=1e-8,
    )


@given(GAMES, st.floats(-1e3, 1e3))
def test_an_additional_player_without_effect_changes_no_value(utilities, bonus):
    players = players_of(utilities)
    values = shapley_matrix(players) @ utilities
    # The last bit is the new player, who adds the same to every coalition.
    joined = np.concatenate([utilities, utilities + bonus])
    found = shapley_matrix(players + 1) @ joined
    np.testing.assert_allclose(found, [*values, bonus], atol=1e-8)
    np.testing.assert_allclose(leave_one_out(joined)[-1], bonus, atol=1e-8)


@given(GAMES)
def test_twins_have_equal_values(utilities):
    players = players_of(utilities)
    # The last player and a new one can replace each other: only their number counts.
    half = utilities.size // 2
    without, one = utilities[:half], utilities[half:]
    twins = np.concatenate([without, one, one, one**2 / 1e3])
    values = shapley_matrix(players + 1) @ twins
    np.testing.assert_allclose(values[-1], values[-2], atol=1e-8)


def test_twelve_players():
    members = coalition_members(12)
    assert members.shape == (4096, 12)
    assert not members[0].any()
    assert members[-1].all()
    weights = np.linspace(0, 1, 12)
    np.testing.assert_allclose(shapley_matrix(12) @ (members @ weights), weights, atol=1e-12)
