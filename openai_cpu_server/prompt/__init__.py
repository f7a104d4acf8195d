"""A conversation as the text that a model reads. Text in, text out; tokens where a tokenizer is handed in.

The reader's process compiles templates and renders prompts; the API process knows the results and the
formats, and imports neither `chat_template` nor `sandbox`, which run jinja2: a template is somebody
else's program.
Promises: contents never become control tokens; a template that loops or grows without end is stopped;
thoughts and tools are shown to a template as it expects them, which is found out by trying.
"""
