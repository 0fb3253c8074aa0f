"""The command line, one file per command. Nothing else in fxquant imports it."""
