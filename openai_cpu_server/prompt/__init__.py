"""Conversations as the text that a model reads, or as its tokens, in which contents never become control
tokens.

A reader process renders templates, which are untrusted code. The API process uses results and formats,
without `chat_template`, which runs jinja2.
"""
