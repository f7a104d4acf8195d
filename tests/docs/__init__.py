"""The README and the manual say what is true."""
