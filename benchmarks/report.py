"""Makes the tables and the chart of the benchmarks' pages from results.json. `python -m benchmarks.report`.

A page says between two comments what stands there: `<!-- results: ingest -->` and `<!-- end -->` hold the table of all
results of that section, `<!-- headlines -->` the twelve of the first page, `<!-- figures -->` the four of the README.
"""

import math
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from benchmarks.results import Result, in_words, read

ROOT = Path(__file__).resolve().parents[1]
INDEX = ROOT / "benchmarks" / "README.md"
PAGES = (INDEX, *sorted((ROOT / "benchmarks" / "pages").glob("*.md")), ROOT / "README.md")
CHART = ROOT / "benchmarks" / "speed.svg"
MAX_HEADLINES = 12

# Colours of text, of what is faster and of what is slower, and of the ground, by the reader's scheme.
PALETTES = {
    "light": {"text": "#1f2328", "faster": "#1a7f37", "slower": "#9a6700", "ground": "#ffffff"},
    "dark": {"text": "#e6edf3", "faster": "#3fb950", "slower": "#d29922", "ground": "#0d1117"},
}
_TITLE = "The speed of rollcast, divided by that of what it is compared with"
_MARKED = re.compile(r"(<!-- (results: (\w+)|headlines|figures) -->\n).*?(<!-- end -->)", re.DOTALL)


def main() -> None:
    """Writes the pages and the chart anew."""
    results = read()
    for page in PAGES:
        page.write_text(with_tables(page.read_text(encoding="utf-8"), results), encoding="utf-8")
    CHART.write_text(chart(results), encoding="utf-8")


def with_tables(page: str, results: Sequence[Result]) -> str:
    """Returns a page with the tables between its comments made anew.

    Raises:
        ValueError: a comment names a section without results.
    """

    def table(match: re.Match[str]) -> str:
        opening, kind, section, closing = match.groups()
        if kind == "headlines":
            made = headline_table(results)
        elif kind == "figures":
            made = readme_table(results)
        else:
            made = section_table([result for result in results if result.section == section])
        return f"{opening}{made}\n{closing}"

    return _MARKED.sub(table, page)


def section_table(results: Sequence[Result]) -> str:
    """Returns the table of a section of a family's page."""
    if not results:
        raise ValueError(
            "a page has a table of results that results.json does not have; expected the name of a section"
        )
    rows = [
        (
            result.question,
            str(result.ours),
            "; ".join(other.text(result.ours.unit) for other in result.compared_with),
            "; ".join(other.ratio_text() for other in result.compared_with if other.ratio_text()),
            target_text(result),
            f"{result.date}, load {result.load}",
        )
        for result in results
    ]
    return _table(("question", "ours", "compared with", "ratio", "target", "measured"), rows)


def target_text(result: Result) -> str:
    """Returns the target, and whether it was missed."""
    return f"{result.target}: missed" if result.target and result.is_met is False else result.target or ""


def headlines(results: Iterable[Result]) -> list[Result]:
    """Returns the results of the first page.

    Raises:
        ValueError: there are more than twelve.
    """
    found = [result for result in results if result.headline]
    if len(found) > MAX_HEADLINES:
        raise ValueError(f"results.json has {len(found)} headlines; expected at most {MAX_HEADLINES}")
    return found


def headline_table(results: Sequence[Result]) -> str:
    """Returns the table of the first page."""
    rows = [
        (result.headline.question, _value(result), result.compared.text(result.ours.unit), words(result))
        for result in headlines(results)
        if result.headline
    ]
    return _table(("question", "ours", "compared with", "result"), rows)


def readme_table(results: Sequence[Result]) -> str:
    """Returns the four figures of the README."""
    rows = [
        (result.headline.question, _value(result), words(result))
        for result in headlines(results)
        if result.headline and result.headline.readme
    ]
    return _table(("question", "measured", "result"), rows)


def words(result: Result) -> str:
    """Returns the result of a headline in words."""
    assert result.headline
    ratio = result.speed if result.ours.unit not in {"s", "ms", "KB"} else result.ratio
    return result.headline.result.format(ratio=in_words(ratio))


def _value(result: Result) -> str:
    return str(result.ours).partition(" (")[0]


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "".join("|" + "|".join(f" {cell} " if cell else " " for cell in line) + "|\n" for line in lines).replace(
        " --- ", "---"
    )


def chart(results: Sequence[Result]) -> str:
    """Returns bars of how many times as fast ours is as what it is compared with, on a logarithmic scale, as SVG."""
    bars = headlines(results)
    row, top, left, right = 26, 62, 400, 860
    low, high = 0.4, 128.0

    def x(speed: float) -> float:
        return left + (right - left) * math.log(speed / low) / math.log(high / low)

    height = top + row * len(bars) + 36
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 920 {height}" role="img" aria-label="{_TITLE}">',
        f"<style>{_style('light')} @media (prefers-color-scheme: dark) {{{_style('dark')}}}</style>",
        f'<rect class="ground" width="920" height="{height}" rx="6"/>',
        f'<text x="20" y="26" class="title">{_TITLE}</text>',
        f'<text x="{x(1):.0f}" y="52" class="middle">as fast</text>',
        f'<line x1="{x(1):.0f}" x2="{x(1):.0f}" y1="{top - 4}" y2="{height - 30}" class="line"/>',
    ]
    for i, result in enumerate(bars):
        assert result.headline
        y, end = top + row * i, x(result.speed)
        kind = "faster" if result.speed >= 1 else "slower"
        begin, width = min(x(1), end), max(1.0, abs(end - x(1)))
        parts.append(f'<text x="20" y="{y + 15}">{_escaped(result.headline.chart)}</text>')
        parts.append(f'<text x="200" y="{y + 15}">beside {_escaped(result.compared.name)}</text>')
        parts.append(f'<rect class="{kind}" x="{begin:.0f}" y="{y + 3}" width="{width:.0f}" height="16"/>')
        parts.append(f'<text x="{max(end, x(1)) + 6:.0f}" y="{y + 15}">{in_words(result.speed)}</text>')
    parts.append(f'<text x="20" y="{height - 12}">Two CPU cores, measured in turns; logarithmic scale.</text>')
    return "\n".join((*parts, "</svg>\n"))


def _style(scheme: str) -> str:
    palette = PALETTES[scheme]
    return (
        f"text {{font: 13px sans-serif; fill: {palette['text']}}} .title {{font-weight: bold; font-size: 15px}} "
        f".middle {{text-anchor: middle}} .line {{stroke: {palette['text']}; stroke-width: 1}} "
        f".faster {{fill: {palette['faster']}}} .slower {{fill: {palette['slower']}}} "
        f".ground {{fill: {palette['ground']}}}"
    )


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;")


if __name__ == "__main__":
    main()
