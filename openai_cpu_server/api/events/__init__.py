"""`GET /v1/events`: what the scheduler does, for those who watch."""
