"""What calibration writes down beside the ranges themselves: how they came about, and what looks wrong."""
