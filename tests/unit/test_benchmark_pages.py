"""Pages of benchmarks, chart and README show what results.json holds; benchmarks write their figures as JSON."""

import ast
import importlib.util
import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.report import CHART, INDEX, MAX_HEADLINES, PAGES, PALETTES, chart, headlines, section_table, with_tables
from benchmarks.results import FILE, read, shown
from benchmarks.table import VARIABLE, Figure, print_table, ratio
from tests.contrast import contrast
from tests.documents import ROOT

RESULTS = read()
SECTIONS = {result.section for result in RESULTS}
FAMILIES = [page for page in PAGES if page.parent.name == "pages"]
# These print what others measured.
WITHOUT_FIGURES = {"gpu"}


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def sections_of(page: Path) -> list[str]:
    return re.findall(r"<!-- results: (\w+) -->", text_of(page))


def cells(page: str) -> list[str]:
    return [cell.strip() for line in page.splitlines() if line.startswith("|") for cell in line.strip("|").split("|")]


class TestPages:
    @pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
    def test_has_the_figures_of_the_results(self, page: Path):
        assert with_tables(text_of(page), RESULTS) == text_of(page), "run python -m benchmarks.report"

    def test_every_result_stands_on_one_page(self):
        assert sorted(section for page in FAMILIES for section in sections_of(page)) == sorted(SECTIONS)

    @pytest.mark.parametrize("page", FAMILIES, ids=lambda page: page.name)
    def test_shows_the_command_of_every_figure(self, page: Path):
        for section in sections_of(page):
            (part,) = [part for part in text_of(page).split("\n## ") if f"<!-- results: {section} -->" in part]
            for result in RESULTS:
                assert result.section != section or f"$ {result.command}\n" in part, result.question

    def test_the_first_leads_to_every_family(self):
        assert set(re.findall(r"\]\(pages/(\w+\.md)\)", text_of(INDEX))) == {page.name for page in FAMILIES}

    @pytest.mark.parametrize("page", [INDEX, *FAMILIES], ids=lambda page: page.name)
    def test_cells_have_at_most_fifteen_words(self, page: Path):
        assert [cell for cell in cells(text_of(page)) if len(cell.split()) > 15] == []

    def test_the_first_has_one_table_of_figures_of_at_most_twelve_rows(self):
        assert 0 < len(headlines(RESULTS)) <= MAX_HEADLINES
        assert text_of(INDEX).count("<!-- headlines -->") == 1

    def test_a_figure_that_was_changed_by_hand_is_found(self):
        page = text_of(INDEX)
        changed = re.sub(r"\| \d", "| 9", page, count=1)
        assert changed != page
        assert with_tables(changed, RESULTS) == page


class TestReadme:
    def test_has_the_table_of_four_figures(self):
        assert text_of(ROOT / "README.md").count("<!-- figures -->") == 1
        assert sum(result.headline.readme for result in headlines(RESULTS) if result.headline) == 4


class TestChart:
    def test_is_that_of_the_results(self):
        assert chart(RESULTS) == CHART.read_text(encoding="utf-8"), "run python -m benchmarks.report"

    @pytest.mark.parametrize("scheme", PALETTES)
    def test_can_be_read_in_light_and_dark(self, scheme: str):
        palette = PALETTES[scheme]
        for name in ("text", "faster", "slower"):
            assert contrast(palette[name], palette["ground"]) >= 4.5
            assert palette[name] in CHART.read_text(encoding="utf-8")


class TestResults:
    def test_each_names_a_benchmark_and_when_it_was_measured(self):
        programs = {result.command.split()[2] for result in RESULTS}
        assert [program for program in programs if importlib.util.find_spec(program) is None] == []
        for result in RESULTS:
            assert re.fullmatch(r"\d{4}-\d\d-\d\d", result.date), result.question
            assert result.commit is None or re.fullmatch(r"[0-9a-f]{7,}\+?", result.commit), result.question

    def test_recorded_ratios_are_those_of_the_values(self):
        """The median of ratios is near the ratio of medians, unless a row says what was between."""
        for result in RESULTS:
            for other in result.compared_with:
                if other.ratio and other.value and not (other.ratio_range or other.ratio_quartiles):
                    of_values = result.ours.value / other.value
                    if result.ours.unit == "%" or result.section == "scaler":
                        continue  # the ratio is that of the speeds
                    assert of_values == pytest.approx(other.ratio, rel=0.2), result.question

    def test_a_field_that_is_unknown_is_named(self, tmp_path: Path):
        rows = json.loads(FILE.read_text(encoding="utf-8"))[:1]
        (tmp_path / "results.json").write_text(json.dumps([rows[0] | {"weather": "rain"}]), encoding="utf-8")
        with pytest.raises(ValueError, match="weather"):
            read(tmp_path / "results.json")

    def test_a_page_cannot_ask_for_a_section_that_has_no_results(self):
        with pytest.raises(ValueError, match="section"):
            section_table([])

    @pytest.mark.parametrize(("value", "text"), [(117e3, "117k"), (1795, "1,795"), (0.87, "0.87"), (8.8e6, "8.8M")])
    def test_numbers_have_at_most_four_digits(self, value: float, text: str):
        assert shown(value) == text


class TestFigures:
    def test_prints_the_median_in_its_unit(self):
        assert str(Figure([1e6, 3e6, 2e6], ",.0f", "MB/s", scale=1e-6)) == "2 MB/s"
        assert str(Figure([1.0, 2.0, 3.0, 4.0], ".1f", has_range=True)) == "2.5 (1.0 to 4.0)"
        assert str(Figure([1.0, 2.0, 3.0, 4.0, 9.0], ".1f", has_range=True, is_quartiles=True)) == "3.0 (2.0 to 4.0)"
        assert str(ratio([1.0, 4.0], [2.0, 2.0])) == "1.25 (0.50 to 2.00)"

    def test_a_round_that_did_not_get_there_is_a_dash(self):
        assert str(Figure([5.0, math.inf, 7.0], ".0f", has_range=True)) == "7 (5 to -)"

    def test_are_added_to_the_file_that_the_variable_names(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        path = tmp_path / "new" / "figures.json"
        monkeypatch.setenv(VARIABLE, str(path))
        print_table(("what", "speed", "in words"), [("pixels", Figure([1.0, 2.0, 4.0], unit="MB/s"), "fast")])
        print_table(("what", "reached"), [("task", Figure([math.inf]))])
        first, second = json.loads(path.read_text(encoding="utf-8"))
        measured = {
            "row": "pixels",
            "column": "speed",
            "value": 2.0,
            "unit": "MB/s",
            "quartiles": [1.5, 3.0],
            "rounds": 3,
        }
        assert measured.items() <= first.items()
        assert {"benchmark", "load", "date", "commit"} <= first.keys()
        assert second["value"] is None, "JSON has no infinity"

    @pytest.mark.slow
    def test_are_written_by_a_benchmark(self, tmp_path: Path):
        path = tmp_path / "figures.json"
        subprocess.run(
            [sys.executable, "-m", "benchmarks.acting", "--rounds", "2", "--round-s", "0.01", "--n-envs", "2"],
            cwd=ROOT,
            env=os.environ | {VARIABLE: str(path)},
            check=True,
            capture_output=True,
            timeout=300,
        )
        found = json.loads(path.read_text(encoding="utf-8"))
        assert {(one["benchmark"], one["row"]) for one in found} == {("acting", "sync"), ("acting", "entry_point")}
        assert {one["column"] for one in found} == {"the vector alone", "acting", "ratio (rounds)"}

    def test_every_table_of_a_benchmark_has_some(self):
        for path in sorted((ROOT / "benchmarks").glob("*.py")):
            names = {node.id for node in ast.walk(ast.parse(text_of(path))) if isinstance(node, ast.Name)}
            if "print_table" in names and path.stem not in WITHOUT_FIGURES:
                assert names & {"Figure", "spread"}, f"{path.name} prints a table without a Figure: JSON would lack it"
