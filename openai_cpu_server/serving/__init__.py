"""From settings to served models: which there are, what each needs, and the engines that stand for them."""
