"""The report of a benchmark: a static page, tables and figures, from data alone."""

from fedjax_fair.benchmark.page.contents import Contents
from fedjax_fair.benchmark.page.figures import write_figures
from fedjax_fair.benchmark.page.files import result_tables, write_tables
from fedjax_fair.benchmark.page.page import write

__all__ = ["Contents", "result_tables", "write", "write_figures", "write_tables"]
