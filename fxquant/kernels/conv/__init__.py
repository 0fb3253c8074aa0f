"""int8 convolutions: operators, their reference, and the packed weight."""
