"""Passes, one a file, the orders in which they run (``pipelines``), and the manager that runs them."""
