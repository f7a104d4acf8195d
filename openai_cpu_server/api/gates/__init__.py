"""What every request passes before its body is read: who may come in, and what it may use."""
