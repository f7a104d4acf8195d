"""How good a trained model is: held-out tasks, answered greedily by the server's own engine, and scored."""
