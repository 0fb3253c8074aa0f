"""The HTML report and the static plots: what was decided, measured and changed, for people. ``fxquant.report``."""
