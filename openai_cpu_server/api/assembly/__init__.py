"""Which routes there are, and what each is made of: a module for each family."""
