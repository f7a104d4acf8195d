"""An API call: what it asks for, and how it runs to its end."""
