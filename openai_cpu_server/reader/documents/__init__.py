"""Text of clients' documents, read in confined processes. Libraries load with the first document of their
kind, and the text names the parts that are not read."""
