"""Random models and inputs on which what must always hold is checked: ``make fuzz``."""
