"""The object that users hold, its checks, and how a failed run is undone."""
