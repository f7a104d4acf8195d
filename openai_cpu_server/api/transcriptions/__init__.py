"""`/v1/audio/transcriptions` and `/v1/audio/translations`. A recording is cut at quiet places into pieces
of half a minute. Each piece is a generation, and together they are one call with one set of limits and one
end. The response keeps their order."""
