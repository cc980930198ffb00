"""The plot of a soak; `make peers` installs matplotlib."""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from tests.soak.judge import MB
from tests.soak.samples import Sample

_PANELS = (("resident_bytes", "resident memory, MB", MB), ("threads", "threads", 1), ("descriptors", "descriptors", 1))


def draw_plot(path: Path, samples: Sequence[Sample], *, warm_up_s: float, title: str) -> None:
    """Draws memory, threads and descriptors over time: a column a learner, a line a process.

    Args:
        path: Where to, an svg or a png.
        warm_up_s: What came before is shaded.
    """
    import matplotlib as mpl

    mpl.use("agg")
    mpl.rcParams.update({"svg.hashsalt": "rollcast", "svg.fonttype": "none"})  # same numbers, same file; small
    from matplotlib import pyplot

    lines: defaultdict[tuple[str, int], list[Sample]] = defaultdict(list)
    for sample in samples:
        lines[sample.process, sample.pid].append(sample)
    crews = list(dict.fromkeys(name.split()[0] for name, _ in lines))
    figure, grid = pyplot.subplots(
        len(_PANELS), len(crews), figsize=(10, 8), sharex=True, squeeze=False, layout="constrained"
    )
    for column, crew in enumerate(crews):
        for row, (attribute, label, unit) in enumerate(_PANELS):
            axes = grid[row][column]
            for (name, _), taken in lines.items():
                if name.split()[0] == crew:
                    minutes = [sample.time_s / 60 for sample in taken]
                    values = [getattr(sample, attribute) / unit for sample in taken]
                    axes.plot(minutes, values, linewidth=1, label=name.removeprefix(f"{crew} "))
            axes.axvspan(0, warm_up_s / 60, color="grey", alpha=0.15, linewidth=0)
            axes.set(ylim=(0, None), ylabel=label)
            axes.grid(alpha=0.3)
        grid[0][column].set_title(crew)
        grid[0][column].legend(fontsize="x-small", ncols=3)
        grid[-1][column].set_xlabel("minutes")
    figure.suptitle(title)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    pyplot.close(figure)
