"""The command line with the settings of published tables among its presets.

python -m experiments run table1 --data.dir FOLDER
"""

from experiments.reproduction.presets import PAPERS
from fedjax_fair.app.cli import program
from fedjax_fair.app.settings.presets import PRESETS

if __name__ == "__main__":
    program(presets=PRESETS | PAPERS)
