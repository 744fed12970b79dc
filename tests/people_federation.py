"""A small federated dataset of people with two sensitive features, for tests."""

import numpy as np
from conftest import make_federation

from fedjax_fair.data.federated import FederatedData
from fedjax_fair.data.sensitive import SensitiveFeature

FEATURES = (SensitiveFeature("sex", ("F", "M")), SensitiveFeature("age", ("a", "b", "c")))


def make_people(seed=0, num_classes=2, features=FEATURES, **settings) -> FederatedData:
    """Draws labels and sensitive features; some cells are empty."""
    data = make_federation(seed, **settings)
    rng = np.random.default_rng(seed + 1)

    def with_people(part):
        total = len(part.labels)
        codes = rng.integers(
            0, [len(feature.values) for feature in features], (total, len(features))
        )
        labels = (part.features[:, 0] + codes[:, 0] + rng.normal(size=total) > 0.5).astype(np.int32)
        if num_classes > 2:
            labels = rng.integers(0, num_classes, total).astype(np.int32)
        return part._replace(labels=labels, sensitive_features=codes.astype(np.int32))

    return data.map_parts(with_people)._replace(num_classes=num_classes, sensitive_names=features)


def people_of(part, client=None):
    """Indices of the examples of a client, or of all."""
    if client is None:
        return part.order
    return part.order[part.offsets[client] : part.offsets[client] + part.sizes[client]]
