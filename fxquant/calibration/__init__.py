"""Calibration runs the float graph over data, keeps ranges and statistics, and says what looks wrong."""
