"""The documentation's pages, and the programs that build its site: `make docs`."""
