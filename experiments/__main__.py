"""The command line with the settings of published tables among its presets.

python -m experiments run table1 --data.dir FOLDER
"""

import sys

from experiments.reproduction.presets import PAPERS
from fedjax_fair.app.cli import main
from fedjax_fair.app.presets import PRESETS

if __name__ == "__main__":
    sys.exit(main(presets=PRESETS | PAPERS))
