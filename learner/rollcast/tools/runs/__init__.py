"""Commands that read the folders of runs: list, compare and plot them."""
