"""The limit of the machine itself: a bare loop over llama_decode, without server, scheduler or sampler."""
