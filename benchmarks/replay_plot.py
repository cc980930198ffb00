"""The plot of `benchmarks.replay`: what priorities cost, over how many there are. `make peers` installs matplotlib."""

from collections.abc import Mapping, Sequence


def draw_plot(path: str, capacities: Sequence[int], series: Mapping[str, Sequence[float]], *, title: str) -> None:
    """Draws milliseconds over entries, on a logarithmic axis: what grows with log n is a straight line.

    Args:
        path: Where to, an svg or a png.
        capacities: Entries, `[N]`.
        series: Milliseconds `[N]` by name; those of the peer, cpprb, are drawn dashed.
        title: Above it.
    """
    import matplotlib as mpl

    mpl.use("agg")
    mpl.rcParams.update({"svg.hashsalt": "rollcast", "svg.fonttype": "none"})  # same numbers, same file; small
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
