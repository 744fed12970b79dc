"""Names of settings, and their values from texts and files."""

from dataclasses import fields, is_dataclass
from typing import Literal

import pytest

from fedjax_fair.app.settings.config import Config
from fedjax_fair.app.settings.names import SETTINGS, change, keys_by_name, values_of, vary
from fedjax_fair.app.settings.setting import check_value, parse_value


def test_every_setting_has_a_name_with_its_section():
    config = Config()
    for section in fields(config):
        if is_dataclass(value := getattr(config, section.name)):
            for setting in fields(value):
                key = section.name, setting.name
                assert SETTINGS[".".join(key)] == key
                assert values_of(config)[key] is getattr(value, setting.name)
    assert values_of(change(config, "selector", "mu", 0.5)) == values_of(config) | {
        ("selector", "mu"): 0.5
    }


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("mu", ("selector", "mu")),
        ("rounds", ("training", "rounds")),
        ("beta1", ("server_optimizer", "beta1")),
        ("name", None),
        ("strength", None),
        ("sensitive_feature", None),
    ],
)
def test_only_a_name_of_one_section_may_omit_it(name, key):
    assert SETTINGS.get(name) == key
    assert keys_by_name([key or ("solver", name)])[name] == (key or ("solver", name))


@pytest.mark.parametrize("given", [{"steps": 3}, {"epochs": 2}])
def test_steps_and_epochs_replace_each_other(given):
    ((name, value),) = given.items()
    (other,) = {"steps", "epochs"} - {name}
    both = change(change(Config(), "solver", "steps", 1), "solver", "epochs", 1)
    solver = vary(both, {("solver", name): value}).solver
    assert (getattr(solver, name), getattr(solver, other)) == (value, None)


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (int | None, "3", 3),
        (float | None, "0.5", 0.5),
        (tuple[int, ...] | None, "0:3", [0, 1, 2]),
        (tuple[str, ...], "sex,race", ["sex", "race"]),
        (int | Literal["auto"], "auto", "auto"),
        (bool, "True", True),
    ],
)
def test_a_text_and_the_value_of_a_file_are_the_same(kind, text, value):
    assert parse_value(kind, [text]) == check_value(kind, value)
    assert type(parse_value(kind, [text])) is type(check_value(kind, value))


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (int | None, "3.5", 3.5),
        (float, "x", "x"),
        (tuple[int, ...] | None, "0,x", [0, "x"]),
        (Literal["error", "unseen"] | None, "x", "x"),
        (bool, "1", 1),
    ],
)
def test_a_text_and_the_value_of_a_file_are_refused_alike(kind, text, value):
    with pytest.raises(ValueError, match="expected") as of_text:
        parse_value(kind, [text])
    with pytest.raises(ValueError, match="expected") as of_file:
        check_value(kind, value)
    assert str(of_text.value) == str(of_file.value)
