"""What all generating families share: an `Ask` becomes a `Call`, that is submitted, and told as it comes."""
