"""Routes that do not generate. Only administrators' keys change anything, and polled routes are not
logged."""
