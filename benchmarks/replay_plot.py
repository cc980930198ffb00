"""Plots the cost of priorities over the buffer's size for `benchmarks.replay`. `make peers` installs matplotlib."""

from collections.abc import Mapping, Sequence


def draw_plot(path: str, capacities: Sequence[int], series: Mapping[str, Sequence[float]], *, title: str) -> None:
    """Plots milliseconds over entries on a logarithmic axis, where growth with log n is a straight line.

    Args:
        path: The file to write, svg or png.
        capacities: Numbers of entries, `[N]`.
        series: Milliseconds `[N]` by name; those of cpprb are dashed.
        title: The title.
    """
    import matplotlib as mpl

    mpl.use("agg")
    mpl.rcParams.update(
        {"svg.hashsalt": "rollcast", "svg.fonttype": "none"}
    )  # the same numbers give the same, small file
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6.4, 3.6), layout="constrained")
    for name, milliseconds in series.items():
        axes.plot(capacities, milliseconds, "o--" if name.startswith("cpprb") else "o-", markersize=4, label=name)
    axes.set(xscale="log", ylim=(0, None), xlabel="entries", ylabel="ms a call", title=title)
    axes.axhline(0.3, color="grey", linewidth=1, linestyle=":", label="target of either at 1M")
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    figure.savefig(path, metadata={"Date": None} if path.endswith(".svg") else None)
    pyplot.close(figure)
