"""The operator table: the canonical function of each operator, its arguments, and every other spelling."""
