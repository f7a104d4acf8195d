"""What the machine itself can do: a bare loop over llama_decode, without server, scheduler or sampler."""
