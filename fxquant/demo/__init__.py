"""The demo: a real network, real photographs, float and int8 side by side, in text and as a picture."""
