"""Holds the passes, the orders in which they run (``pipelines``), and the manager that runs them."""
