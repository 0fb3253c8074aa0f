"""What was asked and what was decided: specifications, configurations and the plan. Pure data."""
