"""Pure data: specifications, configurations that users write, and the plan that ``prepare`` decides."""
