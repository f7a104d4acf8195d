"""OpenAI's batch API: files, jobs of many requests, and the execution of their rows, which `jobs/` calls.
Objects belong to the name of a key. A row runs as a request does, at batch priority, and counts only
against the limit for rows."""
