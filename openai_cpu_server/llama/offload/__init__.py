"""A device beside the CPU: which there are, and what of a model goes there.

`llama.loading` asks which split to load; `inspect` and `tune` ask what would fit. `split` is arithmetic and
loads no native code.
Promises: what is chosen fits, with a margin, as far as the device tells its memory; what was asked for and
does not fit is told with the arithmetic.
"""
