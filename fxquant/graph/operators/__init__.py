"""What an operator is called: its canonical function, its arguments, and every other spelling."""
