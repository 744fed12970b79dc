"""Numbers with an interval on pages equal those of committed tables.

``docs/reproduction/numbers.csv`` has a row for each: the page, the text on it, a CSV file, a query
of its rows, and the columns with the values. A column may have a prefix: ``-`` for the negated
value, ``min:`` and ``max:`` for several rows.
"""

import re
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from experiments import findings as benchmark_findings
from experiments.reproduction import pages as claim_pages
from experiments.reproduction import protocol_pages
from fedjax_fair.app.settings import registry

ROOT = Path(__file__).parents[2]
NUMBERS = ROOT / "docs" / "reproduction" / "numbers.csv"
BENCHMARK = ROOT / "docs" / "benchmark" / "1.1"
PAGES = ["README.md", "docs/comparison.md", "docs/benchmark/1.1/findings.md"] + [
    path.relative_to(ROOT).as_posix() for path in sorted(NUMBERS.parent.glob("*.md"))
]
MINUS = "\N{MINUS SIGN}"
NUMBER = rf"[{MINUS}+-]?\d[\d,]*(?:\.\d+)?"
INTERVAL = re.compile(
    rf"(?:{NUMBER}(?: %| points?| nat)?[ ,;(]{{1,3}}(?:95% CI )?|\((?:95% CI )?)"
    rf"{NUMBER} to {NUMBER}(?=[,;) :])|{NUMBER} ± {NUMBER}|{NUMBER} \({NUMBER}, {NUMBER}\)"
)
WRITTEN = re.compile(
    r"-(mnist|cifar10|digits|several|theorem|tables|endpoints|shakespeare)\.md$|theorem1\.md$|protocol(-\w+)?\.md$"
)
"""Pages that scripts write, see test_committed_tables.py, and pages without results."""
CLAIM_PAGES = [page for page in PAGES if page.rpartition("/")[2] in claim_pages.PAGES]


def words(text):
    return re.sub(r"\s+", " ", text)


@cache
def table(file):
    return pd.read_csv(ROOT / file)


@cache
def numbers():
    return pd.read_csv(NUMBERS, dtype=str, keep_default_na=False)


@cache
def of_page(page):
    """Returns file, query and columns of each row, by text."""
    rows = numbers()[numbers()["page"] == page]
    sources = zip(rows["file"], rows["query"], rows["columns"], strict=True)
    grouped = {}
    for text, source in zip(rows["text"], sources, strict=True):
        grouped.setdefault(text, []).append(source)
    return grouped


@cache
def values(file, query, columns):
    """Returns the values of a row of ``numbers.csv``."""
    rows = table(file).query(query) if query else table(file)
    found = []
    for column in columns.split("; "):
        sign = -1 if column.startswith("-") else 1
        reduce, _, name = column.removeprefix("-").rpartition(":")
        if not reduce:
            assert len(rows) == 1, f"{query}: {len(rows)} rows of {file}"
        found.append(sign * getattr(rows[name], reduce or "min")())
    return np.array(found, float)


def shown(text):
    """Returns the numbers of a text, and half a unit of their last digits."""
    matches = re.findall(NUMBER, text.replace("95% CI", ""))
    digits = [len(match.partition(".")[2]) for match in matches]
    plain = [float(match.replace(MINUS, "-").replace(",", "")) for match in matches]
    return np.array(plain), 0.5 * 10.0 ** -np.array(digits)


def problems(page, text):
    """Returns texts without a source, with another value, or found too often or too rarely."""
    # Tables of claims are tested as a whole.
    text, found = words(claim_pages.BLOCK.sub("", text)), []
    for wanted, rows in of_page(page).items():
        place = re.compile(rf"(?<![\d.,]){re.escape(wanted)}(?!\.?\d)")
        if len(place.findall(text)) != len(rows):
            found.append(f"{wanted}: expected {len(rows)} times")
        text = place.sub(" ", text)
        given, half = shown(wanted)
        for row in rows:
            known = values(*row)
            # Tables have three or four digits, so that a value may be rounded twice.
            if len(known) != len(given) or (np.abs(known - given) > half + 6e-4).any():
                found.append(f"{wanted}: {row[0]} has {known}")
    return found + [f"{match.group()}: no source" for match in INTERVAL.finditer(text)]


@pytest.mark.parametrize("page", [page for page in PAGES if not WRITTEN.search(page)])
def test_intervals_are_those_of_committed_tables(page):
    assert problems(page, (ROOT / page).read_text("utf8")) == []


def test_the_page_of_the_benchmark_has_the_tables_of_its_report():
    folder = ROOT / "docs" / "benchmark"
    page = (folder / "README.md").read_text("utf8")
    for name, title in benchmark_findings.TABLES.items():
        found = benchmark_findings.table_of(folder / "embedded", title)
        assert f"<!-- {name} embedded -->\n{found}\n<!-- end -->" in page
        if name in ("known", "ranking"):
            found = benchmark_findings.table_of(folder / "standard", title)
            assert f"<!-- {name} standard -->\n{found}\n<!-- end -->" in page


def test_pages_name_the_methods_that_are_separated_from_fedavg():
    folder = ROOT / "docs" / "benchmark" / "embedded"
    ranked, compared = (pd.read_csv(folder / f"{name}.csv") for name in ("ranking", "differences"))
    decided = ranked[ranked["verdict"].isin(["better", "worse"])]
    assert decided.set_index(["order", "method"])["verdict"].to_dict() == {
        ("spread", "fedfa"): "better", ("spread", "adafed"): "better", ("spread", "krum"): "worse",
    }  # fmt: skip
    compared = compared[compared["verdict"].isin(["better", "worse"])]
    accuracy = compared[compared["measure"] == "accuracy"]
    last = accuracy[accuracy["family"] == "F2"].set_index(["federation", "method"])["verdict"]
    on_digits = ("fedrep", "lg_fedavg", "local", "local_converged")
    assert last.to_dict() == {
        **{("digits", name): "worse" for name in on_digits},
        **{("synthetic", name): "worse" for name in ("krum", "oort")},
    }
    stopped: dict = {}
    rows = accuracy[accuracy["family"] == "stopped"]
    for row in rows.itertuples():
        stopped.setdefault((row.federation, row.verdict), set()).add(row.method)
    text = words((folder.parent / "README.md").read_text("utf8"))
    sentence = text[text.index("With the round of each run") : text.index("family `stopped`")]
    names = [set(re.findall("`(\\w+)`", part)) for part in re.split("; |, and ", sentence)]
    known = {"fedavg", "synthetic", "digits"}
    assert [part - known for part in names] == [
        stopped[place] for place in (
            ("synthetic", "better"), ("digits", "worse"), ("synthetic", "worse"),
        )
    ]  # fmt: skip


def test_the_page_names_the_methods_that_are_separated_on_adult():
    folder = ROOT / "docs" / "benchmark" / "standard"
    compared, ranked = (pd.read_csv(folder / f"{name}.csv") for name in ("differences", "ranking"))
    rows = compared[(compared["family"] == "stopped") & (compared["measure"] == "accuracy")]
    text = words((folder.parent / "README.md").read_text("utf8"))
    start = text.index("`apfl`, `ditto`, `fedbabu`")
    better, worse = text[start : text.index("([differences](standard")].split(" are more accurate")
    known = rows.groupby("verdict")["method"].agg(set)
    assert set(re.findall("`(\\w+)`", better)) == known["better"]
    assert set(re.findall("`(\\w+)`", worse)) - {"fedavg"} == known["worse"]
    best = ranked[(ranked["order"] == "accuracy") & (ranked["verdict"] == "better")]["method"]
    assert len(best) == 7  # README.md counts them.
    assert set(best) <= {*registry.GROUPS["personalized"], "fine_tuned"}


def test_the_page_names_the_methods_that_are_not_ranked():
    folder = ROOT / "docs" / "benchmark" / "embedded"
    ranked, settings = (pd.read_csv(folder / f"{name}.csv") for name in ("ranking", "settings"))
    everywhere = set(settings[settings["federation"] == "digits"]["method"])
    text = words((folder.parent / "README.md").read_text("utf8"))
    sentence = text[text.index("at the limit of its range:") : text.index("Three methods have no")]
    assert set(re.findall("`(\\w+)`", sentence)) == everywhere - set(ranked["method"])
    ranks = ranked.set_index(["order", "method"])["rank"]
    sentence = text[text.index("Costs change the order") : text.index("<!-- orders")]
    expected = [
        ranks[place] for place in (
            ("accuracy", "subtrunc"), ("compute", "subtrunc"),
            ("accuracy", "scaffold"), ("megabytes", "scaffold"),
        )
    ]  # fmt: skip
    assert re.findall(r"\d+\.\d", sentence) == [f"{rank:.1f}" for rank in expected]


@pytest.mark.parametrize("page", CLAIM_PAGES)
def test_tables_of_claims_are_those_of_their_runs(page):
    found = claim_pages.blocks((ROOT / page).read_text("utf8"))
    assert found
    for name, shown_table in found.items():
        if name.startswith("protocol-"):
            if name.endswith("-coincidence"):
                same = pd.read_csv(NUMBERS.parent / f"{name}.csv")
                assert shown_table == protocol_pages.coincidence(same), name
                continue
            family = pd.read_csv(NUMBERS.parent / f"{name.rsplit('-', name.count('-') - 1)[0]}.csv")
            shown_rows = protocol_pages.short(family.fillna({"verdict": ""}), name)
            assert shown_table == shown_rows, name
            assert (NUMBERS.parent / f"{name}.png").exists()
            assert (NUMBERS.parent / f"curves-{name}.png").exists()
            continue
        assert shown_table == claim_pages.table(name), name
        assert (NUMBERS.parent / f"claim-{name}.png").exists()


def test_the_file_of_claims_has_their_differences():
    committed = pd.read_csv(NUMBERS.parent / "claims.csv")
    pd.testing.assert_frame_equal(committed, claim_pages.numbers(), atol=6e-5, rtol=1e-4)


def test_curves_are_paired_differences_without_the_untrained_model():
    panels = claim_pages.curves("cifar10-windows").axes
    runs = pd.read_csv(NUMBERS.parent / "selection-cifar10-runs.csv")
    runs = runs[runs["seed"] < 4]
    values = 100 * runs.pivot_table("client_dissimilarity", ["seed", "round"], "algorithm")
    for axes, window in zip(panels, (2, 5, 10), strict=True):
        gaps = values[f"unionfl:window={window}"] - values["divfl"]
        line = axes.lines[0]
        np.testing.assert_array_equal(line.get_xdata(), np.arange(1, 32))
        expected = gaps.groupby("round").mean()[1:]
        np.testing.assert_allclose(line.get_ydata(), expected, atol=1e-9)


def test_verdicts_of_the_benchmark_are_those_of_its_findings():
    text = words((BENCHMARK / "findings.md").read_text("utf8"))
    evidence = {}
    for track in ("embedded", "standard"):
        folder = BENCHMARK / track
        assert not pd.read_csv(folder / "verdicts.csv")["verdict"].str.startswith("fairer").any()
        rows = pd.read_csv(folder / "evidence.csv").query("scope == 'overall'")
        fairer = rows[rows["verdict"].str.startswith("fairer")]
        evidence[track] = fairer.groupby(["criterion", "measure"])["method"].apply(set)
        ranked = pd.read_csv(folder / "ranking.csv").query("scope == 'overall'")
        scaffold = ranked.set_index("method").loc["scaffold"]
        assert (scaffold["accuracy_difference"] > 0) & (scaffold["accuracy_p"] < 0.05)
    assert "`scaffold` and `centralized` do" in text
    for measure in ("standard_deviation", "worst_10pct", "gini"):
        assert evidence["embedded"]["worst", measure] == {"scaffold", "centralized"}
    assert ("mean", "standard_deviation") not in evidence["embedded"]
    assert "`centralized` is fairer under all three criteria, and `scaffold` and `scaffold" in text
    of_worst = evidence["standard"].xs("worst_10pct", level="measure").to_dict()
    assert of_worst == {
        "mean": {"centralized"},
        "worst": {"centralized"},
        "fairest": {"centralized", "scaffold", "scaffold+fedadam"},
    }
    assert "standard_deviation" not in evidence["standard"].index.get_level_values("measure")


def test_findings_on_shakespeare_are_those_of_its_tables():
    text = words((BENCHMARK / "findings.md").read_text("utf8"))
    folder = BENCHMARK / "standard"
    results = pd.read_csv(folder / "results.csv").query("federation == 'shakespeare'")
    fedavg = results.set_index("method").loc["fedavg"]
    assert f"`fedavg` is right on {100 * fedavg['accuracy']:.1f}%" in text
    share = 100 * (fedavg["noise_floor"] / fedavg["standard_deviation"]) ** 2
    spread = 100 * fedavg["standard_deviation"]
    assert f"is {spread:.1f} points with `fedavg`, and {share:.0f}% of its variance" in text
    settings = pd.read_csv(folder / "settings.csv").query(
        "federation == 'shakespeare' and criterion == 'mean'"
    )
    rates = settings["settings"].str.extract("learning_rate=([\\d.]+)")[0].astype(float)
    tried = pd.read_csv(folder / "cells.csv", low_memory=False).query(
        "federation == 'shakespeare' and phase == 'tuning'"
    )["settings.learning_rate"]
    is_less = rates < tried.max()
    assert set(settings["method"][is_less]) == {"fedadam", "scaffold+fedadam", "local"}
    ranked = pd.read_csv(folder / "ranking.csv").query("scope == 'shakespeare'").set_index("method")
    difference = 100 * ranked["accuracy_difference"]
    assert f"`scaffold+fedadam` is {difference['scaffold+fedadam']:.1f} points more" in text
    shown = f"{abs(difference['fine_tuned']):.1f}"
    assert difference["fine_tuned"] < 0
    assert f"`fine_tuned` differs from `fedavg` by {MINUS}{shown} points" in text
    is_more = (ranked["standard_deviation_p"] < 0.05) & (
        ranked["standard_deviation_difference"] > 0
    )
    assert set(ranked.index[is_more]) == {"fedrep", "ditto"}
    others = pd.read_csv(BENCHMARK / "findings.csv").query(
        "track == 'standard' and method == 'fedadam' and other == 'fedavg' "
        "and measure == 'accuracy' and scope not in ('overall', 'shakespeare')"
    )
    assert len(others) == 5
    assert ((others["low"] < 0) & (others["high"] > 0)).all()


def test_ranges_of_the_benchmark_are_those_of_its_results():
    text = words((BENCHMARK / "findings.md").read_text("utf8"))
    results = pd.read_csv(BENCHMARK / "embedded" / "results.csv").set_index("method")

    def range_of(column, *methods, digits, scale=1, of=None):
        rows = results if of is None else results[results["federation"] == of]
        values = scale * (rows.loc[list(methods), column] if methods else rows[column]).dropna()
        return f"{values.min():.{digits}f}", f"{values.max():.{digits}f}"

    low, high = range_of("relative_compute", "power_of_choice", digits=1)
    assert f"{low} to {high} times the operations of FedAvg with `power_of_choice`" in text
    low, high = range_of("relative_compute", "divfl", digits=1)
    assert f"{low} to {high} times with `divfl`" in text
    low, high = range_of("unseen_accuracy", digits=0, scale=100, of="synthetic")
    assert f"right on {low}% to {high}% of the test examples" in text
    low, high = range_of("adapted_accuracy", digits=0, scale=100, of="synthetic")
    assert f"on {low}% to {high}%." in text
    fedavg = results.loc["fedavg"].set_index("federation")
    share = 100 * (fedavg["noise_floor"] / fedavg["standard_deviation"]) ** 2
    form = "{:.0f}% of the variance over clients with `fedavg` on `digits`, {:.0f}% on `synthetic`"
    assert form.format(share["digits"], share["synthetic"]) in text
    assert 97 < share["groups"] < 103
    gap = "demographic_parity_difference"
    assert f"from {100 * fedavg[gap]['groups']:.1f}, with" in text
    whole = pd.read_csv(BENCHMARK / "standard" / "results.csv")
    standard = {name: rows.set_index("method") for name, rows in whole.groupby("federation")}
    assert f"with {standard['adult'].relative_compute['fedrep']:.1f} times the operations" in text
    for form, name in (
        ("than the {:.1f} points of `fedavg`", "adult"),
        ("difference, {:.1f} points with `fedavg`", "mpls_stops"),
        ("from {:.1f}, with", "census_income"),
    ):
        assert form.format(100 * standard[name][gap]["fedavg"]) in text
    costs = whole[whole["method"] == "power_of_choice"]["relative_compute"]
    assert f"takes {costs.min():.1f} to {costs.max():.1f} times the operations of FedAvg." in text
    gaps = pd.read_csv(BENCHMARK / "findings.csv").query(
        "track == 'standard' and method == 'power_of_choice' and other == 'fedavg' "
        "and measure == 'standard_deviation' and scope not in ('overall', 'cifar10')"
    )["difference"]
    assert len(gaps) == 5
    assert f"it is {-gaps.max():.1f} to {-gaps.min():.1f} points less on the five other" in text
    costs = pd.concat([results.reset_index(), whole]).set_index("method")["relative_compute"]
    of_selection = costs[["power_of_choice", "divfl", "unionfl"]]
    assert f"{of_selection.min():.1f} to {of_selection.max():.0f} times" in text
    groups = results[results["federation"] == "groups"]
    ratio = groups["standard_deviation"] / groups["noise_floor"]
    assert ratio.between(0.95, 1.05).all()


def test_repeated_runs_of_the_benchmark_are_those_of_their_table():
    repeated = pd.read_csv(BENCHMARK / "rerun.csv")
    runs, equal = repeated["runs"].sum(), repeated["equal"].sum()
    before = repeated.set_index("federation").loc[["adult", "mpls_stops", "mnist"]]
    assert (before["equal"] == before["runs"]).all()
    for page, form in (
        ("protocol.md", f"{equal:,} of {runs:,} were equal to six digits"),
        ("findings.md", f"of {runs:,}, {equal:,} were equal to six digits"),
    ):
        assert form in words((BENCHMARK / page).read_text("utf8"))


def test_planted_checks_of_the_benchmark_have_their_answers():
    planted = pd.read_csv(BENCHMARK / "planted.csv")
    aliases = planted[planted["check"] == "alias"]
    assert len(aliases) == 20
    assert (aliases["is_separated"] | aliases["accuracy_is_separated"]).sum() <= 1
    assert not planted[planted["check"] == "iid"]["is_separated"].any()
    # Clopper and Pearson's interval of 0 of 20.
    limit = 100 * (1 - 0.025 ** (1 / len(aliases)))
    text = words((BENCHMARK / "findings.md").read_text("utf8"))
    assert f"in none of 20 repetitions (95% CI of the rate: at most {limit:.0f}%)" in text


def test_every_claim_is_on_a_page():
    names = [
        name
        for page in CLAIM_PAGES
        for name in claim_pages.exploratory((ROOT / page).read_text("utf8"))
    ]
    crossed = {f"cross-{data}" for data in claim_pages.CROSSED}
    assert sorted(names) == sorted({*claim_pages.CLAIMS} | crossed)


def test_tables_of_claims_equal_an_independent_computation():
    """Pandas and SciPy only; UnionFL against DivFL on CIFAR-10."""
    runs = pd.read_csv(NUMBERS.parent / "selection-cifar10-runs.csv")
    runs = runs[runs["round"] > 0]
    values = 100 * runs.pivot_table("client_dissimilarity", "seed", "algorithm")
    names = [f"unionfl:window={window}" for window in (2, 5, 10)]
    gaps = values[names].sub(values["divfl"], axis=0).dropna()
    p = [stats.ttest_1samp(gaps[name], 0).pvalue for name in names]
    order = np.argsort(p)
    adjusted = np.maximum.accumulate(np.array([3, 2, 1]) * np.array(p)[order])[np.argsort(order)]
    lines = claim_pages.table("cifar10-windows").splitlines()
    for name, adjusted_p in zip(names, np.minimum(adjusted, 1), strict=True):
        (line,) = [line for line in lines if f"all rounds | `{name}`" in line]
        low, high = stats.t.interval(0.95, 3, gaps[name].mean(), stats.sem(gaps[name]))
        expected = f"{gaps[name].mean():+.2f} | {low:+.2f} to {high:+.2f} |  | {adjusted_p:.3f} |"
        assert line.endswith(expected)


def test_every_row_is_of_a_page():
    assert set(numbers()["page"]) <= {page for page in PAGES if not WRITTEN.search(page)}


def test_another_digit_is_a_problem():
    """In each text of ``numbers.csv``, one digit, another one in each row."""
    changed = 0
    for i, row in enumerate(numbers().itertuples()):
        text = words((ROOT / row.page).read_text("utf8"))
        places = [match.start() for match in re.finditer(r"\d", row.text)]
        place = text.index(row.text) + places[i % len(places)]
        digit = str((int(text[place]) + 1 + i % 9) % 10)
        mutant = text[:place] + digit + text[place + 1 :]
        assert problems(row.page, mutant), (row.page, row.text, digit)
        changed += 1
    assert changed > 20
