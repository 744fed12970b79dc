"""Networks of a configuration: layers, initial parameters, trained parts and adapters."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import jax

from fedjax_fair import models
from fedjax_fair.app.settings.config import ModelConfig
from fedjax_fair.app.settings.constructors import Renamed, construct
from fedjax_fair.app.settings.names import OF_ANOTHER, option_of
from fedjax_fair.app.settings.registry import MODELS
from fedjax_fair.app.settings.suggestions import lookup
from fedjax_fair.roles import Model, Task, Variables
from fedjax_fair.utils.warning import warn

__all__ = ["make_network", "with_parameters"]

_NAMES = {
    "rank": "lora",
    "alpha": "lora_alpha",
    "targets": "lora_targets",
    "variables": "weights",
}
"""Settings by parameter of `models.lora`."""


def make_network(settings: ModelConfig, num_classes: int, target: Task | None) -> Model:
    """Makes the network of the section ``model``, whose parameters are random.

    Raises:
        ValueError: If there is no such network, or a setting has no effect without another one.
    """
    for (_, name), (_, other) in OF_ANOTHER.items():
        if getattr(settings, name) is not None and getattr(settings, other) is None:
            needed = option_of("model", other)
            raise ValueError(
                f"{option_of('model', name)} has no effect without {needed}; remove it."
            )
    network = lookup("model.name", str(settings.name), MODELS)
    model = construct(network, settings, num_classes=num_classes)
    if target in ("regression", "multi_label"):
        model = (models.as_regression if target == "regression" else models.as_multi_label)(model)
    return models.in_bfloat16(model) if settings.compute == "bfloat16" else model


def with_parameters(
    network: Model, settings: ModelConfig, variables: Variables, example: Any = None
) -> Model:
    """Returns a network with initial parameters, of which a part may be frozen.

    Args:
        network: The network.
        settings: The section ``model``.
        variables: Variables of the network.
        example: Features ``[1, ...]``, with which the network is checked.

    Raises:
        ValueError: If a setting is out of range, or the network has other variables.
    """
    try:
        if settings.lora is not None:
            if settings.fresh:
                raise ValueError("fresh=True: expected no lora, whose weights are complete.")
            model = Renamed(partial(models.lora, network, variables), _NAMES)(
                lora=settings.lora,
                lora_alpha=settings.lora_alpha,
                lora_targets=settings.lora_targets,
                trainable=settings.trainable or (),
            )
        elif settings.trainable is not None:
            fresh = settings.fresh or False
            model = models.freeze(network, variables, settings.trainable, fresh=fresh)
            if not jax.tree.leaves(model.frozen):
                warn(f"model.trainable={settings.trainable}: all parameters are trained.")
        else:
            model = models.pretrained(network, variables)
        if example is not None:
            jax.eval_shape(model.init, jax.random.key(0), example)
    except ValueError as error:
        message = re.sub("^variables|^targets", lambda found: _NAMES[found[0]], str(error))
        is_setting = re.split("[:=]", message)[0] in vars(settings)
        raise ValueError(f"model{'.' if is_setting else ': '}{message}") from None
    return model
