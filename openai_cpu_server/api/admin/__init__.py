"""Routes that do not generate. They read what engines report. Only administrators' keys change anything, and
polled routes are not logged."""
