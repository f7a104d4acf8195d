"""The live requests of an engine: what they wait for, what they have produced, who may have killed it."""
