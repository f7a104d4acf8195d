"""Rules for the values of a branch. Properties stand in the order of the options, and no value is there
twice."""
