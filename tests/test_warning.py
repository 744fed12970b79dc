"""Lines that warnings point to."""

import numpy as np
import pytest

from fedjax_fair.app.run_folder import RunFolder
from fedjax_fair.app.settings.config import Config
from fedjax_fair.submodular.federated.sparse_scores import clip_negative


def test_a_warning_points_to_the_caller():
    with pytest.warns(UserWarning, match="negative") as caught:
        clip_negative("scores", np.array([-1.0]))
    assert caught[0].filename == __file__


def test_a_warning_of_nested_calls_points_to_the_caller(tmp_path):
    folder = RunFolder.create(Config(output=str(tmp_path)), "run")
    (folder.path / "env.json").write_text("{")
    with pytest.warns(UserWarning, match="damaged") as caught:
        folder.environment()
    assert caught[0].filename == __file__
