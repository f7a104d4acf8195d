"""`openai-cpu-server inspect`: what a model file contains, and what this machine can do with it."""
