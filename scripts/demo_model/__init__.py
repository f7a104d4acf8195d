"""The demo model: its corpus, its tokenizer, its training, its evaluation. See model_assets/README.md."""
