"""Text of clients' documents, read in confined processes by `reader/process.py`. Libraries are imported with
the first document of their kind, because an idle reader should be small. The text of a document names the
parts that are not read."""
