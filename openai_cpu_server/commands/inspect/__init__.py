"""`openai-cpu-server inspect`: what a model file holds, and what it comes to on this machine."""
